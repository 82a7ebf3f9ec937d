//! A pipeline in its steady state allocates no memory for closures, at any parallelism, and for ops
//! no more than the ops themselves.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

#[path = "../../runtime/tests/support/mod.rs"]
mod support;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Context;
use std::time::Duration;

use panoply_core::op::compute::Map;
use panoply_core::{DType, Tensor};
use panoply_counting_allocator::{Counting, allocations};
use panoply_cpu::CpuBackend;
use panoply_pipeline::{IN_FLIGHT_DEFAULT, Pipeline};
use panoply_runtime::{PendingOutcome, RunOptions, Runtime};
use support::unpark;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations are counted for the whole process, so only one test runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// The allocations between two items that reach the end.
#[derive(Default)]
struct Between {
    seen: AtomicUsize,
    at: [AtomicUsize; 2],
}

impl Between {
    fn see(&self, from: usize, to: usize) {
        let seen = self.seen.fetch_add(1, Ordering::SeqCst);
        if seen == from || seen == to {
            self.at[usize::from(seen == to)].store(allocations(), Ordering::SeqCst);
        }
    }

    fn count(&self) -> usize {
        self.at[1].load(Ordering::SeqCst) - self.at[0].load(Ordering::SeqCst)
    }
}

#[test]
fn closures_ask_for_no_memory() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let between = Arc::new(Between::default());
    let sees = Arc::clone(&between);
    Pipeline::builder()
        .threads(3)
        .trace(1000)
        .source(0..60_000_u64)
        .map("one", |n| n + 1)
        .try_map("two", |n: &u64| Ok::<_, std::fmt::Error>(n + 1))
        .parallel(2)
        .filter("three", |n| n % 3 != 0)
        .unordered()
        .fork(|branch| branch.map("left", |n| n), |branch| branch.map("right", |n| n))
        .for_each("end", move |_| sees.see(10_000, 39_000))
        .run()
        .unwrap();
    assert_eq!(between.count(), 0, "allocations for 29,000 items");
}

#[test]
fn ops_ask_for_no_more_memory_than_by_themselves() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let runtime = Arc::new(Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap());
    let input = Tensor::zeros(DType::F32, [64]).unwrap();
    // The allocations of each op without a pipeline, with as many in flight, after a warm-up.
    let op = |tensor: &Tensor| Map::add(tensor, tensor);
    let waker = unpark();
    let finish = |mut pending: PendingOutcome<Tensor>| {
        while Pin::new(&mut pending).poll(&mut Context::from_waker(&waker)).is_pending() {
            std::thread::park_timeout(Duration::from_millis(1));
        }
    };
    let alone = |count: usize| {
        let mut window = VecDeque::with_capacity(IN_FLIGHT_DEFAULT);
        for _ in 0..count {
            if window.len() == IN_FLIGHT_DEFAULT {
                window.pop_front().into_iter().for_each(finish);
            }
            window.push_back(runtime.run_with(op(&input), RunOptions::default().to_host()).with_report());
        }
        window.into_iter().for_each(finish);
    };
    alone(2000);
    let before = allocations();
    alone(2000);
    let each_alone = (allocations() - before) as f64 / 2000.0;
    let between = Arc::new(Between::default());
    let sees = Arc::clone(&between);
    Pipeline::builder()
        .source((0..6000).map(move |_| input.clone()))
        .op("add", Arc::clone(&runtime), op)
        .for_each("end", move |_| sees.see(2000, 5000))
        .run()
        .unwrap();
    let each = between.count() as f64 / 3000.0;
    assert!(each <= each_alone + 0.5, "{each} allocations for an op in a pipeline, {each_alone} by itself");
}
