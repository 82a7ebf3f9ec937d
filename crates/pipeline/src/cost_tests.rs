//! The costs of items when many threads may work on them, counted in clock reads, changes of the
//! bell and wake-ups instead of time.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use panoply_core::clock::{Clock, SystemClock, VirtualClock};

use super::{JOIN_NS_MIN, Machine};
use crate::running::Running;
use crate::stage::{StageDemand, StepOutcome};
use crate::{Pipeline, PipelineError, RING_DEPTH_DEFAULT};
use panoply_lockfree::bell::Duty;

const STAGES: u64 = 10;
const ITEMS: u64 = 8_000;
/// The source and the sink read the clock for each item, and a stage for each run of items.
const LOOKS_MAX: u64 = ITEMS * 2 + ITEMS * STAGES / 2;
/// The indices of stages of a pipeline with one stage between its source and its sink.
const SOURCE: usize = 0;
const STAGE: usize = 1;
const SINK: usize = 2;

/// A clock that counts how often it is read.
struct Counting<C> {
    clock: C,
    looks: AtomicU64,
}

impl<C: Clock> Clock for Counting<C> {
    fn now(&self) -> Instant {
        self.looks.fetch_add(1, Ordering::Relaxed);
        self.clock.now()
    }

    fn sleep(&self, time: Duration) {
        self.clock.sleep(time);
    }
}

/// Ten stages that do nothing, each of which up to `lanes` threads may run.
fn pipeline<C: Clock + 'static>(clock: C, lanes: usize) -> (Machine, Arc<Counting<C>>) {
    let clock = Arc::new(Counting { clock, looks: AtomicU64::new(0) });
    let mut stages = Pipeline::builder().threads(lanes).source(0..ITEMS);
    for _ in 0..STAGES {
        stages = stages.map("nothing", |item| item).parallel(lanes);
    }
    let mut pipeline = stages.for_each("sink", |_| ());
    pipeline.plan.clock = Arc::clone(&clock) as Arc<dyn Clock>;
    (pipeline.plan.machine().unwrap(), clock)
}

#[test]
fn looks_at_the_clock_do_not_grow_with_the_threads_that_a_stage_may_have() {
    let looks = [1, 2, 4].map(|lanes| {
        let (machine, clock) = pipeline(VirtualClock::new(), lanes);
        machine.enter(1);
        machine.work(Duty::Every);
        assert!(machine.is_over() && (machine.progress)().arrived == ITEMS);
        // A stage counts its steps and rings the bell for each run of items.
        let changes = machine.control.signals.bell.changes() as u64;
        assert!(changes <= LOOKS_MAX, "{lanes} threads: the bell counts {changes} changes, expected {LOOKS_MAX}");
        clock.looks.load(Ordering::Relaxed)
    });
    assert!(looks.iter().all(|looks| *looks <= LOOKS_MAX), "{looks:?}, expected at most {LOOKS_MAX}");
    assert!(looks[2] <= looks[0] + looks[0] / 10, "{looks:?}");
}

/// A stage whose calls take `cost` each, by a clock that every call moves.
struct Costly {
    machine: Machine,
    calls: Arc<AtomicU64>,
}

impl Costly {
    fn new(cost: Duration, items: u64, before: impl Fn(u64) + Send + Sync + 'static) -> Costly {
        let (clock, calls) = (Arc::new(VirtualClock::new()), Arc::new(AtomicU64::new(0)));
        let (moved, counted) = (Arc::clone(&clock), Arc::clone(&calls));
        let stages = Pipeline::builder().threads(2).source(0..items);
        let stages = stages.map("costly", move |item| {
            before(item);
            moved.advance(cost);
            counted.fetch_add(1, Ordering::Relaxed);
            item
        });
        let mut pipeline = stages.parallel(2).for_each("sink", |_| ());
        pipeline.plan.clock = clock;
        Costly { machine: pipeline.plan.machine().unwrap(), calls }
    }

    /// The number of items that one thread takes of a full ring, and the work that the other
    /// threads are asked for before that.
    fn share_of_full_ring(&self) -> (u64, StageDemand) {
        let all = 0..self.machine.stages.len();
        // The stage measures its items.
        (0..500).for_each(|_| all.clone().for_each(|stage| _ = self.machine.step(stage)));
        while self.machine.step(SOURCE) == StepOutcome::Moved {}
        while self.machine.step(SINK) == StepOutcome::Moved {}
        let (before, wanted) = (self.calls.load(Ordering::Relaxed), self.machine.wanted());
        assert_eq!(self.machine.step(STAGE), StepOutcome::Moved);
        (self.calls.load(Ordering::Relaxed) - before, wanted)
    }
}

#[test]
fn a_full_ring_of_cheap_items_is_taken_whole_and_one_of_long_items_is_shared() {
    let ring = RING_DEPTH_DEFAULT as u64;
    for (cost_ns, most, is_shared) in
        [(0, ring, false), (200, ring, false), (5_000, 4, true), (20_000, 1, true), (1_000_000, 1, true)]
    {
        let costly = Costly::new(Duration::from_nanos(cost_ns), u64::MAX, |_| ());
        let (taken, wanted) = costly.share_of_full_ring();
        let expected = if is_shared { taken <= most } else { taken == most };
        assert!(expected, "items of {cost_ns} ns: {taken} of {ring} are taken at once, {most} expected");
        let is_asked = wanted.threads > 1 && wanted.time_ns >= JOIN_NS_MIN;
        assert_eq!(is_asked, is_shared, "items of {cost_ns} ns: {wanted:?}");
        costly.machine.control.signals.stop(PipelineError::Cancelled);
        costly.machine.finish();
    }
}

#[test]
fn two_threads_share_items_that_take_long() {
    const WAIT_MAX: Duration = Duration::from_secs(60);
    const ITEMS: u64 = 64;
    // Each call waits until another thread is in a call as well: a thread that has taken several
    // items waits in vain.
    let inside = Arc::new((Mutex::new(0_u64), Condvar::new()));
    let meet = move |_| {
        let (arrived, changed) = &*inside;
        let mut arrived = arrived.lock().unwrap();
        *arrived += 1;
        let pair = *arrived + *arrived % 2;
        changed.notify_all();
        let (guard, waited) = changed.wait_timeout_while(arrived, WAIT_MAX, |arrived| *arrived < pair).unwrap();
        drop(guard);
        assert!(!waited.timed_out(), "no other thread has taken an item");
    };
    let costly = Costly::new(Duration::from_micros(50), ITEMS, meet);
    let ended = Running::start(costly.machine, Box::new(|| Some(()))).unwrap().wait();
    assert_eq!((ended.result, ended.report.progress.arrived), (Ok(()), ITEMS));
}

#[test]
fn threads_that_cheap_stages_do_not_need_are_not_woken_for_every_item() {
    for lanes in [2, 4] {
        let (machine, clock) = pipeline(SystemClock, lanes);
        let ran = Running::start(machine, Box::new(|| Some(()))).unwrap();
        let handle = ran.handle();
        let ended = ran.wait();
        assert_eq!((ended.result, ended.report.progress.arrived), (Ok(()), ITEMS));
        let (looks, wakes) = (clock.looks.load(Ordering::Relaxed), handle.wakes() as u64);
        // At first, before the stages were measured, threads share them; and a thread that is held
        // up makes others join, on a busy machine about once in eight items.
        assert!(wakes <= ITEMS / 2, "{lanes} threads: {wakes} wake-ups for {ITEMS} items");
        assert!(looks <= LOOKS_MAX, "{lanes} threads: {looks} looks at the clock, expected at most {LOOKS_MAX}");
    }
}
