//! Memory use is flat: after a million ops with deadlines, and after a million dropped futures, as
//! much memory is in use as before. `PANOPLY_MEMORY_OPS` sets the number of each.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod support;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::Context;
use std::time::{Duration, Instant};

use panoply_conformance::virtual_device::{Fault, Script, VirtualBackend, VirtualControl};
use panoply_core::op::compute::{Map, Transpose};
use panoply_core::{DType, Error, Tensor};
use panoply_counting_allocator::{Counting, live_bytes};
use panoply_cpu::CpuBackend;
use panoply_runtime::{RunOptions, Runtime, WorkerLimits};
use support::{asked_for, eventually, poll_for, unpark};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const OPS_DEFAULT: u64 = 40_000;

/// The memory in use is counted for the whole process, so only one test runs at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn cpu() -> Runtime {
    Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap()
}

fn virtual_device(limits: WorkerLimits) -> (Runtime, Arc<VirtualControl>) {
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new())).device(Script::new());
    let control = backend.control(0).unwrap();
    (Runtime::builder().backend(Arc::new(backend)).limits(limits).build().unwrap(), control)
}

/// Number of rounds of which one must be flat: on a busy machine a list may still grow in one
/// round, but a leak grows in every round.
const ROUNDS: usize = 3;

/// Whether the memory in use falls to this value within ten seconds, with 1 % of slack.
fn gets_flat(before: usize) -> bool {
    let start = Instant::now();
    while live_bytes() > before + before / 100 {
        if start.elapsed() >= Duration::from_secs(10) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

#[test]
fn ops_with_deadlines_leave_nothing_behind() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (runtime, ops) = (cpu(), asked_for("PANOPLY_MEMORY_OPS", OPS_DEFAULT));
    let input = Tensor::zeros(DType::F32, [16]).unwrap();
    let waker = unpark();
    let round = |count: u64| {
        let mut highest = 0;
        let mut window = VecDeque::new();
        for number in 0..count {
            // None of these deadlines passes before the test is over.
            let options = RunOptions::default().deadline(Instant::now() + Duration::from_secs(3600));
            let mut op = Box::pin(runtime.run_with(Map::add(&input, &input), options));
            if op.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                window.push_back(op);
            }
            if window.len() == 64 {
                let mut first = window.pop_front().unwrap();
                poll_for(&mut first, &waker, Duration::from_secs(20)).unwrap().unwrap();
            }
            if number % 1024 == 0 {
                highest = highest.max(live_bytes());
            }
        }
        for mut op in window {
            poll_for(&mut op, &waker, Duration::from_secs(20)).unwrap().unwrap();
        }
        highest
    };
    // A first round of the same size, so that every list has grown to its final length.
    round(ops);
    let flat = (0..ROUNDS).any(|_| {
        let before = live_bytes();
        let highest = round(ops);
        assert!(highest < before + (1 << 20), "{before} bytes before, {highest} meanwhile");
        gets_flat(before)
    });
    assert!(flat, "ops with deadlines leave something behind in every round");
}

#[test]
fn futures_that_were_dropped_leave_nothing_behind() {
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (runtime, ops) = (cpu(), asked_for("PANOPLY_MEMORY_OPS", OPS_DEFAULT));
    let waker = unpark();
    let round = |count: u64| {
        for number in 0..count {
            let input = Tensor::zeros(DType::F32, [32, 32]).unwrap();
            let mut op = Box::pin(runtime.run(Transpose::new(&input)));
            if number % 2 == 0 {
                let _ = op.as_mut().poll(&mut Context::from_waker(&waker));
            }
        }
        let last = Tensor::zeros(DType::F32, [32, 32]).unwrap();
        runtime.run(Transpose::new(&last)).wait().unwrap();
    };
    round(4000);
    let flat = (0..ROUNDS).any(|_| {
        let before = live_bytes();
        round(ops);
        gets_flat(before)
    });
    assert!(flat, "dropped futures leave something behind in every round");
}

#[test]
fn callers_that_give_up_on_a_full_queue_take_their_ops_along() {
    const CALLERS: u64 = 20_000;
    let _alone = ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let limits = WorkerLimits {
        queue_depth_max: 4,
        batch_max: 1,
        in_flight_max: 1,
        op_time_max: Duration::from_secs(60),
        ..WorkerLimits::default()
    };
    let (runtime, control) = virtual_device(limits);
    let waker = unpark();
    control.inject(Fault::Slow(Duration::from_millis(1500)));
    let input = || Tensor::zeros(DType::F32, [64, 64]).unwrap();
    let slow = runtime.run(Transpose::new(&input()));
    let queued: Vec<_> = (0..8).map(|_| runtime.run(Transpose::new(&input()))).collect();
    let before = live_bytes();
    for _ in 0..CALLERS {
        let soon = RunOptions::default().deadline(Instant::now() + Duration::from_secs(3600));
        let mut op = Box::pin(runtime.run_with(Transpose::new(&input()), soon));
        assert!(op.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    let (after, waiting) = (live_bytes(), runtime.workers()[0].waiting);
    assert!(waiting <= queued.len(), "{waiting} still wait");
    assert!(after < before + (1 << 20), "{before} bytes before, {after} after {CALLERS} callers gave up");
    let late = RunOptions::default().deadline(Instant::now() + Duration::from_millis(5));
    let answer =
        poll_for(&mut Box::pin(runtime.run_with(Transpose::new(&input()), late)), &waker, Duration::from_secs(9));
    assert!(matches!(answer, Some(Err(Error::DeadlineExceeded { .. }))), "{answer:?}");
    assert!(slow.wait().is_ok() && queued.into_iter().all(|op| op.wait().is_ok()));
    let counters = || runtime.workers()[0].counters;
    eventually("the books are closed", || counters().accepted == counters().completed + counters().cancelled);
    assert!(counters().cancelled >= CALLERS);
    let mut last = Box::pin(runtime.run(Transpose::new(&input())));
    while last.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        std::thread::yield_now();
    }
}
