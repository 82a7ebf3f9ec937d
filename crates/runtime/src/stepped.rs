//! A runtime without threads: its holder makes the workers and the relay go on, one step at a time,
//! under a clock that may be virtual. Simulations of the layers above the runtime are made of it.
//! Programs use [`Runtime`](crate::Runtime).

use std::sync::Arc;
use std::time::Duration;

use panoply_core::clock::Clock;
use panoply_core::{Absence, Backend, Op, OpenOptions, Value};
use panoply_placement::WorkerPlace;

use crate::batcher::Batching;
use crate::device_worker::driver::{Driver, DriverStep, Opener};
use crate::device_worker::{WorkerLimits, WorkerReport};
use crate::health::HealthRules;
use crate::lane::{Inlet, Lane, LaneSetup};
use crate::options::{FallbackPolicy, RunOptions, Wishes};
use crate::pending::Pending;
use crate::relay::Relay;
use crate::router::{Exploration, Router};

/// The devices of one backend, their workers and the relay.
pub struct SteppedBackend {
    entrance: Entrance,
    relay: Relay,
    workers: Vec<SteppedWorker>,
}

struct SteppedWorker {
    lane: Arc<Lane>,
    driver: Driver,
    lives: bool,
}

/// Where ops are sent. Clones send to the same devices.
#[derive(Clone)]
pub struct Entrance {
    router: Arc<Router>,
    clock: Arc<dyn Clock>,
}

impl SteppedBackend {
    /// A runtime over the devices of `backend`. `setup` is called for each of them.
    pub fn new(
        backend: &Arc<dyn Backend>,
        clock: &Arc<dyn Clock>,
        rules: &HealthRules,
        mut setup: impl FnMut() -> (WorkerLimits, Batching),
    ) -> Result<SteppedBackend, Absence> {
        let (inlet, router) = (Arc::new(Inlet::new()), Arc::new(Router::new(Exploration::default())));
        let relay = Relay::new(Arc::clone(&inlet), Arc::clone(&router), Arc::clone(clock));
        let mut workers = Vec::new();
        for info in backend.discover()? {
            let (limits, batching) = setup();
            let setup = LaneSetup {
                limits,
                rules: rules.clone(),
                batching,
                inlet: Arc::clone(&inlet),
                clock: Arc::clone(clock),
                epoch: clock.now(),
                opinions: None,
                leave_out: Vec::new(),
                pools: Arc::default(),
            };
            // A device beyond the most that one runtime serves is left out.
            let Ok(lane) = router.lanes.add(backend, |place| Lane::new(place, info, &setup)) else { break };
            let opener = Opener {
                backend: Arc::clone(backend),
                options: OpenOptions::default(),
                clock: Arc::clone(clock),
                place: WorkerPlace::default(),
            };
            let driver = Driver::new(Arc::clone(&lane), opener, clock.now());
            workers.push(SteppedWorker { lane, driver, lives: true });
        }
        Ok(SteppedBackend { entrance: Entrance { router, clock: Arc::clone(clock) }, relay, workers })
    }

    /// Where ops are sent.
    pub fn entrance(&self) -> Entrance {
        self.entrance.clone()
    }

    /// Makes the worker of one device take a step, unless it has ended.
    pub fn step_worker(&mut self, device: usize) {
        if let Some(worker) = self.workers.get_mut(device).filter(|worker| worker.lives) {
            worker.lives = worker.driver.step(Duration::ZERO) != DriverStep::Exit;
        }
    }

    /// Makes the relay take a step.
    pub fn step_relay(&mut self) {
        self.relay.step();
    }

    /// The report of each device's worker.
    pub fn reports(&self) -> Vec<WorkerReport> {
        self.workers.iter().map(|worker| worker.lane.report()).collect()
    }
}

impl Entrance {
    /// Sends an op to the device that the router chooses. It waits in line where that device's
    /// queue is full. Of the options only `to_host` counts.
    pub fn send(&self, op: Op, options: &RunOptions) -> Pending<Value> {
        let wishes = Wishes { to_host: options.to_host, ..Wishes::none(FallbackPolicy::Alternate) };
        self.try_send(op, wishes, true)
    }

    /// Sends an op to one device and nowhere else, with its answer on the host. A device that is
    /// being reopened, or is full, refuses it.
    pub fn send_to(&self, device: usize, op: Op) -> Pending<Value> {
        let alone = Wishes::none(FallbackPolicy::None);
        let wishes = Wishes { allowed: 1 << device, pinned: true, to_host: true, ..alone };
        self.try_send(op, wishes, false)
    }

    fn try_send(&self, op: Op, wishes: Wishes, may_wait: bool) -> Pending<Value> {
        let bytes = op.input_bytes();
        match self.router.send(op, wishes, self.clock.now(), may_wait) {
            Ok(sent) => Pending::sent(sent.receiver, sent.lane, sent.unsent, None, bytes, None, Ok),
            Err(error) => Pending::refused(error, Ok),
        }
    }
}
