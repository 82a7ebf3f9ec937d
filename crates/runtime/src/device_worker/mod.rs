//! Device workers: one pinned thread per device that owns its engine, fed by one bounded queue.
//!
//! * `task`: what travels in a ticket, and the stops that an op makes.
//! * [`Lane`]: what callers, the worker and its supervisor share: the queues, the counters, the state, the model.
//! * `driver`: the worker's loop as a machine that takes one step at a time, so that a simulation can run it under a
//!   virtual clock.
//! * `line`: the ops of one priority that wait for the device, first come first served.
//! * `flights`: the ops inside the engine.
//! * `objects`: the device objects that must be made again when the device was lost.
//! * `supervisor`: starts the worker's thread, and replaces it when it hangs.
//!
//! How every accepted op gets exactly one outcome:
//!
//! 1. An op is a ticket from the moment it is accepted, and a ticket that is dropped answers.
//! 2. A ticket is in one place at a time: the queue, the table of flights, or the hands of whoever took it out.
//! 3. The queue is closed before the last consumer leaves it, and nothing can enter a closed queue.
//! 4. An engine that panics, loses its device or loses track of an op is dropped; everything it held is answered with a
//!    device error, and the device is opened again with back-off.
//! 5. An op whose device failed it, or that must be brought to another device, is handed to the relay under its fallback
//!    policy; the relay's queue is bounded too, and what does not fit there is answered with its error.
//! 6. A worker that is stuck inside its engine for longer than the op's bound is replaced: the supervisor answers what the
//!    engine held, and a new thread with a new engine goes on with the same queue. The stuck thread touches neither the queue
//!    nor the device's state again, and leaves when it returns. A thread that has ended unasked is replaced likewise.
//! 7. Code that is not ours is called so that its panics end there (see `foreign`).

use std::time::{Duration, Instant};

use panoply_core::{DeviceId, Error, Outcome, Result, Value};

use crate::health::HealthReport;
use crate::slot::{Receiver, Ticket};

pub(crate) mod driver;
pub(crate) mod flights;
mod landing;
pub(crate) mod lane;
mod line;
mod objects;
pub(crate) mod supervisor;
pub(crate) mod task;

pub(crate) use lane::{Lane, LaneSetup, PlaceInLine};
pub(crate) use task::{Forecast, Leg, Task};

pub(crate) type OpAnswer = Result<Outcome<Value>>;
pub(crate) type OpTicket = Ticket<Task, OpAnswer>;
pub(crate) type OpReceiver = Receiver<Task, OpAnswer>;

/// When an op was accepted, and when it was given to the engine.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) accepted: Instant,
    pub(crate) submitted: Instant,
}

/// Bounds of one device worker.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerLimits {
    /// How many ops may wait in the queue. Rounded up to a power of two, at least 2.
    pub queue_depth_max: usize,
    /// How many ops are given to the engine at once.
    pub batch_max: usize,
    /// How many ops the engine holds at once.
    pub in_flight_max: usize,
    /// How long the engine may take for one op before the device counts as hung.
    pub op_time_max: Duration,
    /// The wait before the first attempt to reopen a lost device; doubled for each further one.
    pub reopen_wait_min: Duration,
    /// The longest wait between two attempts.
    pub reopen_wait_max: Duration,
    /// How many attempts may fail in a row, or threads be replaced without an op completed in between, before the device is
    /// given up.
    pub reopen_attempts_max: u32,
    /// How many threads may be stuck at once before the device is given up.
    pub stuck_threads_max: u32,
}

impl Default for WorkerLimits {
    fn default() -> WorkerLimits {
        WorkerLimits {
            queue_depth_max: 1024,
            batch_max: 64,
            in_flight_max: 256,
            op_time_max: Duration::from_secs(60),
            reopen_wait_min: Duration::from_millis(10),
            reopen_wait_max: Duration::from_secs(5),
            reopen_attempts_max: 10,
            stuck_threads_max: 4,
        }
    }
}

/// What a device worker is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WorkerState {
    /// The device is being opened for the first time.
    Opening = 0,
    /// Ready for ops.
    Ready = 1,
    /// The device was lost and is being opened again.
    Reopening = 2,
    /// The device was given up; ops are refused.
    Failed = 3,
    /// The worker has ended.
    Stopped = 4,
}

impl WorkerState {
    fn from_u8(value: u8) -> WorkerState {
        match value {
            0 => WorkerState::Opening,
            1 => WorkerState::Ready,
            2 => WorkerState::Reopening,
            3 => WorkerState::Failed,
            _ => WorkerState::Stopped,
        }
    }
}

/// What a worker has done so far. `accepted` = `completed` + `failed` + `cancelled` + `moved` + what is queued or under
/// way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerCounters {
    /// Ops that entered the queue.
    pub accepted: u64,
    /// Ops that gave an output.
    pub completed: u64,
    /// Ops that gave an error.
    pub failed: u64,
    /// Ops whose callers had gone before they were started.
    pub cancelled: u64,
    /// Ops that went on to another device, or back to the end of the queue.
    pub moved: u64,
    /// Those of them that left because the device failed them, or was about to.
    pub fallbacks: u64,
    /// Those of them that had not been started, and were expected to be finished sooner elsewhere.
    pub relieved: u64,
    /// Panics inside the engine.
    pub panics: u64,
    /// How often the device was opened again.
    pub reopened: u64,
    /// Threads that were stuck, or ended without having been stopped, and were replaced.
    pub replaced: u64,
    /// Answers of the engine that named no op it held.
    pub stray_answers: u64,
}

/// One device worker as its users see it.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerReport {
    /// The device.
    pub device: DeviceId,
    /// What the worker is doing.
    pub state: WorkerState,
    /// Why it is not ready, if it is not.
    pub trouble: Option<Error>,
    /// Ops that wait in the queue.
    pub queued: usize,
    /// Ops whose callers wait for room in the queue.
    pub waiting: usize,
    /// How many ops the queue holds.
    pub queue_depth_max: usize,
    /// What it has done.
    pub counters: WorkerCounters,
    /// How the device is.
    pub health: HealthReport,
}

#[cfg(test)]
pub(crate) mod tests {
    use std::time::Instant;

    use panoply_core::op::compute::Transpose;
    use panoply_core::{CostClass, DType, Operation, Tensor};

    use super::*;
    use crate::options::{FallbackPolicy, Wishes};
    use crate::router::model::Key;

    /// A lane for a device.
    pub(crate) fn lane(info: panoply_core::DeviceInfo) -> Lane {
        let (clock, epoch) = (std::sync::Arc::new(panoply_core::clock::SystemClock), Instant::now());
        let setup = LaneSetup {
            limits: WorkerLimits::default(),
            rules: crate::health::HealthRules::default(),
            batching: crate::batcher::Batching::default(),
            inlet: std::sync::Arc::new(crate::relay::Inlet::new()),
            clock,
            epoch,
            leave_out: Vec::new(),
        };
        Lane::new(0, info, &setup)
    }

    /// A ticket for a small op, and its receiver.
    pub(crate) fn ticket() -> (OpTicket, OpReceiver) {
        let op = Transpose::new(&Tensor::zeros(DType::F32, [2, 3]).unwrap()).into_op().unwrap();
        let forecast = Forecast {
            key: Key::new("transpose", Some(DType::F32), CostClass::default()),
            work_log2: 2.0,
            queue_ns: 0.0,
            transfer_ns: 0.0,
            run_ns: 0.0,
            service_ns: 0.0,
            target: 0,
            probe: false,
            settled: false,
            explored: false,
            foreign: false,
        };
        let wishes = Wishes::none(FallbackPolicy::None);
        let (accepted, load_ns, keep, place, history) = (Instant::now(), 0, false, None, None);
        crate::slot::slot(Task { op: Some(op), accepted, wishes, forecast, load_ns, keep, place, history })
    }
}
