//! The state of one worker that callers, the worker and its supervisor share: its queue, its books,
//! its state, and what was learned about its device. All modules above meet here, and the lane
//! knows none of them: neither the router that chooses a lane nor the driver that serves it.
//!
//! A device has one lane of its own. Workers of pools (see `domain_pools`) have further lanes for
//! the same device, which share its slot, its health and its measured times.
//!
//! * `task`: the content of a ticket, and the stops that an op makes. `in_parts`: a graph whose
//!   parts run on several devices.
//! * `entry`: into the queue and out of it. `line`: the ops of one priority, first come first
//!   served.
//! * `books`: how ops end.
//! * `inlet`: the entrance of the relay, for ops that leave for another lane.
//! * `warm_ups`: kernels to compile while the worker is idle.
//! * `looks`: when the worker asks its engine for the device's health.
//! * `memory_requests`: callers' requests for pinned memory, and to free cached memory.
//! * `opinions`: answers that wait to be compared with another device's.
//! * `objects`: the device objects that must be made again after the device was lost.
//! * `report`: the types that users see of all this.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use panoply_core::clock::Clock;
use panoply_core::{DeviceId, DeviceInfo, Error, Op, Outcome, Result, Value};
use panoply_placement::Placement;
use tracing::Level;

use crate::address_space;
use crate::batcher::Batching;
use crate::claims::ClaimBook;
use crate::domain_pools::{DevicePool, PoolName, PoolPriority, Pools};
use crate::health::{Gate, HealthRules};
use crate::learned::links::Links;
use crate::learned::model::{CurveKey, Model};
use crate::metrics::LaneMetrics;
use crate::options::Priority;
use crate::process::Process;
use crate::time::nanoseconds;

mod books;
mod entry;
mod in_parts;
pub(crate) mod inlet;
mod line;
mod looks;
mod memory_requests;
mod objects;
pub(crate) mod opinions;
mod report;
pub(crate) mod task;
mod warm_ups;

pub(crate) use books::ClosingCalls;
use books::OpCounters;
pub(crate) use entry::PlaceInLine;
pub(crate) use in_parts::InParts;
pub(crate) use inlet::Inlet;
use line::OpQueue;
use looks::Looks;
use memory_requests::MemoryRequests;
pub(crate) use memory_requests::{MemoryAnswer, MemoryRequest};
pub(crate) use objects::Objects;
use opinions::Opinions;
use panoply_lockfree::CacheLine;
use panoply_lockfree::foreign::tell;
use panoply_lockfree::sleeper::Sleeper;
use panoply_lockfree::slot::{Receiver, Remains, Ticket};
pub use report::{PoolWorkerReport, WorkerCounters, WorkerLimits, WorkerReport, WorkerState};
pub(crate) use task::{Forecast, OpRequest, OpStage};
use warm_ups::WarmUps;

pub(crate) type OpAnswer = Result<Outcome<Value>>;
pub(crate) type OpTicket = Ticket<OpRequest, OpAnswer>;
pub(crate) type OpReceiver = Receiver<OpRequest, OpAnswer>;
pub(crate) type OpRemains = Remains<OpRequest, OpAnswer>;

/// The time for which a device may be explored: this many nanoseconds, and one in `EXPLORED_ONE_IN`
/// nanoseconds of its life.
const EXPLORED_NS_FIRST: u64 = 50_000_000;
const EXPLORED_ONE_IN: u64 = 32;
const RUN: u8 = 0;
const DRAIN: u8 = 1;
const ABORT: u8 = 2;

/// One worker of a device as the runtime sees it.
pub(crate) struct Lane {
    /// Its id, unique among all lanes that its runtime ever made.
    pub(crate) id: u16,
    /// The number of its slot among the lanes that serve.
    pub(crate) number: u8,
    pub(crate) info: DeviceInfo,
    pub(crate) limits: WorkerLimits,
    pub(crate) rules: HealthRules,
    pub(crate) batching: Batching,
    pub(crate) sleeper: Sleeper,
    pub(crate) counts: OpCounters,
    /// Shared by all lanes of the device, like `links`, `gate`, `exploring` and `explored_ns`.
    pub(crate) model: Arc<Model>,
    pub(crate) links: Arc<Links>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) metrics: LaneMetrics,
    /// The device's objects that are made again when it is opened again. Lanes of one device share
    /// the list: a device that is found again after it was given up gets a new lane.
    pub(crate) objects: Arc<Objects>,
    /// The claims of the device. Lanes of one device share them.
    pub(crate) claims: Arc<ClaimBook>,
    /// Number of exploring ops (sent to learn how fast the device is) that have not come back.
    pub(crate) exploring: Arc<AtomicU32>,
    /// How long the device worked on exploring ops.
    pub(crate) explored_ns: Arc<AtomicU64>,
    /// The predicted time of all work that waits or runs, in nanoseconds.
    backlog_ns: CacheLine<AtomicU64>,
    normal: OpQueue,
    urgent: OpQueue,
    patient: OpQueue,
    /// Ops that the relay is looking at. Locked by the relay, and by a thread that takes over from
    /// a stuck relay or empties a closed lane.
    looked_at: Mutex<VecDeque<(Priority, OpTicket)>>,
    /// Set by the first op that is urgent or patient, or was put back.
    mixed: AtomicBool,
    pub(crate) warm_ups: WarmUps,
    pub(crate) looks: Looks,
    memory_requests: MemoryRequests,
    mode: AtomicU8,
    /// The answers that wait to be compared, if answers are compared at all.
    opinions: Option<Arc<Opinions>>,
    /// The accumulator by which ops are chosen for a comparison; see `is_chosen`.
    chosen: AtomicU64,
    /// Whether the last compared answer of the device was wrong.
    suspect: Arc<AtomicBool>,
    /// How long the device worked to compare the answers of others.
    compared_ns: Arc<AtomicU64>,
    /// How often the device's circuit was opened, and how often this worker has noticed that.
    trips: Arc<AtomicU64>,
    trips_seen: AtomicU64,
    /// Whether another lane has taken over its slot.
    replaced: AtomicBool,
    /// The number of this lane among all that were put into slots; see `Lane::placed`.
    placed: AtomicU32,
    state: AtomicU8,
    /// The error behind the state. Written on transitions only, never on the path of an op.
    trouble: Mutex<Option<Error>>,
    /// The pool of the worker. `None` for the device's own worker.
    pub(crate) pool: Option<PoolName>,
    /// The number of the worker within its pool.
    pub(crate) pool_number: usize,
    /// The lane of the device's own worker, for a worker of a pool.
    leader: Option<Arc<Lane>>,
    pub(crate) pools: Arc<Pools>,
    /// Where the worker's thread runs. Written when the device was opened.
    placement: Mutex<Placement>,
    pub(super) inlet: Arc<Inlet>,
    clock: Arc<dyn Clock>,
    epoch: Instant,
    /// The process that the worker runs in.
    pub(crate) process: Process,
}

/// The id and the slot of a lane among the lanes of its runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaneSlot {
    /// Its id, which no other lane ever has.
    pub(crate) id: u16,
    /// The slot in which it serves. Another lane may have the slot later.
    pub(crate) number: u8,
}

/// The settings that the lanes of one runtime share.
#[derive(Clone)]
pub(crate) struct LaneSetup {
    pub(crate) limits: WorkerLimits,
    pub(crate) rules: HealthRules,
    pub(crate) batching: Batching,
    pub(crate) inlet: Arc<Inlet>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) epoch: Instant,
    /// The answers that wait to be compared, if answers are compared at all.
    pub(crate) opinions: Option<Arc<Opinions>>,
    /// Devices that get no lane.
    pub(crate) leave_out: Vec<DeviceId>,
    pub(crate) pools: Arc<Pools>,
}

impl Lane {
    /// Fails if there is no memory for the queues of one more lane.
    pub(crate) fn check_room(device: DeviceId, setup: &LaneSetup) -> Result<()> {
        Lane::check_depth(device, setup.limits.queue_depth_max)
    }

    /// The same, for the queues of a worker of a pool.
    pub(crate) fn check_pool_room(device: DeviceId, setup: &LaneSetup, pool: &DevicePool) -> Result<()> {
        Lane::check_depth(device, pool.queue_depth_max.unwrap_or(setup.limits.queue_depth_max))
    }

    fn check_depth(device: DeviceId, depth: usize) -> Result<()> {
        address_space::check_room(OpQueue::bytes(depth).saturating_mul(3)).map_err(|error| {
            let reason = format!("there is no memory for queues of {depth} ops (`queue_depth_max`): {error}");
            Error::DeviceUnavailable { device, reason }
        })
    }

    pub(crate) fn new(place: LaneSlot, info: DeviceInfo, setup: &LaneSetup) -> Lane {
        let LaneSlot { id, number } = place;
        let depth = setup.limits.queue_depth_max;
        setup.inlet.expect_lane(number);
        Lane {
            id,
            number,
            info,
            limits: setup.limits.clone(),
            rules: setup.rules.clone(),
            batching: setup.batching,
            sleeper: Sleeper::new(),
            counts: OpCounters::default(),
            model: Arc::new(Model::new()),
            links: Arc::default(),
            gate: Arc::new(Gate::new()),
            metrics: LaneMetrics::new(),
            objects: Arc::default(),
            claims: Arc::default(),
            exploring: Arc::default(),
            explored_ns: Arc::default(),
            backlog_ns: CacheLine(AtomicU64::new(0)),
            normal: OpQueue::new(depth),
            urgent: OpQueue::new(depth),
            patient: OpQueue::new(depth),
            looked_at: Mutex::default(),
            mixed: AtomicBool::new(false),
            warm_ups: WarmUps::new(),
            looks: Looks::default(),
            memory_requests: MemoryRequests::new(),
            mode: AtomicU8::new(RUN),
            opinions: setup.opinions.clone(),
            chosen: AtomicU64::new(opinions::CHOSEN_FIRST),
            suspect: Arc::default(),
            compared_ns: Arc::default(),
            trips: Arc::default(),
            trips_seen: AtomicU64::new(0),
            replaced: AtomicBool::new(false),
            placed: AtomicU32::new(0),
            state: AtomicU8::new(WorkerState::Opening as u8),
            trouble: Mutex::new(None),
            pool: None,
            pool_number: 0,
            leader: None,
            pools: Arc::clone(&setup.pools),
            placement: Mutex::default(),
            inlet: Arc::clone(&setup.inlet),
            clock: Arc::clone(&setup.clock),
            epoch: setup.epoch,
            process: Process::current(),
        }
    }

    /// The lane of a further worker of the leader's device, the `number`-th of its pool.
    pub(crate) fn of_pool(
        leader: &Arc<Lane>,
        id: u16,
        (name, number): (PoolName, usize),
        setup: &LaneSetup,
        pool: &DevicePool,
    ) -> Lane {
        let mut setup = setup.clone();
        setup.limits.queue_depth_max = pool.queue_depth_max.unwrap_or(setup.limits.queue_depth_max);
        setup.batching = pool.batching.unwrap_or(setup.batching);
        // Ops may move between the lanes of one device.
        setup.inlet.expect_lane(leader.number.saturating_add(1));
        let place = LaneSlot { id, number: leader.number };
        let trips_seen = AtomicU64::new(leader.trips.load(Ordering::Relaxed));
        Lane {
            model: Arc::clone(&leader.model),
            links: Arc::clone(&leader.links),
            gate: Arc::clone(&leader.gate),
            claims: Arc::clone(&leader.claims),
            exploring: Arc::clone(&leader.exploring),
            explored_ns: Arc::clone(&leader.explored_ns),
            suspect: Arc::clone(&leader.suspect),
            compared_ns: Arc::clone(&leader.compared_ns),
            trips: Arc::clone(&leader.trips),
            trips_seen,
            pool: Some(name),
            pool_number: number,
            leader: Some(Arc::clone(leader)),
            ..Lane::new(place, leader.info.clone(), &setup)
        }
    }

    /// Why the worker must end although nothing is wrong with it: the device was given up. `None`
    /// for the device's own worker.
    pub(crate) fn leader_trouble(&self) -> Option<Error> {
        let leader = self.leader.as_ref().filter(|leader| leader.state() == WorkerState::Failed)?;
        let lives = !matches!(self.state(), WorkerState::Failed | WorkerState::Stopped);
        let trouble = || leader.trouble.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        let unknown = || Error::DeviceUnavailable { device: self.info.id, reason: "it was given up".to_owned() };
        lives.then(|| trouble().unwrap_or_else(unknown))
    }

    /// Whether the worker's threads give way to all others.
    pub(crate) fn is_patient(&self) -> bool {
        let pool = self.pool.and_then(|name| self.pools.get(name));
        pool.is_some_and(|pool| pool.priority == PoolPriority::Patient)
    }

    /// Notes that an op has kept a worker for short ops long. The ops behind it may go elsewhere.
    pub(crate) fn note_long(&self, ran_ns: f32) {
        if self.pool == Some(PoolName::Short) && ran_ns > self.overlong_ns() {
            self.inlet.ask();
        }
    }

    /// The expected time, in nanoseconds, above which an op leaves the queue of short ops: well
    /// above the bound for entering it, so that no op goes back and forth.
    pub(crate) fn overlong_ns(&self) -> f32 {
        4.0 * self.pools.short_run_max.as_nanos() as f32
    }

    /// Makes the lane share the objects and the claims of the lane before it.
    pub(crate) fn succeeding(mut self, before: Option<&Lane>) -> Lane {
        if let Some(before) = before {
            self.objects = Arc::clone(&before.objects);
            self.claims = Arc::clone(&before.claims);
        }
        self
    }

    /// Whether an op may be sent to learn how fast the device is. One op at a time, and for a small
    /// fraction of all time, so that learning about a slow device costs no more than about a fast
    /// one.
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

    /// Sets the state without notifying listeners. Returns whether the state changed.
    pub(crate) fn put_state(&self, state: WorkerState, trouble: Option<Error>) -> bool {
        *self.trouble.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = trouble;
        self.state.swap(state as u8, Ordering::AcqRel) != state as u8
    }

    /// Stores where the worker's thread runs.
    pub(crate) fn put_placement(&self, placement: Placement) {
        *self.placement.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = placement;
    }

    pub(crate) fn tell_state(&self, state: WorkerState, trouble: Option<&Error>) {
        tell(Level::INFO, || {
            tracing::info!(target: "panoply::health", device = %self.info.id, ?state, ?trouble, "device worker");
        });
    }

    /// Refuses further ops, and ends the worker when its present ops are done.
    #[must_use = "what is foreign is called when this is dropped"]
    pub(crate) fn drain(&self) -> Vec<ClosingCalls> {
        self.mode.fetch_max(DRAIN, Ordering::AcqRel);
        self.close()
    }

    /// Refuses further ops, and makes the worker answer its present ops with
    /// [`Error::ShuttingDown`].
    #[must_use = "what is foreign is called when this is dropped"]
    pub(crate) fn abort(&self) -> Vec<ClosingCalls> {
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

    /// Refuses all ops from now on. The worker must still serve the ops that it has. Callers that
    /// wait for room are answered here, since they will never get in.
    fn close(&self) -> Vec<ClosingCalls> {
        self.shut();
        std::iter::from_fn(|| self.next_waiting()).map(|ticket| self.end(ticket, self.refusal())).collect()
    }

    /// Refuses all ops from now on, without ending any. The caller must take out the ops that wait
    /// for room.
    pub(crate) fn shut(&self) {
        [&self.normal, &self.urgent, &self.patient].iter().for_each(|line| line.close());
        self.sleeper.wake();
    }

    /// Accepts ops again, for a new worker. The caller must know that the previous worker has left,
    /// and that no other thread ends the lane's ops meanwhile. Returns false if ops are left in the
    /// lane, or if the runtime is shutting down.
    pub(crate) fn open_again(&self) -> bool {
        if self.mode.load(Ordering::Acquire) != RUN || !self.is_finished() {
            return false;
        }
        if self.leader.is_none() {
            // The health of the device, not of a worker of its pools.
            self.gate.forget();
        }
        self.put_state(WorkerState::Opening, None);
        [&self.normal, &self.urgent, &self.patient].iter().for_each(|line| line.open_again());
        true
    }

    /// Notes that another lane has taken over its slot.
    pub(crate) fn note_replaced(&self) {
        self.replaced.store(true, Ordering::Release);
    }

    /// Notes that the lane serves in its slot, as number `number` of all lanes that were put into
    /// slots.
    pub(crate) fn note_placed(&self, number: u32) {
        self.placed.store(number, Ordering::Release);
        self.replaced.store(false, Ordering::Release);
    }

    /// The number that the lane got when it was put into its slot. A later lane has a larger
    /// number.
    pub(crate) fn placed(&self) -> u32 {
        self.placed.load(Ordering::Acquire)
    }

    /// Whether another lane has taken over its slot.
    pub(crate) fn is_replaced(&self) -> bool {
        self.replaced.load(Ordering::Acquire)
    }

    /// Whether the lane still accepts ops.
    pub(crate) fn is_open(&self) -> bool {
        !self.normal.is_closed()
    }

    /// The error with which a closed lane refuses ops.
    pub(crate) fn refusal(&self) -> Error {
        let trouble = self.trouble.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match (self.state(), &*trouble) {
            (WorkerState::Failed, Some(cause)) if self.mode.load(Ordering::Acquire) == RUN => {
                Error::DeviceUnavailable { device: self.info.id, reason: cause.to_string() }
            }
            _ => Error::ShuttingDown,
        }
    }

    /// Asks the worker to compile the kernels of this op, unless it was asked before.
    pub(crate) fn ask_warm_up(&self, key: CurveKey, op: &Op) {
        if self.warm_ups.ask(key, op) {
            self.sleeper.wake();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use panoply_core::op::compute::Transpose;
    use panoply_core::{CostClass, DType, Operation, Tensor};
    use panoply_lockfree::slot::slot;

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
            opinions: None,
            leave_out: Vec::new(),
            pools: std::sync::Arc::default(),
        };
        Lane::new(LaneSlot { id: 0, number: 0 }, info, &setup)
    }

    /// A ticket for a small op, and its receiver.
    pub(crate) fn ticket() -> (OpTicket, OpReceiver) {
        let op = Transpose::new(&Tensor::zeros(DType::F32, [2, 3]).unwrap()).into_op().unwrap();
        let forecast = Forecast {
            key: CurveKey::new("transpose", Some(DType::F32), CostClass::default()),
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
        let (accepted, load_ns, keep, verify, session) = (Instant::now(), 0, false, false, false);
        let (op, seat, history) = (Some(op), None, None);
        slot(OpRequest { op, accepted, wishes, forecast, load_ns, keep, verify, session, seat, history })
    }
}
