//! The costs of cheap items when many threads may work on them, counted in clock reads and wake-ups
//! instead of time.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use panoply_core::clock::{Clock, SystemClock, VirtualClock};

use super::Machine;
use crate::Pipeline;
use crate::running::Running;
use panoply_lockfree::bell::Duty;

const STAGES: u64 = 10;
const ITEMS: u64 = 8_000;

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
        clock.looks.load(Ordering::Relaxed)
    });
    // The source and the sink read the clock for each item, and a stage for each run of items.
    let bound = ITEMS * 2 + ITEMS * STAGES / 2;
    assert!(looks.iter().all(|looks| *looks <= bound), "{looks:?}, expected at most {bound}");
    assert!(looks[2] <= looks[0] + looks[0] / 10, "{looks:?}");
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
        assert!(looks <= ITEMS * 2 + ITEMS * STAGES / 2, "{lanes} threads: {looks} looks at the clock");
    }
}
