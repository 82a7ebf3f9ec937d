//! Threads of a pipeline that stay away from cheap stages come when they are needed.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::{Duration, Instant};

use panoply_pipeline::Pipeline;

const ITEMS: u64 = 20_000;
const PATIENCE: Duration = Duration::from_secs(20);

/// Buffers that a stage takes and the sink gives back.
struct Buffers {
    free: Mutex<u64>,
    given_back: Condvar,
}

impl Buffers {
    fn take(&self) -> bool {
        let free = self.free.lock().unwrap();
        let (mut free, waited) = self.given_back.wait_timeout_while(free, PATIENCE, |free| *free == 0).unwrap();
        *free -= u64::from(!waited.timed_out());
        !waited.timed_out()
    }

    fn give_back(&self) {
        *self.free.lock().unwrap() += 1;
        self.given_back.notify_one();
    }
}

#[test]
fn a_cheap_stage_may_wait_for_what_the_sink_gives_back() {
    // Fewer buffers than a run of cheap items needs: the sink must get the first ones while the
    // stage waits for the next.
    for (threads, lanes) in [(2, 1), (3, 2), (5, 4)] {
        let buffers = Arc::new(Buffers { free: Mutex::new(3), given_back: Condvar::new() });
        let (takes, gives) = (Arc::clone(&buffers), buffers);
        let start = Instant::now();
        let items = Pipeline::builder().threads(threads).source(0..2000_u64);
        let items = items.map("before", |item| item).parallel(lanes);
        let items = items.try_map("takes a buffer", move |item| match takes.take() {
            true => Ok(*item),
            false => Err("no buffer was given back"),
        });
        let ((), report) = items.for_each("gives it back", move |_| gives.give_back()).run().unwrap();
        assert_eq!(report.progress.arrived, 2000);
        assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    }
}

#[test]
fn calls_that_turn_out_long_get_the_other_threads() {
    // Cheap for a long time, so that the next call is not expected to be long; then two calls that
    // wait for each other.
    let meet = Arc::new(Barrier::new(2));
    let waiting = Arc::new(AtomicU64::new(0));
    let (meets, waits) = (Arc::clone(&meet), Arc::clone(&waiting));
    let first = Pipeline::builder().threads(3).source(0..ITEMS).map("cheap", |item| item).parallel(2);
    let stage = first.map("meets", move |item| {
        if item == ITEMS / 2 {
            waits.fetch_add(1, Ordering::SeqCst);
            meets.wait();
        }
        item
    });
    let pipeline = stage.for_each("sink", move |item| {
        if item == ITEMS / 2 - 1 {
            waiting.fetch_add(1, Ordering::SeqCst);
            meet.wait();
        }
    });
    let running = pipeline.start().unwrap();
    let handle = running.handle();
    let start = Instant::now();
    while !handle.is_over() && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(handle.is_over(), "{:?}", handle.report());
    assert_eq!(running.wait().report.progress.arrived, ITEMS);
}

#[test]
fn items_of_a_slow_source_are_not_kept_for_the_next_ones() {
    // The source blocks, and the stages are cheap: each item must be through long before the next
    // one comes.
    let gap = Duration::from_millis(4);
    let late = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&late);
    let source = (0..100).map(move |_| {
        std::thread::sleep(gap);
        Instant::now()
    });
    let mut stages = Pipeline::builder().source(source);
    for _ in 0..5 {
        stages = stages.map("cheap", |born| born).parallel(2);
    }
    let sink = stages.for_each("sink", move |born| {
        count.fetch_add(u64::from(born.elapsed() >= gap / 2), Ordering::SeqCst);
    });
    sink.run().unwrap();
    assert!(late.load(Ordering::SeqCst) < 50, "{late:?} of 100 items were kept");
}
