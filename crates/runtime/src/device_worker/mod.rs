//! Device workers: one pinned thread per device that owns its engine, fed by one bounded queue.
//!
//! * [`Lane`]: what callers, the worker and its supervisor share: the queue, the counters, the state.
//! * `driver`: the worker's loop as a machine that takes one step at a time, so that a simulation can run it under a
//!   virtual clock.
//! * `flights`: the ops inside the engine.
//! * `supervisor`: starts the worker's thread, and replaces it when it hangs.
//!
//! How every accepted op gets exactly one outcome:
//!
//! 1. An op is a ticket from the moment it is accepted, and a ticket that is dropped answers.
//! 2. A ticket is in one place at a time: the queue, the table of flights, or the hands of whoever took it out.
//! 3. The queue is closed before the last consumer leaves it, and nothing can enter a closed queue.
//! 4. An engine that panics, loses its device or loses track of an op is dropped; everything it held is answered with a
//!    device error, and the device is opened again with back-off.
//! 5. A worker that is stuck inside its engine for longer than the op's bound is replaced: the supervisor answers what the
//!    engine held, and a new thread with a new engine goes on with the same queue. The stuck thread leaves when it returns.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::Waker;
use std::time::{Duration, Instant};

use panoply_core::{DeviceId, DeviceInfo, Error, Op, Outcome, Result, Value};

use crate::queue::{PushError, Queue};
use crate::room::Room;
use crate::sleeper::Sleeper;
use crate::slot::{Receiver, Ticket};

pub(crate) mod driver;
pub(crate) mod flights;
pub(crate) mod supervisor;

/// What a caller asks of a worker.
pub(crate) struct Task {
    pub(crate) op: Op,
    pub(crate) accepted: Instant,
    pub(crate) deadline: Option<Instant>,
}

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
    /// How many attempts may fail in a row before the device is given up.
    pub reopen_attempts_max: u32,
    /// How many stuck threads may be replaced before the device is given up.
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

/// What a worker has done so far. `accepted` = `completed` + `failed` + `cancelled` + what is queued or under way.
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
    /// Panics inside the engine.
    pub panics: u64,
    /// How often the device was opened again.
    pub reopened: u64,
    /// Threads that were stuck and were replaced.
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
    /// How many ops the queue holds.
    pub queue_depth_max: usize,
    /// What it has done.
    pub counters: WorkerCounters,
}

const RUN: u8 = 0;
const DRAIN: u8 = 1;
const ABORT: u8 = 2;

/// What callers, the worker and its supervisor share.
pub(crate) struct Lane {
    pub(crate) info: DeviceInfo,
    pub(crate) limits: WorkerLimits,
    pub(crate) queue: Queue<OpTicket>,
    pub(crate) sleeper: Sleeper,
    pub(crate) counts: Counts,
    room: Room,
    mode: AtomicU8,
    state: AtomicU8,
    /// Written on transitions only, never on the path of an op.
    trouble: Mutex<Option<Error>>,
}

#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) accepted: AtomicU64,
    pub(crate) completed: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) panics: AtomicU64,
    pub(crate) reopened: AtomicU64,
    pub(crate) replaced: AtomicU64,
    pub(crate) stray_answers: AtomicU64,
}

impl Lane {
    pub(crate) fn new(info: DeviceInfo, limits: WorkerLimits) -> Lane {
        Lane {
            queue: Queue::new(limits.queue_depth_max),
            info,
            limits,
            sleeper: Sleeper::new(),
            counts: Counts::default(),
            room: Room::default(),
            mode: AtomicU8::new(RUN),
            state: AtomicU8::new(WorkerState::Opening as u8),
            trouble: Mutex::new(None),
        }
    }

    /// Puts an op into the queue, or hands it back with the reason.
    pub(crate) fn try_send(&self, ticket: OpTicket) -> Result<(), (OpTicket, Error)> {
        match self.queue.push(ticket) {
            Ok(()) => {
                self.counts.accepted.fetch_add(1, Ordering::Relaxed);
                self.sleeper.wake();
                Ok(())
            }
            Err(PushError::Full(ticket)) => {
                let queue_depth_max = self.queue.capacity();
                Err((ticket, Error::Busy { device: self.info.id, queue_depth_max }))
            }
            Err(PushError::Closed(ticket)) => Err((ticket, self.refusal())),
        }
    }

    /// Has `waker` woken when there may be room. The caller must try once more after this.
    pub(crate) fn wait_for_room(&self, waker: &Waker) {
        self.room.wait(waker);
    }

    /// Called by consumers after they took something out.
    pub(crate) fn made_room(&self) {
        self.room.wake_all();
    }

    pub(crate) fn state(&self) -> WorkerState {
        WorkerState::from_u8(self.state.load(Ordering::Acquire))
    }

    pub(crate) fn set_state(&self, state: WorkerState, trouble: Option<Error>) {
        *self.trouble.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = trouble;
        self.state.store(state as u8, Ordering::Release);
    }

    /// Takes no more ops, and ends the worker when the ones it has are done.
    pub(crate) fn drain(&self) {
        self.mode.fetch_max(DRAIN, Ordering::AcqRel);
        self.close();
    }

    /// Takes no more ops, and answers the ones it has with [`Error::ShuttingDown`].
    pub(crate) fn abort(&self) {
        self.mode.fetch_max(ABORT, Ordering::AcqRel);
        self.close();
    }

    pub(crate) fn is_aborting(&self) -> bool {
        self.mode.load(Ordering::Acquire) == ABORT
    }

    /// Whether an idle worker has a reason to take a step.
    pub(crate) fn has_news(&self) -> bool {
        self.queue.len() > 0 || self.queue.is_closed()
    }

    /// Refuses everything from now on, without ending the worker's duty to what it has.
    pub(crate) fn close(&self) {
        self.queue.close();
        self.sleeper.wake();
        self.room.wake_all();
    }

    /// Answers everything that waits in the closed queue.
    pub(crate) fn refuse_queued(&self) {
        while !self.queue.is_finished() {
            let popped = self.queue.pop_many(64, |ticket| self.fail(ticket, self.refusal()));
            if popped == 0 {
                // A push has claimed its slot and is about to fill it.
                std::thread::yield_now();
            }
        }
        self.made_room();
    }

    pub(crate) fn fail(&self, ticket: OpTicket, error: Error) {
        self.counts.failed.fetch_add(1, Ordering::Relaxed);
        ticket.answer(Err(error));
    }

    pub(crate) fn report(&self) -> WorkerReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &self.counts;
        WorkerReport {
            device: self.info.id,
            state: self.state(),
            trouble: self.trouble.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone(),
            queued: self.queue.len(),
            queue_depth_max: self.queue.capacity(),
            counters: WorkerCounters {
                accepted: read(&counts.accepted),
                completed: read(&counts.completed),
                failed: read(&counts.failed),
                cancelled: read(&counts.cancelled),
                panics: read(&counts.panics),
                reopened: read(&counts.reopened),
                replaced: read(&counts.replaced),
                stray_answers: read(&counts.stray_answers),
            },
        }
    }

    /// Why a closed lane takes nothing.
    fn refusal(&self) -> Error {
        let trouble = self.trouble.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match (self.state(), &*trouble) {
            (WorkerState::Failed, Some(cause)) if self.mode.load(Ordering::Acquire) == RUN => {
                Error::DeviceUnavailable { device: self.info.id, reason: cause.to_string() }
            }
            _ => Error::ShuttingDown,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use panoply_core::op::compute::Transpose;
    use panoply_core::{DType, Operation, Tensor};

    use super::*;

    /// A ticket for a small op, and its receiver.
    pub(crate) fn ticket() -> (OpTicket, OpReceiver) {
        let op = Transpose::new(&Tensor::zeros(DType::F32, [2, 3]).unwrap()).into_op().unwrap();
        crate::slot::slot(Task { op, accepted: Instant::now(), deadline: None })
    }
}
