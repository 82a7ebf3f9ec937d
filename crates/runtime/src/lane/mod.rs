//! What callers, the worker and its supervisor share of one device: its queue, its books, its state, what was learned of it.
//! Everything above meets here, and this knows nothing of it: neither the router that chooses a lane nor the driver that
//! serves it.
//!
//! * `task`: what travels in a ticket, and the stops that an op makes; `in_parts`: a graph whose parts run on several devices.
//! * `entry`: into the queue and out of it; `line`: the ops of one priority, first come first served.
//! * `books`: how ops end.
//! * `inlet`: where ops go that leave for another lane.
//! * `warm_ups`: kernels that shall be compiled meanwhile.
//! * `objects`: the device objects that must be made again when the device was lost.
//! * `report`: what users see of all this.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use panoply_core::clock::Clock;
use panoply_core::{DeviceId, DeviceInfo, Error, Op, Outcome, Result, Value};
use tracing::Level;

use crate::batcher::Batching;
use crate::foreign::tell;
use crate::health::{Gate, HealthRules};
use crate::learned::links::Links;
use crate::learned::model::{Key, Model};
use crate::metrics::LaneMetrics;
use crate::options::Priority;
use crate::sleeper::Sleeper;
use crate::slot::{Receiver, Remains, Ticket};
use crate::sync::CacheLine;
use crate::time::nanoseconds;

mod books;
mod entry;
mod in_parts;
pub(crate) mod inlet;
mod line;
mod objects;
mod report;
pub(crate) mod task;
mod warm_ups;

use books::Counts;
pub(crate) use books::Ended;
pub(crate) use entry::PlaceInLine;
pub(crate) use in_parts::InParts;
pub(crate) use inlet::Inlet;
use line::Line;
pub(crate) use objects::Objects;
pub use report::{WorkerCounters, WorkerLimits, WorkerReport, WorkerState};
pub(crate) use task::{Forecast, Leg, Task};
use warm_ups::WarmUps;

pub(crate) type OpAnswer = Result<Outcome<Value>>;
pub(crate) type OpTicket = Ticket<Task, OpAnswer>;
pub(crate) type OpReceiver = Receiver<Task, OpAnswer>;
pub(crate) type OpRemains = Remains<Task, OpAnswer>;

/// A device may be explored for this long, and for one in so many nanoseconds of its life.
const EXPLORED_NS_FIRST: u64 = 50_000_000;
const EXPLORED_ONE_IN: u64 = 32;
const RUN: u8 = 0;
const DRAIN: u8 = 1;
const ABORT: u8 = 2;

/// One device as the runtime sees it.
pub(crate) struct Lane {
    /// Its number among the lanes of its runtime.
    pub(crate) number: u8,
    pub(crate) info: DeviceInfo,
    pub(crate) limits: WorkerLimits,
    pub(crate) rules: HealthRules,
    pub(crate) batching: Batching,
    pub(crate) sleeper: Sleeper,
    pub(crate) counts: Counts,
    pub(crate) model: Model,
    pub(crate) links: Links,
    pub(crate) gate: Gate,
    pub(crate) metrics: LaneMetrics,
    /// The device's objects that are made again when it is opened again. Lanes of one device share the list: one that is found
    /// again after it was given up gets a new lane.
    pub(crate) objects: Arc<Objects>,
    /// Ops sent to learn how fast the device is that have not come back.
    pub(crate) exploring: AtomicU32,
    /// How long the device worked on such ops.
    pub(crate) explored_ns: AtomicU64,
    /// The work that waits or runs, in nanoseconds as predicted.
    backlog_ns: CacheLine<AtomicU64>,
    normal: Line,
    urgent: Line,
    patient: Line,
    /// Ops that the relay is looking at. Locked by the relay alone.
    looked_at: Mutex<VecDeque<(Priority, OpTicket)>>,
    /// Set by the first op that is urgent or patient, or was put back.
    mixed: AtomicBool,
    pub(crate) warm_ups: WarmUps,
    mode: AtomicU8,
    state: AtomicU8,
    /// Written on transitions only, never on the path of an op.
    trouble: Mutex<Option<Error>>,
    inlet: Arc<Inlet>,
    clock: Arc<dyn Clock>,
    epoch: Instant,
}

/// What the lanes of one runtime have in common.
#[derive(Clone)]
pub(crate) struct LaneSetup {
    pub(crate) limits: WorkerLimits,
    pub(crate) rules: HealthRules,
    pub(crate) batching: Batching,
    pub(crate) inlet: Arc<Inlet>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) epoch: Instant,
    /// Devices that get no lane.
    pub(crate) leave_out: Vec<DeviceId>,
}

impl Lane {
    pub(crate) fn new(number: u8, info: DeviceInfo, setup: &LaneSetup) -> Lane {
        let depth = setup.limits.queue_depth_max;
        setup.inlet.expect_lane(number);
        Lane {
            number,
            info,
            limits: setup.limits.clone(),
            rules: setup.rules.clone(),
            batching: setup.batching,
            sleeper: Sleeper::new(),
            counts: Counts::default(),
            model: Model::new(),
            links: Links::default(),
            gate: Gate::new(),
            metrics: LaneMetrics::new(),
            objects: Arc::default(),
            exploring: AtomicU32::new(0),
            explored_ns: AtomicU64::new(0),
            backlog_ns: CacheLine(AtomicU64::new(0)),
            normal: Line::new(depth),
            urgent: Line::new(depth),
            patient: Line::new(depth),
            looked_at: Mutex::default(),
            mixed: AtomicBool::new(false),
            warm_ups: WarmUps::new(),
            mode: AtomicU8::new(RUN),
            state: AtomicU8::new(WorkerState::Opening as u8),
            trouble: Mutex::new(None),
            inlet: Arc::clone(&setup.inlet),
            clock: Arc::clone(&setup.clock),
            epoch: setup.epoch,
        }
    }

    /// The same lane with the objects that a lane before it had.
    pub(crate) fn with_objects_of(mut self, before: Option<&Lane>) -> Lane {
        if let Some(before) = before {
            self.objects = Arc::clone(&before.objects);
        }
        self
    }

    /// Whether an op may be sent to learn how fast the device is: one at a time, and for a small part of all time, so that a
    /// slow device costs no more to know than a fast one.
    pub(crate) fn may_be_explored(&self, now: Instant) -> bool {
        let allowed_ns = EXPLORED_NS_FIRST + self.since_epoch_ns(now) / EXPLORED_ONE_IN;
        self.exploring.load(Ordering::Relaxed) == 0 && self.explored_ns.load(Ordering::Relaxed) < allowed_ns
    }

    /// Nanoseconds since the lane's epoch.
    pub(crate) fn since_epoch_ns(&self, now: Instant) -> u64 {
        nanoseconds(now.saturating_duration_since(self.epoch))
    }

    pub(crate) fn state(&self) -> WorkerState {
        WorkerState::from_u8(self.state.load(Ordering::Acquire))
    }

    /// Sets the state, and tells nobody of it. Returns whether there is something to tell.
    pub(crate) fn put_state(&self, state: WorkerState, trouble: Option<Error>) -> bool {
        *self.trouble.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = trouble;
        self.state.swap(state as u8, Ordering::AcqRel) != state as u8
    }

    pub(crate) fn tell_state(&self, state: WorkerState, trouble: Option<&Error>) {
        tell(Level::INFO, || {
            tracing::info!(target: "panoply::health", device = %self.info.id, ?state, ?trouble, "device worker");
        });
    }

    /// Takes no more ops, and ends the worker when the ones it has are done.
    #[must_use = "what is foreign is called when this is dropped"]
    pub(crate) fn drain(&self) -> Vec<Ended> {
        self.mode.fetch_max(DRAIN, Ordering::AcqRel);
        self.close()
    }

    /// Takes no more ops, and has the worker answer the ones it has with [`Error::ShuttingDown`].
    #[must_use = "what is foreign is called when this is dropped"]
    pub(crate) fn abort(&self) -> Vec<Ended> {
        self.mode.fetch_max(ABORT, Ordering::AcqRel);
        self.close()
    }

    pub(crate) fn is_aborting(&self) -> bool {
        self.mode.load(Ordering::Acquire) == ABORT
    }

    /// Called by the worker when it has run out of work.
    pub(crate) fn note_idle(&self) {
        self.inlet.note_idle();
    }

    /// Refuses everything from now on, without ending the worker's duty to what it has. Callers that wait for room have not
    /// got in, and never will.
    fn close(&self) -> Vec<Ended> {
        self.shut();
        std::iter::from_fn(|| self.next_waiting()).map(|ticket| self.end(ticket, self.refusal())).collect()
    }

    /// Refuses everything from now on, and ends no op: whoever calls this takes out those that wait for room.
    pub(crate) fn shut(&self) {
        [&self.normal, &self.urgent, &self.patient].iter().for_each(|line| line.close());
        self.sleeper.wake();
    }

    /// Whether it still takes ops.
    pub(crate) fn is_open(&self) -> bool {
        !self.normal.is_closed()
    }

    /// Why a closed lane takes nothing.
    pub(crate) fn refusal(&self) -> Error {
        let trouble = self.trouble.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match (self.state(), &*trouble) {
            (WorkerState::Failed, Some(cause)) if self.mode.load(Ordering::Acquire) == RUN => {
                Error::DeviceUnavailable { device: self.info.id, reason: cause.to_string() }
            }
            _ => Error::ShuttingDown,
        }
    }

    /// Asks the worker to compile what this op needs, unless it was asked before.
    pub(crate) fn ask_warm_up(&self, key: Key, op: &Op) {
        if self.warm_ups.ask(key, op) {
            self.sleeper.wake();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use panoply_core::op::compute::Transpose;
    use panoply_core::{CostClass, DType, Operation, Tensor};

    use super::*;
    use crate::options::{FallbackPolicy, Wishes};

    /// A lane for a device.
    pub(crate) fn lane(info: panoply_core::DeviceInfo) -> Lane {
        let (clock, epoch) = (std::sync::Arc::new(panoply_core::clock::SystemClock), Instant::now());
        let setup = LaneSetup {
            limits: WorkerLimits::default(),
            rules: crate::health::HealthRules::default(),
            batching: crate::batcher::Batching::default(),
            inlet: std::sync::Arc::new(Inlet::new()),
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
        let (accepted, load_ns, keep, session, seat, history) = (Instant::now(), 0, false, false, None, None);
        crate::slot::slot(Task { op: Some(op), accepted, wishes, forecast, load_ns, keep, session, seat, history })
    }
}
