//! Pipelines in seeded schedules: a random pipeline over virtual devices that fail, hang and
//! disappear in mid-stream. Each random step is a step of a stage, a device's worker or the relay,
//! under a virtual clock. Some futures never answer; runs are paused, drained and cancelled. Each
//! item that was taken comes out exactly once, in order if requested, or is a dead letter or left
//! out, and no memory of a device leaks. `PANOPLY_PIPELINE_SCHEDULES` sets the number of schedules.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use panoply_conformance::values::Random;
use panoply_conformance::virtual_device::{Fault, Rates, Script, VirtualBackend, VirtualControl};
use panoply_core::clock::{Clock, VirtualClock};
use panoply_core::op::compute::{Map, Transpose};
use panoply_core::{Backend, Op, Operation, Tensor, Value};
use panoply_cpu::CpuBackend;
use panoply_runtime::stepped::{Entrance, SteppedBackend};
use panoply_runtime::{Batching, HealthRules, Pending, PendingOutcome, RunOptions, WorkerLimits};

use crate::builder::Builder;
use crate::ends::Start;
use crate::link::Runs;
use crate::machine::Machine;
use crate::stage::StepOutcome;
use crate::{ErrorPolicy, Pipeline, PipelineError};

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

impl Runs for Entrance {
    fn send(&self, op: Op, options: RunOptions) -> PendingOutcome<Value> {
        Entrance::send(self, op, &options).with_report()
    }
}

/// The devices, and a runtime over them without threads.
struct Devices {
    clock: Arc<VirtualClock>,
    runtime: SteppedBackend,
    controls: Vec<Arc<VirtualControl>>,
}

impl Devices {
    fn new(random: &mut Random, seed: u64, answers: &Arc<dyn Backend>) -> Devices {
        let clock = Arc::new(VirtualClock::new());
        let virtual_time = Arc::clone(&clock) as Arc<dyn Clock>;
        let scripts: Vec<Script> = (0..DEVICES).map(|device| script(random, seed * 8 + device as u64)).collect();
        let backend = scripts.into_iter().fold(VirtualBackend::new(Arc::clone(answers)), VirtualBackend::device);
        let backend = backend.clock(Arc::clone(&virtual_time));
        let controls = (0..DEVICES).map(|index| backend.control(index).unwrap()).collect();
        let backend = Arc::new(backend) as Arc<dyn Backend>;
        let setup = || (random_limits(random), random_batching(random));
        let runtime = SteppedBackend::new(&backend, &virtual_time, &rules(), setup).unwrap();
        Devices { clock, runtime, controls }
    }

    /// Gives every device an op, so that it releases freed memory, and checks that none is left.
    fn expect_free_memory(&mut self, seed: u64) {
        // Smaller than the tensors that a pipeline keeps, since its own output may still be there.
        let row = Tensor::from_vec(vec![0.0_f32], [1, 1]).unwrap();
        let (entrance, mut pending) = (self.runtime.entrance(), Vec::new());
        for round in 0.. {
            for device in 0..DEVICES {
                // A device that is being reopened refuses the op, and holds no memory.
                pending.push(entrance.send_to(device, Transpose::new(&row).into_op().unwrap()));
            }
            (0..10).for_each(|_| self.step_all(Duration::from_micros(300)));
            pending.retain(|op: &Pending<Value>| !op.is_done());
            let left: Vec<u64> = self.controls.iter().map(|control| control.counters().live_bytes).collect();
            if left.iter().all(|bytes| *bytes <= 4) && pending.is_empty() {
                return;
            }
            assert!(round < 2000, "seed {seed}: {left:?} bytes stay on the devices");
        }
    }

    fn step_all(&mut self, time: Duration) {
        (0..DEVICES).for_each(|index| self.runtime.step_worker(index));
        self.runtime.step_relay();
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

/// The default rules at the speed of the simulation.
fn rules() -> HealthRules {
    HealthRules {
        open_wait_min: Duration::from_millis(3),
        open_wait_max: Duration::from_millis(50),
        look_every: Duration::from_millis(1),
        ..HealthRules::default()
    }
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

type AnswerFuture = Pin<Box<dyn Future<Output = Result<u64, &'static str>> + Send>>;

/// A future that answers at its first poll, at its second, or never.
fn asked(number: &u64) -> AnswerFuture {
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
    let entrance = Arc::new(devices.runtime.entrance());
    let (links, in_flight) = (random.below(3), depth(random));
    let policy = ErrorPolicy::dead_letters().retry(random.below(2) as u32, Duration::from_micros(20));
    Box::new(move |builder| {
        let rows = builder.map("row", |number| Tensor::from_vec(vec![number as f32; 2], [1, 2]).unwrap()).ring(2);
        let run = Arc::clone(&entrance) as Arc<dyn Runs>;
        let mut rows = rows.op_link::<Transpose, _>("turn", run, |row| Ok(Transpose::new(row)));
        rows = rows.in_flight(in_flight).on_error(policy);
        for _ in 0..links {
            let run = Arc::clone(&entrance) as Arc<dyn Runs>;
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
        12..=15 => devices.runtime.step_worker(random.below(DEVICES as u64) as usize),
        16 => devices.runtime.step_relay(),
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
        let moved = (0..machine.stages.len()).filter(|index| machine.step(*index) == StepOutcome::Moved).count();
        devices.step_all(Duration::from_micros(if moved > 0 { 20 } else { 200 }));
        let reports = || (machine.report(), devices.runtime.reports());
        assert!(round < 20_000, "seed {seed}: the run never ends: {:?}", reports());
    }
}

fn check(seed: u64, machine: &Machine, out: &[u64], (items, ordered, stopped): (u64, bool, bool), tally: &mut Tally) {
    let report = machine.report();
    let distinct: BTreeSet<u64> = out.iter().copied().collect();
    assert_eq!(distinct.len(), out.len(), "seed {seed}: an item came twice: {out:?}");
    assert!(distinct.iter().all(|number| *number < items), "seed {seed}: {out:?}");
    assert!(!ordered || out.is_sorted(), "seed {seed}: out of order: {out:?}");
    let sum = |count: fn(&crate::StageReport) -> u64| report.stages.iter().map(count).sum::<u64>();
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
