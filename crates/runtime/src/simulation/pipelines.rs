//! Pipelines in seeded schedules: a random pipeline over virtual devices that fail, hang and
//! disappear in mid-stream. Each random step is a step of a stage, a device's worker or the relay,
//! under a virtual clock. Some futures never answer; runs are paused, drained and cancelled. Each
//! item that was taken comes out exactly once, in order if requested, or is a dead letter or left
//! out, and no memory of a device leaks. `PANOPLY_PIPELINE_SCHEDULES` sets the number of schedules.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use panoply_conformance::values::Random;
use panoply_conformance::virtual_device::{Fault, Rates, Script, VirtualBackend, VirtualControl};
use panoply_core::clock::{Clock, VirtualClock};
use panoply_core::op::compute::{Map, Transpose};
use panoply_core::{Backend, Op, OpenOptions, Operation, Tensor, Value};
use panoply_cpu::CpuBackend;

use super::setup::{random_batching, random_limits, rules};
use crate::device_worker::driver::{Driver, Opener};
use crate::lane::{Inlet, Lane, LaneSetup};
use crate::options::{FallbackPolicy, RunOptions, Wishes};
use crate::pending::{Pending, PendingOutcome};
use crate::pipeline::builder::Builder;
use crate::pipeline::ends::Start;
use crate::pipeline::link::Runs;
use crate::pipeline::machine::Machine;
use crate::pipeline::stage::Step;
use crate::pipeline::{ErrorPolicy, Pipeline, PipelineError};
use crate::relay::Relay;
use crate::router::{Exploration, Router};

const SCHEDULES_DEFAULT: u64 = 1500;
const DEVICES: usize = 3;

/// The totals of all schedules, so that a run that tests nothing is noticed.
#[derive(Debug, Default)]
struct Tally {
    finished: u64,
    cancelled: u64,
    drained: u64,
    unanswered: u64,
    out: u64,
    skipped: u64,
    dead: u64,
    replaced: u64,
    retried: u64,
    unordered: u64,
}

/// A runtime without threads.
struct Runner {
    router: Arc<Router>,
    clock: Arc<VirtualClock>,
}

impl Runs for Runner {
    fn send(&self, op: Op, options: RunOptions) -> PendingOutcome<Value> {
        let wishes = Wishes { to_host: options.to_host, ..Wishes::none(FallbackPolicy::Alternate) };
        let bytes = op.input_bytes();
        match self.router.send(op, wishes, self.clock.now(), true) {
            Ok(sent) => Pending::sent(sent.receiver, sent.lane, sent.unsent, None, bytes, Ok).with_report(),
            Err(error) => Pending::refused(error, Ok).with_report(),
        }
    }
}

/// The devices, their workers and the relay.
struct Devices {
    clock: Arc<VirtualClock>,
    router: Arc<Router>,
    relay: Relay,
    drivers: Vec<(Driver, bool)>,
    lanes: Vec<Arc<Lane>>,
    controls: Vec<Arc<VirtualControl>>,
}

impl Devices {
    fn new(random: &mut Random, seed: u64, answers: &Arc<dyn Backend>) -> Devices {
        let clock = Arc::new(VirtualClock::new());
        let scripts: Vec<Script> = (0..DEVICES).map(|device| script(random, seed * 8 + device as u64)).collect();
        let backend = scripts.into_iter().fold(VirtualBackend::new(Arc::clone(answers)), VirtualBackend::device);
        let backend = Arc::new(backend.clock(Arc::clone(&clock) as Arc<dyn Clock>));
        let (inlet, router) = (Arc::new(Inlet::new()), Arc::new(Router::new(Exploration::default())));
        let virtual_time = Arc::clone(&clock) as Arc<dyn Clock>;
        let relay = Relay::new(Arc::clone(&inlet), Arc::clone(&router), Arc::clone(&virtual_time));
        let mut devices =
            Devices { clock, router, relay, drivers: Vec::new(), lanes: Vec::new(), controls: Vec::new() };
        for (index, info) in backend.discover().unwrap().into_iter().enumerate() {
            devices.controls.push(backend.control(index).unwrap());
            let setup = LaneSetup {
                limits: random_limits(random),
                rules: rules(),
                batching: random_batching(random),
                inlet: Arc::clone(&inlet),
                clock: Arc::clone(&virtual_time),
                epoch: virtual_time.now(),
                opinions: None,
                leave_out: Vec::new(),
            };
            let backend = Arc::clone(&backend) as Arc<dyn Backend>;
            let lane = devices.router.lanes.add(&backend, |number| Lane::new(number, info, &setup)).unwrap();
            let opener = Opener { backend, options: OpenOptions::default(), clock: Arc::clone(&virtual_time) };
            devices.drivers.push((Driver::new(Arc::clone(&lane), opener, virtual_time.now()), true));
            devices.lanes.push(lane);
        }
        devices
    }

    fn step(&mut self, index: usize) {
        let (driver, lives) = &mut self.drivers[index];
        if *lives && driver.step(Duration::ZERO) == crate::device_worker::driver::Step::Exit {
            *lives = false;
        }
    }

    /// Gives every device an op, so that it releases freed memory, and checks that none is left.
    fn expect_free_memory(&mut self, seed: u64) {
        // Smaller than the tensors that a pipeline keeps, since its own output may still be there.
        let row = Tensor::from_vec(vec![0.0_f32], [1, 1]).unwrap();
        let mut receivers = Vec::new();
        for round in 0.. {
            for lane in 0..DEVICES {
                let wishes =
                    Wishes { allowed: 1 << lane, pinned: true, to_host: true, ..Wishes::none(FallbackPolicy::None) };
                let op = Transpose::new(&row).into_op().unwrap();
                // A device that is being reopened refuses the op, and holds no memory.
                receivers.extend(self.router.send(op, wishes, self.clock.now(), false).ok().map(|sent| sent.receiver));
            }
            (0..10).for_each(|_| self.step_all(Duration::from_micros(300)));
            receivers.retain(|receiver| !receiver.is_done());
            let left: Vec<u64> = self.controls.iter().map(|control| control.counters().live_bytes).collect();
            if left.iter().all(|bytes| *bytes <= 4) && receivers.is_empty() {
                return;
            }
            assert!(round < 2000, "seed {seed}: {left:?} bytes stay on the devices");
        }
    }

    fn step_all(&mut self, time: Duration) {
        (0..DEVICES).for_each(|index| self.step(index));
        self.relay.step();
        self.clock.advance(time);
    }
}

/// A device that fails from time to time.
fn script(random: &mut Random, seed: u64) -> Script {
    let bad = if random.below(3) == 0 { 10 } else { 1 };
    let rates = Rates {
        error: bad * random.below(30_000) as u32,
        hang: random.below(3_000) as u32,
        lost: bad * random.below(30_000) as u32,
        out_of_memory: random.below(10_000) as u32,
        ..Rates::default()
    };
    let script = Script::new().latency(Duration::from_micros(random.below(200)));
    let script = script.random_faults(seed, rates, Duration::ZERO);
    let script = if random.below(6) == 0 { script.gone_after_opens(1 + random.below(3)) } else { script };
    if random.below(4) > 0 { script.resident() } else { script }
}

/// A pipeline with random stages. Every stage leaves the numbers unchanged.
fn pipeline(random: &mut Random, devices: &Devices, items: u64) -> (Pipeline<Vec<u64>>, bool) {
    let start: Start = Pipeline::builder().threads(2).dead_letters(usize::MAX);
    let mut builder = start.source(0..items).ring(depth(random));
    let mut ordered = true;
    for _ in 0..1 + random.below(4) {
        builder = match random.below(8) {
            0 => builder.map("same", |number| number).parallel(1 + random.below(3) as usize).ring(depth(random)),
            1 => builder.batch(1 + random.below(5) as usize).ring(depth(random)).unbatch().ring(depth(random)),
            2 => {
                let flaky = std::sync::atomic::AtomicU64::new(random.below(1000));
                let policy = [ErrorPolicy::skip(), ErrorPolicy::dead_letters().retry(1, Duration::from_micros(50))];
                let fails = move |number: &u64| match flaky.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % 13 {
                    0 | 1 => Err("now and then"),
                    _ => Ok(*number),
                };
                builder.try_map("flaky", fails).on_error(policy[random.below(2) as usize]).ring(depth(random))
            }
            3 => {
                let (one, other) = (depth(random), depth(random));
                let left = ops(random, devices, true);
                let joined = builder.fork(
                    move |branch| branch.map("left", |number| number).ring(one).filter("most", |n| n % 11 != 5),
                    move |branch| left(branch).ring(other),
                );
                joined.map("pair", |(one, other)| {
                    assert_eq!(one, other, "the same item of both branches");
                    one
                })
            }
            4 => {
                let policy = ErrorPolicy::skip().retry(random.below(2) as u32, Duration::from_micros(30));
                let asks = builder.then("asks", asked).time_max(Duration::from_micros(100 + random.below(400)));
                asks.in_flight(depth(random)).on_error(policy).ring(depth(random))
            }
            kind => {
                ordered &= kind != 5;
                ops(random, devices, kind != 5)(builder).ring(depth(random))
            }
        };
        if random.below(12) == 0 {
            ordered = false;
            builder = builder.map("any order", |number| number).parallel(2).unordered();
        }
    }
    (builder.collect(), ordered)
}

fn depth(random: &mut Random) -> usize {
    1 + random.below(5) as usize
}

type Answer = Pin<Box<dyn Future<Output = Result<u64, &'static str>> + Send>>;

/// A future that answers at its first poll, at its second, or never.
fn asked(number: &u64) -> Answer {
    let (number, mut polls) = (*number, *number % 3);
    if number % 9 == 4 {
        return Box::pin(std::future::pending());
    }
    Box::pin(std::future::poll_fn(move |context| {
        context.waker().wake_by_ref();
        polls = polls.saturating_sub(1);
        if polls == 0 { Poll::Ready(Ok(number)) } else { Poll::Pending }
    }))
}

type Ops = Box<dyn FnOnce(Builder<u64>) -> Builder<u64>>;

/// A chain of one to three ops that leave the number unchanged.
fn ops(random: &mut Random, devices: &Devices, ordered: bool) -> Ops {
    let runner = Arc::new(Runner { router: Arc::clone(&devices.router), clock: Arc::clone(&devices.clock) });
    let (links, in_flight) = (random.below(3), depth(random));
    let policy = ErrorPolicy::dead_letters().retry(random.below(2) as u32, Duration::from_micros(20));
    Box::new(move |builder| {
        let rows = builder.map("row", |number| Tensor::from_vec(vec![number as f32; 2], [1, 2]).unwrap()).ring(2);
        let run = Arc::clone(&runner) as Arc<dyn Runs>;
        let mut rows = rows.op_link::<Transpose, _>("turn", run, |row| Ok(Transpose::new(row)));
        rows = rows.in_flight(in_flight).on_error(policy);
        for _ in 0..links {
            let run = Arc::clone(&runner) as Arc<dyn Runs>;
            rows = rows.op_link::<Map, _>("twice", run, |row| Ok(Map::add(row, row)));
            rows = rows.in_flight(in_flight).on_error(policy);
        }
        let rows = if ordered { rows } else { rows.unordered() };
        rows.map("read", move |row| (row.as_slice::<f32>().unwrap()[0] as u64) >> links)
    })
}

#[test]
fn every_item_comes_out_once_whatever_the_devices_do() {
    let answers: Arc<dyn Backend> = Arc::new(CpuBackend::with_root("/nonexistent"));
    let schedules = std::env::var("PANOPLY_PIPELINE_SCHEDULES").ok().and_then(|count| count.parse().ok());
    let schedules = schedules.unwrap_or(SCHEDULES_DEFAULT);
    let mut tally = Tally::default();
    for seed in 0..schedules {
        run(seed, &answers, &mut tally);
    }
    println!("{tally:?}");
    let enough = |count: u64, of_thousand: u64| count * 1000 >= schedules * of_thousand;
    assert!(enough(tally.finished, 700) && enough(tally.cancelled, 20) && enough(tally.unordered, 50), "{tally:?}");
    assert!(enough(tally.out, 8000) && enough(tally.replaced, 200) && enough(tally.skipped, 300), "{tally:?}");
    assert!(enough(tally.dead, 10) && enough(tally.retried, 100), "{tally:?}");
    assert!(enough(tally.drained, 10) && enough(tally.unanswered, 100), "{tally:?}");
}

fn run(seed: u64, answers: &Arc<dyn Backend>, tally: &mut Tally) {
    let mut random = Random::new(seed);
    let mut devices = Devices::new(&mut random, seed, answers);
    let items = random.below(40);
    let (mut pipeline, ordered) = pipeline(&mut random, &devices, items);
    pipeline.plan.clock = Arc::clone(&devices.clock) as Arc<dyn Clock>;
    let Pipeline { plan, mut output } = pipeline;
    let machine = plan.machine().unwrap();
    let cancels = random.below(12) == 0;
    for step in 0..40 + random.below(400) {
        random_step(&mut random, &machine, &mut devices);
        if cancels && step > 30 && random.below(40) == 0 {
            machine.control.signals.stop(PipelineError::Cancelled);
            break;
        }
    }
    finish(seed, &machine, &mut devices);
    machine.finish();
    let stopped = machine.control.is_stopped();
    check(seed, &machine, &output().unwrap_or_default(), (items, ordered, stopped), tally);
    drop(machine);
    devices.expect_free_memory(seed);
}

fn random_step(random: &mut Random, machine: &Machine, devices: &mut Devices) {
    match random.below(20) {
        0..=11 => _ = machine.step(random.below(machine.stages.len() as u64) as usize),
        12..=15 => devices.step(random.below(DEVICES as u64) as usize),
        16 => _ = devices.relay.step(),
        17 => devices.clock.advance(Duration::from_micros(random.below(800))),
        18 => match random.below(12) {
            0 => devices.controls[random.below(DEVICES as u64) as usize].inject(Fault::Lost),
            1 => machine.control.signals.pause(true),
            2 | 3 => machine.control.signals.pause(false),
            4 if random.below(8) == 0 => {
                machine.hooks.drain();
                machine.control.signals.drain();
            }
            _ => {}
        },
        _ => _ = machine.watch(),
    }
}

/// Ends the faults, and then the run.
fn finish(seed: u64, machine: &Machine, devices: &mut Devices) {
    devices.controls.iter().for_each(|control| control.heal());
    machine.control.signals.pause(false);
    for round in 0.. {
        if machine.is_over() {
            return;
        }
        let moved = (0..machine.stages.len()).filter(|index| machine.step(*index) == Step::Moved).count();
        devices.step_all(Duration::from_micros(if moved > 0 { 20 } else { 200 }));
        let reports: Vec<_> = devices.lanes.iter().map(|lane| lane.report()).collect();
        assert!(round < 20_000, "seed {seed}: the run never ends: {}\n{reports:?}", machine.report());
    }
}

fn check(seed: u64, machine: &Machine, out: &[u64], (items, ordered, stopped): (u64, bool, bool), tally: &mut Tally) {
    let report = machine.report();
    let distinct: BTreeSet<u64> = out.iter().copied().collect();
    assert_eq!(distinct.len(), out.len(), "seed {seed}: an item came twice: {out:?}");
    assert!(distinct.iter().all(|number| *number < items), "seed {seed}: {out:?}");
    assert!(!ordered || out.is_sorted(), "seed {seed}: out of order: {out:?}");
    let sum = |count: fn(&crate::pipeline::StageReport) -> u64| report.stages.iter().map(count).sum::<u64>();
    let (skipped, dead) = (sum(|stage| stage.skipped), sum(|stage| stage.dead));
    let letters = machine.control.take_dead_letters();
    assert_eq!(letters.len() as u64, dead, "seed {seed}");
    let taken = report.progress.taken;
    if stopped {
        tally.cancelled += 1;
    } else {
        let drained = machine.control.signals.is_draining();
        assert!(taken == items || drained && taken < items, "seed {seed}: {taken} of {items}: {report}");
        // An item that fails in a branch is counted by the branch and by the join, so each missing
        // item is counted at least once.
        let missing = taken - out.len() as u64;
        assert!(missing <= skipped + dead, "seed {seed}: {missing} of {taken} are lost: {report}");
        assert!(missing > 0 || dead == 0, "seed {seed}: a dead letter whose item came out: {letters:?}");
        assert_eq!(sum(|stage| stage.dropped), 0, "seed {seed}: {report}");
        tally.finished += 1;
        tally.drained += u64::from(drained && taken < items);
    }
    tally.out += out.len() as u64;
    tally.skipped += skipped;
    let asks = report.stages.iter().filter(|stage| stage.name == "asks");
    tally.unanswered += asks.map(|stage| stage.skipped).sum::<u64>();
    tally.dead += dead;
    tally.replaced += sum(|stage| stage.replaced);
    tally.retried += sum(|stage| stage.retried);
    tally.unordered += u64::from(!ordered);
}
