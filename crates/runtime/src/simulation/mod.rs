//! Thousands of schedules under a virtual clock: clients, router, queues, batchers, workers,
//! breakers, relay, and devices that fail, hang, overheat, disappear and return. One seeded random
//! step at a time, in one thread. A failure reports its seed, and the same seed fails again.
//!
//! Every call into foreign code (an engine's methods and its destructor, wakers, owners'
//! destructors) may panic, and may keep its caller while the world goes on: a supervisor then
//! replaces the driver that is inside, the replacement works, and the first driver comes back late.
//! None of its later actions may be visible on its lane.
//!
//! Invariants of every schedule: every op has exactly one outcome; no op ran on a device that lacks
//! it; no op starves; nothing is left on any lane's books; breakers neither flap nor stick.
//! `PANOPLY_SCHEDULES` sets the number of schedules.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use panoply_conformance::values::Random;
use panoply_conformance::virtual_device::{Script, VirtualBackend, VirtualControl};
use panoply_core::clock::{Clock, VirtualClock};
use panoply_core::op::compute::{Map, Reduce, Transpose};
use panoply_core::{Backend, Error, Health, Location, MemoryUse, Op, OpenOptions, Operation, Tensor, Value};
use panoply_cpu::CpuBackend;
use panoply_placement::WorkerPlace;

use crate::device_worker::driver::{Driver, Opener};
use crate::device_worker::visit::Generation;
use crate::health::Circuit;
use crate::lane::Inlet;
use crate::lane::{Lane, LaneSetup, OpAnswer, OpReceiver, PlaceInLine, WorkerState};
use crate::options::{FallbackPolicy, Goal, Priority, Wishes};
use crate::relay::Relay;
use crate::router::{Exploration, Router};

mod hooks;
mod overtaking;
mod setup;
mod steps;
mod trace;
mod uneven;

use panoply_lockfree::foreign::discard;
use setup::{add_pools, random_batching, random_lack, random_limits, random_pools, random_script, rules};
use steps::{finish, misbehave, random_step, recover};

/// The number of schedules without `PANOPLY_SCHEDULES`.
const SCHEDULES_DEFAULT: u64 = 3_000;
/// The deepest nesting of stuck calls.
const DEPTH_MAX: usize = 3;
const DEVICES: usize = 3;
const STEPS_MAX: u64 = 160;
const OPS_MAX: usize = 64;
/// The largest number of later ops that may be answered before an op: all present ones, as often as
/// turns go to others.
const OVERTAKEN_MAX: usize = 8 * OPS_MAX * 2;

/// One world: devices with their workers, the relay, and the clients' open questions.
struct World {
    seed: u64,
    random: Random,
    clock: Arc<VirtualClock>,
    router: Arc<Router>,
    inlet: Arc<Inlet>,
    /// `None` while it is in a step.
    relay: Option<Relay>,
    workers: Vec<SimulatedWorker>,
    waiting: Vec<Question>,
    /// Outputs that live on devices and become inputs of later ops.
    kept: Vec<Tensor>,
    answered: usize,
    asked: usize,
    cancelled: usize,
    shutting_down: bool,
    /// The workers whose drivers are in a step, each inside a call of the one before it.
    stepping: Vec<usize>,
    /// The lane of the innermost worker, as it was when a stuck call of its driver returned.
    seen: Option<LaneSnapshot>,
    tally: Tally,
}

/// The world as it is shared with code that runs during its calls.
type SharedWorld = Rc<RefCell<World>>;

/// The state of a lane that a replaced driver must leave unchanged.
#[derive(Clone, Debug, PartialEq)]
struct LaneSnapshot {
    state: WorkerState,
    trouble: Option<Error>,
    queued: usize,
    waiting: usize,
    accepted: u64,
    reopened: u64,
}

struct Question {
    receiver: OpReceiver,
    lane: Arc<Lane>,
    place: Option<PlaceInLine>,
    waker: std::task::Waker,
    op: &'static str,
    /// How many ops had been answered when this one was asked.
    answered_before: usize,
}

struct SimulatedWorker {
    lane: Arc<Lane>,
    /// `None` while the driver is in a step, and after it has ended.
    driver: Option<Driver>,
    /// The generation that acts for the device. `None` after it has ended.
    current: Option<Arc<Generation>>,
    /// The generations that were replaced while their threads are still inside a call.
    stuck: Vec<Arc<Generation>>,
    control: Arc<VirtualControl>,
    opener: Opener,
    lacking: Option<&'static str>,
}

/// The totals of all schedules, so that a run that tests nothing is noticed.
#[derive(Debug, Default)]
struct Tally {
    right: usize,
    failed: usize,
    cancelled: usize,
    fallbacks: usize,
    moved_bytes: u64,
    circuits_opened: u64,
    circuits_closed: usize,
    batched: usize,
    hot: usize,
    /// Ops whose callers waited for room in a full queue.
    waited: usize,
    /// Ops that moved to an idle device before they were started.
    relieved: u64,
    /// Ops that workers of pools accepted.
    pooled: u64,
    /// Drivers that returned from a call after they were replaced, and threads that died.
    replaced: usize,
    died: usize,
    /// Calls that were stuck, and panics of foreign code.
    stuck: usize,
    panics: u64,
}

#[test]
fn every_schedule_answers_every_op_exactly_once() {
    let answers: Arc<dyn Backend> = Arc::new(CpuBackend::with_root("/nonexistent"));
    let schedules = std::env::var("PANOPLY_SCHEDULES").ok().and_then(|count| count.parse().ok());
    let schedules = schedules.unwrap_or(SCHEDULES_DEFAULT);
    let mut total = Tally::default();
    for seed in 0..schedules {
        let world = Rc::new(RefCell::new(World::new(seed, &answers)));
        misbehave(&world, seed);
        let steps = world.borrow_mut().random_steps();
        (0..steps).for_each(|_| random_step(&world));
        let recovers = seed % 2 == 0 && !world.borrow().shutting_down;
        if recovers {
            recover(&world);
        }
        finish(&world);
        total.add(&world.borrow());
    }
    total.panics = hooks::panics();
    println!("{total:?}");
    let enough = |count: u64, of_thousand: u64| count * 1000 > schedules * of_thousand;
    let Tally { right, failed, cancelled, fallbacks, batched, hot, waited, replaced, died, stuck, .. } = total;
    let counts = [right, failed, cancelled, fallbacks, batched, hot, waited, replaced, died, stuck].map(|n| n as u64);
    assert!(
        counts.iter().zip([6000, 300, 300, 60, 60, 30, 60, 200, 20, 500]).all(|(n, of)| enough(*n, of)),
        "{total:?}"
    );
    assert!(enough(total.moved_bytes, 6000) && enough(total.relieved, 60) && enough(total.panics, 500), "{total:?}");
    assert!(enough(total.pooled, 300), "{total:?}");
    assert!(enough(total.circuits_opened, 30) && enough(total.circuits_closed as u64, 10), "{total:?}");
}

impl SimulatedWorker {
    /// Installs a new driver.
    fn start(&mut self, now: std::time::Instant) {
        let driver = Driver::new(Arc::clone(&self.lane), self.opener.clone(), now);
        self.current = Some(driver.generation());
        self.driver = Some(driver);
    }
}

impl World {
    fn new(seed: u64, answers: &Arc<dyn Backend>) -> World {
        let mut random = Random::new(seed);
        let clock = Arc::new(VirtualClock::new());
        let lacking: Vec<_> = (0..DEVICES).map(|device| random_lack(&mut random, device)).collect();
        let script = |(device, lacking): (usize, &Option<&'static str>)| {
            let script = random_script(&mut random, seed * DEVICES as u64 + device as u64);
            lacking.iter().fold(script, |script, op| script.without(op))
        };
        let scripts: Vec<Script> = lacking.iter().enumerate().map(script).collect();
        let backend = scripts.into_iter().fold(VirtualBackend::new(Arc::clone(answers)), VirtualBackend::device);
        let backend = Arc::new(backend.clock(Arc::clone(&clock) as Arc<dyn Clock>));
        let inlet = Arc::new(Inlet::new());
        let router = Arc::new(Router::new(Exploration::default()));
        let pools = Arc::new(random_pools(&mut random, &backend.discover().unwrap()));
        let (mut workers, mut of_pools) = (Vec::new(), Vec::new());
        for (index, info) in backend.discover().unwrap().into_iter().enumerate() {
            let control = backend.control(index).unwrap();
            let clock = Arc::clone(&clock) as Arc<dyn Clock>;
            let setup = LaneSetup {
                limits: random_limits(&mut random),
                rules: rules(),
                batching: random_batching(&mut random),
                inlet: Arc::clone(&inlet),
                clock: Arc::clone(&clock),
                epoch: clock.now(),
                opinions: None,
                leave_out: Vec::new(),
                pools: Arc::clone(&pools),
            };
            let backend: Arc<dyn Backend> = Arc::new(hooks::Misbehaving(Arc::clone(&backend) as Arc<dyn Backend>));
            let lane = router.lanes.add(&backend, |number| Lane::new(number, info, &setup)).unwrap();
            let opener = Opener {
                backend,
                options: OpenOptions::default(),
                clock: Arc::clone(&clock),
                place: WorkerPlace::default(),
            };
            let start = |lane| {
                let (driver, current, stuck, lacking) = (None, None, Vec::new(), lacking[index]);
                let (control, opener) = (Arc::clone(&control), opener.clone());
                let mut worker = SimulatedWorker { lane, driver, current, stuck, control, opener, lacking };
                worker.start(clock.now());
                worker
            };
            of_pools.extend(add_pools(&router, &lane, &setup).into_iter().map(start));
            workers.push(start(lane));
        }
        // Devices have the first places.
        workers.append(&mut of_pools);
        let relay = Some(Relay::new(Arc::clone(&inlet), Arc::clone(&router), Arc::clone(&clock) as Arc<dyn Clock>));
        World {
            seed,
            random,
            clock,
            router,
            inlet,
            relay,
            workers,
            waiting: Vec::new(),
            kept: Vec::new(),
            answered: 0,
            asked: 0,
            cancelled: 0,
            shutting_down: false,
            stepping: Vec::new(),
            seen: None,
            tally: Tally::default(),
        }
    }

    fn random_steps(&mut self) -> u64 {
        if self.seed.is_multiple_of(16) { 10 * STEPS_MAX } else { 20 + self.random.below(STEPS_MAX) }
    }

    /// How many steps the world takes while a call is stuck, and whether a supervisor looks. `None`
    /// if too many calls are stuck already.
    fn get_stuck(&mut self) -> Option<(u64, bool)> {
        if self.stepping.is_empty() || self.stepping.len() > DEPTH_MAX {
            return None;
        }
        self.tally.stuck += 1;
        Some((self.random.below(24), self.random.below(4) > 0))
    }

    /// Records the lane of the driver whose call returns, to detect later changes by a replaced
    /// driver.
    fn see(&mut self) {
        self.seen = self.stepping.last().map(|index| self.sight(*index));
    }

    fn sight(&self, index: usize) -> LaneSnapshot {
        let report = self.workers[index].lane.report();
        LaneSnapshot {
            state: report.state,
            trouble: report.trouble,
            queued: report.queued,
            waiting: report.waiting,
            accepted: report.counters.accepted,
            reopened: report.counters.reopened,
        }
    }

    fn pass_time(&mut self) {
        self.clock.advance(Duration::from_micros(self.random.below(2000)));
    }

    fn maybe_shut_down(&mut self) {
        if self.random.below(60) == 0 {
            self.shut_down();
        }
    }

    fn ask(&mut self) {
        if self.waiting.len() >= OPS_MAX {
            return;
        }
        let now = self.clock.now();
        let (name, op) = self.random_op();
        let wishes = self.random_wishes();
        let may_wait = self.random.below(3) == 0;
        match self.router.send(op, wishes, now, may_wait) {
            Ok(sent) => {
                self.asked += 1;
                let mut place = None;
                if let Some(ticket) = sent.unsent {
                    self.tally.waited += 1;
                    match sent.lane.wait_in_line(ticket) {
                        Ok(waits) => place = Some(waits),
                        Err((ticket, error)) => sent.lane.refuse(ticket, error),
                    }
                }
                let (receiver, lane) = (sent.receiver, sent.lane);
                let (waker, answered_before) = (hooks::waker(), self.answered);
                self.waiting.push(Question { receiver, lane, place, waker, op: name, answered_before });
            }
            Err(error) => {
                let expected = matches!(
                    error,
                    Error::Busy { .. }
                        | Error::ShuttingDown
                        | Error::DeviceUnavailable { .. }
                        | Error::Unsupported { .. }
                );
                assert!(expected, "seed {}: {error:?}", self.seed);
            }
        }
    }

    fn random_op(&mut self) -> (&'static str, Op) {
        let host = hooks::matrix();
        let input = match self.kept.len() as u64 {
            count if count > 0 && self.random.below(3) == 0 => self.kept[self.random.below(count) as usize].clone(),
            _ => host,
        };
        match self.random.below(3) {
            0 => ("transpose", Transpose::new(&input).into_op().unwrap()),
            1 => ("map", Map::add(&input, &input).into_op().unwrap()),
            _ => ("reduce", Reduce::sum(&input).into_op().unwrap()),
        }
    }

    fn random_wishes(&mut self) -> Wishes {
        let policies = [
            FallbackPolicy::None,
            FallbackPolicy::Retry { times: 2 },
            FallbackPolicy::Alternate,
            FallbackPolicy::Alternate,
            FallbackPolicy::Cpu,
        ];
        let goals = [Goal::Soonest, Goal::Latency, Goal::Throughput, Goal::Energy];
        let priorities = [Priority::Normal, Priority::Normal, Priority::Urgent, Priority::Patient];
        let random = &mut self.random;
        let mut wishes = Wishes::none(policies[random.below(5) as usize]);
        wishes.goal = goals[random.below(4) as usize];
        wishes.priority = priorities[random.below(4) as usize];
        wishes.to_host = random.below(4) == 0;
        wishes.explain = random.below(8) == 0;
        if random.below(4) == 0 {
            wishes.deadline = Some(self.clock.now() + Duration::from_micros(random.below(3000)));
        }
        match random.below(10) {
            0 => {
                wishes.allowed = 1 << random.below(DEVICES as u64);
                wishes.pinned = true;
                wishes.policy = FallbackPolicy::None;
            }
            1 => wishes.allowed = !(1 << random.below(DEVICES as u64)),
            2 => wishes.prefer = Some(random.below(DEVICES as u64) as u16),
            _ => {}
        }
        wishes
    }

    /// Makes a device hot or cool, full or empty.
    fn change_weather(&mut self) {
        let worker = &self.workers[self.random.below(DEVICES as u64) as usize];
        let temperature = 60.0 + self.random.below(40) as f32;
        let memory = self.random.below(100);
        self.tally.hot += usize::from(worker.lane.gate.capacity() < 1.0);
        worker.control.set_health(Health {
            temperature_celsius: Some(temperature),
            memory: Some(MemoryUse::new(100, 100 - memory)),
            ..Health::default()
        });
    }

    /// Takes the answers that have arrived.
    fn collect(&mut self) {
        let mut index = 0;
        while index < self.waiting.len() {
            let question = &mut self.waiting[index];
            // One waker for each op, as a task of an executor has.
            let context = Context::from_waker(&question.waker);
            match question.receiver.poll(&context) {
                Poll::Pending => {
                    let overtaken = self.answered - question.answered_before;
                    assert!(overtaken <= OVERTAKEN_MAX, "seed {}: an op starves", self.seed);
                    index += 1;
                }
                Poll::Ready(answer) => {
                    let again = question.receiver.poll(&context).map(|again| again.is_none());
                    assert_eq!(again, Poll::Ready(true), "seed {}: once", self.seed);
                    let question = self.waiting.swap_remove(index);
                    self.answered += 1;
                    self.check_answer(answer, &question);
                    discard(question);
                }
            }
        }
    }

    fn check_answer(&mut self, answer: Option<OpAnswer>, question: &Question) {
        let seed = self.seed;
        let outcome = match answer {
            Some(Ok(outcome)) => outcome,
            Some(Err(error)) => {
                assert_ne!(error, Error::Cancelled, "seed {seed}: nobody cancelled this one");
                self.tally.failed += 1;
                return;
            }
            None => panic!("seed {seed}: an op was abandoned"),
        };
        let worker = &self.workers[outcome.report.device.index as usize];
        assert_ne!(worker.lacking, Some(question.op), "seed {seed}: on a device that lacks it");
        assert!(outcome.report.attempts == 1 || outcome.report.fallback.is_some(), "seed {seed}: a silent fallback");
        assert!(outcome.report.predicted.is_some(), "seed {seed}");
        self.tally.right += 1;
        self.tally.fallbacks += usize::from(outcome.report.fallback.is_some());
        self.tally.moved_bytes += outcome.report.bytes_moved;
        self.tally.batched += usize::from(outcome.report.batch_size > 1);
        if let Value::Tensor(tensor) = outcome.output
            && tensor.location() != Location::Host
            && tensor.shape().rank() == 2
        {
            if self.kept.len() >= 4 {
                self.kept.remove(0);
            }
            self.kept.push(tensor);
        }
    }

    /// Ends the faults. Returns the time, and the devices whose circuits are not closed.
    fn heal(&mut self) -> (std::time::Instant, Vec<usize>) {
        for worker in &self.workers {
            worker.control.heal();
            worker.control.set_health(Health::default());
        }
        self.tally.circuits_opened += self.workers.iter().map(|worker| opened(&worker.lane)).sum::<u64>();
        let sick = (0..DEVICES).filter(|index| circuit(&self.workers[*index]) != Circuit::Closed).collect();
        (self.clock.now(), sick)
    }

    fn is_well(&self) -> bool {
        self.workers.iter().all(|worker| {
            let gone = worker.lane.state() == WorkerState::Failed || worker.lane.leader_trouble().is_some();
            gone || (circuit(worker) == Circuit::Closed && worker.lane.gate.capacity() == 1.0)
        })
    }

    fn check_recovery(&mut self, start: std::time::Instant, sick: &[usize]) {
        let closed = |index: &&usize| circuit(&self.workers[**index]) == Circuit::Closed;
        self.tally.circuits_closed += sick.iter().filter(closed).count();
        let time = self.clock.now() - start;
        for worker in &self.workers {
            // Each opening waits at least the shortest wait, and half-opens and closes once.
            let most = 3 + 3 * ((time.as_micros() + 1_000_000) / rules().open_wait_min.as_micros()) as u64;
            assert!(worker.lane.gate.breaker.transitions() <= most, "seed {}: a breaker flaps", self.seed);
        }
    }

    fn shut_down(&mut self) {
        self.shutting_down = true;
        let abort = self.random.below(2) == 0;
        for worker in &self.workers {
            drop(if abort { worker.lane.abort() } else { worker.lane.drain() });
        }
    }

    /// Checks that nothing is left behind.
    fn check_end(&mut self) {
        let seed = self.seed;
        self.inlet.close();
        self.collect();
        assert_eq!(self.waiting.len(), 0, "seed {seed}: an op was never answered");
        assert_eq!(self.asked, self.answered + self.cancelled, "seed {seed}");
        self.kept.clear();
        for worker in &self.workers {
            let lane = &worker.lane;
            let report = lane.report();
            let counters = report.counters;
            let ended = counters.completed + counters.failed + counters.cancelled + counters.moved;
            assert_eq!(counters.accepted, ended, "seed {seed}: {report:?}");
            assert_eq!((report.queued, report.waiting), (0, 0), "seed {seed}: somebody still waits");
            assert_eq!(lane.backlog_ns(), 0, "seed {seed}: something is left on the books");
            assert_eq!(lane.exploring.load(Ordering::Relaxed), 0, "seed {seed}: an explorer never came back");
            assert_eq!(lane.gate.breaker.probes_out(), 0, "seed {seed}: a probe never came back");
            assert_eq!(worker.control.counters().live_bytes, 0, "seed {seed}: device memory leaks");
        }
    }

    fn reports(&self) -> Vec<crate::lane::WorkerReport> {
        self.workers.iter().map(|worker| worker.lane.report()).collect()
    }
}

impl Tally {
    fn add(&mut self, world: &World) {
        let Tally {
            right, failed, fallbacks, moved_bytes, circuits_opened, circuits_closed, batched, hot, waited, ..
        } = &world.tally;
        self.replaced += world.tally.replaced;
        self.died += world.tally.died;
        self.stuck += world.tally.stuck;
        self.right += right;
        self.failed += failed;
        self.cancelled += world.cancelled;
        self.fallbacks += fallbacks;
        self.moved_bytes += moved_bytes;
        self.circuits_opened += circuits_opened;
        self.circuits_closed += circuits_closed;
        self.batched += batched;
        self.hot += hot;
        self.waited += waited;
        let relieved = |worker: &SimulatedWorker| worker.lane.report().counters.relieved;
        self.relieved += world.workers.iter().map(relieved).sum::<u64>();
        let of_pools = world.workers.iter().filter(|worker| worker.lane.pool.is_some());
        self.pooled += of_pools.map(|worker| worker.lane.report().counters.accepted).sum::<u64>();
    }
}

fn circuit(worker: &SimulatedWorker) -> Circuit {
    worker.lane.gate.breaker.circuit()
}

fn opened(lane: &Lane) -> u64 {
    lane.gate.breaker.transitions().div_ceil(2)
}
