//! Thousands of schedules under a virtual clock: clients, router, queues, batchers, workers, breakers, relay, and devices that
//! fail, hang, overheat, disappear and return, one seeded random step at a time, in one thread. A failure names its seed,
//! and the same seed fails again.
//!
//! What must hold in each of them: every op has exactly one outcome; none ran on a device that lacks it; nobody starves;
//! nothing is left on any lane's books; breakers neither flap nor stick. `PANOPLY_SCHEDULES` says how many are run.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use panoply_conformance::values::Random;
use panoply_conformance::virtual_device::{Rates, Script, VirtualBackend, VirtualControl};
use panoply_core::clock::{Clock, VirtualClock};
use panoply_core::op::compute::{Map, Reduce, Transpose};
use panoply_core::{Backend, Error, Health, Location, Op, OpenOptions, Operation, Tensor, Value};
use panoply_cpu::CpuBackend;

use crate::batcher::Batching;
use crate::device_worker::driver::{Driver, Opener, Step};
use crate::device_worker::{Lane, LaneSetup, OpAnswer, OpReceiver, WorkerLimits, WorkerState};
use crate::health::{Circuit, HealthRules};
use crate::options::{FallbackPolicy, Goal, Priority, Wishes};
use crate::relay::{Inlet, Relay};
use crate::router::{Exploration, Router};

mod uneven;

/// Schedules of a run without `PANOPLY_SCHEDULES`.
const SCHEDULES_DEFAULT: u64 = 1500;
const DEVICES: usize = 3;
const STEPS_MAX: u64 = 160;
const OPS_MAX: usize = 64;
/// How many ops that came later may be answered before one: all that were there, as often as turns go to others.
const OVERTAKEN_MAX: usize = 8 * OPS_MAX * 2;

/// One world: devices with their workers, the relay, and the clients' open questions.
struct World {
    seed: u64,
    random: Random,
    clock: Arc<VirtualClock>,
    router: Arc<Router>,
    inlet: Arc<Inlet>,
    relay: Relay,
    workers: Vec<SimulatedWorker>,
    waiting: Vec<Question>,
    /// Outputs that live on devices, to be inputs of later ops.
    kept: Vec<Tensor>,
    answered: usize,
    asked: usize,
    cancelled: usize,
    shutting_down: bool,
    tally: Tally,
}

struct Question {
    receiver: OpReceiver,
    op: &'static str,
    /// How many had been answered when it was asked.
    answered_before: usize,
}

struct SimulatedWorker {
    lane: Arc<Lane>,
    driver: Option<Driver>,
    control: Arc<VirtualControl>,
    opener: Opener,
    lacking: Option<&'static str>,
}

/// What all schedules together did, so that a run that tests nothing is noticed.
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
    /// Ops that went to an idle device before they were started.
    relieved: u64,
}

#[test]
fn every_schedule_answers_every_op_exactly_once() {
    let answers: Arc<dyn Backend> = Arc::new(CpuBackend::with_root("/nonexistent"));
    let schedules = std::env::var("PANOPLY_SCHEDULES").ok().and_then(|count| count.parse().ok());
    let mut total = Tally::default();
    for seed in 0..schedules.unwrap_or(SCHEDULES_DEFAULT) {
        let mut world = World::new(seed, &answers);
        let steps = if seed % 16 == 0 { 10 * STEPS_MAX } else { 20 + world.random.below(STEPS_MAX) };
        (0..steps).for_each(|_| world.random_step());
        if seed % 2 == 0 && !world.shutting_down {
            world.recover();
        }
        world.finish();
        total.add(&world);
    }
    println!("{total:?}");
    assert!(total.right > 10_000 && total.failed > 500 && total.cancelled > 500, "{total:?}");
    assert!(total.fallbacks > 100 && total.moved_bytes > 10_000 && total.batched > 100, "{total:?}");
    assert!(total.waited > 100 && total.relieved > 100, "{total:?}");
    assert!(total.circuits_opened > 50 && total.circuits_closed > 20 && total.hot > 50, "{total:?}");
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
        let mut workers = Vec::new();
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
                leave_out: Vec::new(),
            };
            let backend = Arc::clone(&backend) as Arc<dyn Backend>;
            let lane = router.lanes.add(&backend, |number| Lane::new(number, info, &setup)).unwrap();
            let opener = Opener { backend, options: OpenOptions::default(), clock: Arc::clone(&clock) };
            let driver = Some(Driver::new(Arc::clone(&lane), opener.clone(), clock.now()));
            workers.push(SimulatedWorker { lane, driver, control, opener, lacking: lacking[index] });
        }
        let relay = Relay::new(Arc::clone(&inlet), Arc::clone(&router), Arc::clone(&clock) as Arc<dyn Clock>);
        let (waiting, kept, tally) = (Vec::new(), Vec::new(), Tally::default());
        let (answered, asked, cancelled, shutting_down) = (0, 0, 0, false);
        World {
            seed,
            random,
            clock,
            router,
            inlet,
            relay,
            workers,
            waiting,
            kept,
            answered,
            asked,
            cancelled,
            shutting_down,
            tally,
        }
    }

    fn random_step(&mut self) {
        match self.random.below(24) {
            0..=7 => self.ask(),
            8..=15 => {
                let worker = self.random.below(DEVICES as u64) as usize;
                self.step_worker(worker);
            }
            16..=17 => _ = self.relay.step(),
            18..=19 => self.clock.advance(Duration::from_micros(self.random.below(2000))),
            20 => self.cancel(),
            21 if self.random.below(60) == 0 => self.shut_down(),
            22 if self.random.below(10) == 0 => self.replace_worker(),
            23 => self.change_weather(),
            _ => {}
        }
        self.collect();
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
                if let Some(ticket) = sent.unsent {
                    self.tally.waited += 1;
                    if let Err((ticket, error)) = sent.lane.wait_in_line(ticket) {
                        sent.lane.refuse(ticket, error);
                    }
                }
                self.waiting.push(Question { receiver: sent.receiver, op: name, answered_before: self.answered });
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
        let host = Tensor::from_slice(&[1_i32, 2, 3, 4, 5, 6], [2, 3]).unwrap();
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
            2 => wishes.prefer = Some(random.below(DEVICES as u64) as u8),
            _ => {}
        }
        wishes
    }

    fn step_worker(&mut self, index: usize) -> bool {
        let worker = &mut self.workers[index];
        let Some(driver) = &mut worker.driver else { return false };
        if driver.step(Duration::ZERO) == Step::Exit {
            worker.driver = None;
        }
        true
    }

    /// A supervisor that takes a worker for stuck and replaces it.
    fn replace_worker(&mut self) {
        let now = self.clock.now();
        let worker = &mut self.workers[self.random.below(DEVICES as u64) as usize];
        let Some(old) = &worker.driver else { return };
        let generation = old.generation();
        generation.superseded.store(true, Ordering::Release);
        let lane = Arc::clone(&worker.lane);
        let after = lane.limits.op_time_max;
        generation.flights.take_all(|ticket| lane.fail(ticket, Error::Timeout { device: lane.info.id, after }));
        let mut old = worker.driver.replace(Driver::new(lane, worker.opener.clone(), now));
        // The stuck thread comes back to find itself replaced.
        assert!(old.as_mut().is_none_or(|old| old.step(Duration::ZERO) == Step::Exit));
    }

    /// A device gets hot or cool, full or empty.
    fn change_weather(&mut self) {
        let worker = &self.workers[self.random.below(DEVICES as u64) as usize];
        let temperature = 60.0 + self.random.below(40) as f32;
        let memory = self.random.below(100) as f32;
        self.tally.hot += usize::from(worker.lane.gate.capacity() < 1.0);
        worker.control.set_health(Health {
            temperature_celsius: Some(temperature),
            memory_percent: Some(memory),
            ..Health::default()
        });
    }

    fn cancel(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let index = self.random.below(self.waiting.len() as u64) as usize;
        drop(self.waiting.swap_remove(index));
        self.cancelled += 1;
    }

    /// Takes the answers that are there.
    fn collect(&mut self) {
        let context = Context::from_waker(Waker::noop());
        let mut index = 0;
        while index < self.waiting.len() {
            let question = &mut self.waiting[index];
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

    /// Faults end. Every device that is still there must be fit again soon, and no breaker may have flapped meanwhile.
    fn recover(&mut self) {
        let start = self.clock.now();
        for worker in &self.workers {
            worker.control.heal();
            worker.control.set_health(Health::default());
        }
        self.tally.circuits_opened += self.workers.iter().map(|worker| opened(&worker.lane)).sum::<u64>();
        let sick: Vec<usize> = (0..DEVICES).filter(|index| circuit(&self.workers[*index]) != Circuit::Closed).collect();
        for round in 0..4000 {
            let well = self.workers.iter().all(|worker| {
                let gone = worker.lane.state() == WorkerState::Failed;
                gone || (circuit(worker) == Circuit::Closed && worker.lane.gate.capacity() == 1.0)
            });
            if well && round > 20 {
                break;
            }
            if self.waiting.len() < 8 {
                self.ask();
            }
            (0..DEVICES).for_each(|index| _ = self.step_worker(index));
            self.relay.step();
            self.clock.advance(Duration::from_micros(300));
            self.collect();
            assert!(round < 3999, "seed {}: a device never recovers: {:?}", self.seed, self.reports());
        }
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
            if abort { worker.lane.abort() } else { worker.lane.drain() }
        }
    }

    /// Shuts down, lets time pass until every worker has left, and checks that nothing is left behind.
    fn finish(&mut self) {
        let seed = self.seed;
        if !self.shutting_down {
            self.workers.iter().for_each(|worker| worker.lane.drain());
        }
        for round in 0.. {
            let running = (0..DEVICES).filter(|index| self.step_worker(*index)).count();
            self.relay.step();
            if running == 0 && self.inlet.count() == 0 {
                break;
            }
            self.clock.advance(Duration::from_micros(200));
            if round > 20_000 {
                self.workers.iter().for_each(|worker| worker.lane.abort());
            }
            assert!(round < 30_000, "seed {seed}: a worker never ends: {:?}", self.reports());
        }
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

    fn reports(&self) -> Vec<crate::device_worker::WorkerReport> {
        self.workers.iter().map(|worker| worker.lane.report()).collect()
    }
}

impl Tally {
    fn add(&mut self, world: &World) {
        let Tally {
            right, failed, fallbacks, moved_bytes, circuits_opened, circuits_closed, batched, hot, waited, ..
        } = &world.tally;
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
    }
}

fn circuit(worker: &SimulatedWorker) -> Circuit {
    worker.lane.gate.breaker.circuit()
}

fn opened(lane: &Lane) -> u64 {
    lane.gate.breaker.transitions().div_ceil(2)
}

/// The usual rules at the speed of the simulation.
fn rules() -> HealthRules {
    HealthRules {
        open_wait_min: Duration::from_millis(3),
        open_wait_max: Duration::from_millis(50),
        look_every: Duration::from_millis(1),
        ..HealthRules::default()
    }
}

/// The first device runs everything; of the others each may lack something.
fn random_lack(random: &mut Random, device: usize) -> Option<&'static str> {
    let ops = [None, Some("transpose"), Some("map"), Some("reduce")];
    if device == 0 { None } else { ops[random.below(4) as usize] }
}

fn random_script(random: &mut Random, seed: u64) -> Script {
    let bad = if random.below(3) == 0 { 10 } else { 1 };
    let rates = Rates {
        error: bad * random.below(30_000) as u32,
        hang: random.below(5_000) as u32,
        block: random.below(10_000) as u32,
        lost: random.below(20_000) as u32,
        // Panics print; the simulation stays quiet and leaves them to the tests with real threads.
        panic: 0,
        out_of_memory: random.below(20_000) as u32,
        forget: random.below(10_000) as u32,
        twice: random.below(20_000) as u32,
    };
    let script = Script::new()
        .latency(Duration::from_micros(random.below(300)))
        .failing_opens(random.below(3) as u32)
        .random_faults(seed, rates, Duration::from_micros(random.below(2000)));
    let script = if random.below(6) == 0 { script.gone_after_opens(1 + random.below(3)) } else { script };
    let script = if random.below(4) == 0 { script.compiles(Duration::from_micros(random.below(900))) } else { script };
    let script = if random.below(3) == 0 { script.fused() } else { script };
    let script = if random.below(2) == 0 {
        script.link(Duration::from_micros(random.below(30)), Duration::from_micros(random.below(500)))
    } else {
        script
    };
    if random.below(2) == 0 { script.resident().memory_bytes(24 * (8 + random.below(40))) } else { script }
}

fn random_limits(random: &mut Random) -> WorkerLimits {
    WorkerLimits {
        queue_depth_max: 1 + random.below(16) as usize,
        batch_max: 1 + random.below(8) as usize,
        in_flight_max: 1 + random.below(8) as usize,
        op_time_max: Duration::from_millis(2 + random.below(5)),
        reopen_wait_min: Duration::from_micros(random.below(500)),
        reopen_wait_max: Duration::from_millis(2),
        reopen_attempts_max: 1 + random.below(6) as u32,
        stuck_threads_max: 4,
    }
}

fn random_batching(random: &mut Random) -> Batching {
    let (size_max, wait_max) = (1 + random.below(6) as usize, Duration::from_micros(random.below(800)));
    match random.below(5) {
        0 => Batching::TimeOrSize { size_max, wait_max },
        1 => Batching::Adaptive { size_max, wait_max },
        2 => Batching::HighThroughput { size_max, wait_max },
        _ => Batching::LowLatency,
    }
}
