//! A million ops through devices that fail at random, with shutdowns in the middle: each op has
//! exactly one outcome, and nothing leaks. Panics of the engine print messages; this is expected.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use panoply_conformance::virtual_device::{Rates, Script, VirtualBackend};
use panoply_core::op::compute::Transpose;
use panoply_core::{Error, Tensor};
use panoply_cpu::CpuBackend;
use panoply_runtime::{FallbackPolicy, Pending, Runtime, WorkerLimits};

const OPS: u64 = 1_000_000;
const ROUNDS: u64 = 5;
const CLIENTS: u64 = 2;
const WINDOW: usize = 256;

#[derive(Default)]
struct Tally {
    asked: AtomicU64,
    right: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
}

#[test]
fn a_million_ops_get_exactly_one_outcome_each() {
    let threads_before = threads_now();
    let tally = Tally::default();
    let mut lost_and_found = 0;
    for round in 0..ROUNDS {
        lost_and_found += run_round(round, &tally);
    }
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (asked, right) = (read(&tally.asked), read(&tally.right));
    let (failed, refused) = (read(&tally.failed), read(&tally.refused));
    assert_eq!(asked, OPS);
    assert_eq!(right + failed + refused, OPS, "right {right}, failed {failed}, refused {refused}");
    assert!(right > OPS / 2 && failed > 1000 && refused > 100, "right {right}, failed {failed}, refused {refused}");
    assert!(lost_and_found > 100, "devices were lost and opened again {lost_and_found} times");
    // Threads that the script blocked return by themselves.
    let start = Instant::now();
    while threads_now() > threads_before {
        assert!(start.elapsed() < Duration::from_secs(10), "{} threads are left", threads_now() - threads_before);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Two clients against two devices. The runtime is shut down near the end, or aborted in every
/// other round.
fn run_round(round: u64, tally: &Tally) -> u64 {
    let rates =
        Rates { error: 5_000, hang: 4, block: 4, lost: 150, panic: 20, out_of_memory: 2_000, forget: 50, twice: 500 };
    let script = |seed| Script::new().resident().random_faults(seed, rates, Duration::from_millis(60));
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new())).device(script(round)).device(script(round + 100));
    let controls = [backend.control(0).unwrap(), backend.control(1).unwrap()];
    let limits = WorkerLimits {
        queue_depth_max: 64,
        batch_max: 16,
        in_flight_max: 32,
        op_time_max: Duration::from_millis(25),
        reopen_wait_min: Duration::from_micros(50),
        reopen_wait_max: Duration::from_millis(1),
        reopen_attempts_max: 1000,
        stuck_threads_max: 1000,
    };
    let builder = Runtime::builder().backend(Arc::new(backend)).limits(limits);
    let runtime = builder.fallback(FallbackPolicy::None).build().unwrap();
    let each = OPS / ROUNDS / CLIENTS;
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| client(&runtime, each, &done, tally));
        }
        scope.spawn(|| {
            while done.load(Ordering::Relaxed) < each * CLIENTS * 9 / 10 {
                std::thread::sleep(Duration::from_millis(1));
            }
            if round.is_multiple_of(2) { runtime.shutdown(Duration::from_secs(30)) } else { runtime.abort() }
        });
    });
    let workers = runtime.workers();
    drop(runtime);
    for (worker, control) in workers.iter().zip(&controls) {
        let counters = worker.counters;
        assert_eq!(worker.queued, 0, "no queue slot leaks: {worker:?}");
        // Ops that were queued for a sick device move to the other one, which accepts them again.
        let ended = counters.completed + counters.failed + counters.cancelled + counters.moved;
        assert_eq!(counters.accepted, ended, "{worker:?}");
        let start = Instant::now();
        while control.counters().live_bytes > 0 {
            assert!(start.elapsed() < Duration::from_secs(10), "no device buffer leaks: {:?}", control.counters());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    workers.iter().map(|worker| worker.counters.reopened + worker.counters.replaced).sum()
}

fn client(runtime: &Runtime, ops: u64, done: &AtomicU64, tally: &Tally) {
    let matrix = Tensor::from_slice(&[1_i32, 2, 3, 4, 5, 6], [2, 3]).unwrap();
    let mut window: std::collections::VecDeque<Pending<Tensor>> = std::collections::VecDeque::new();
    for _ in 0..ops {
        tally.asked.fetch_add(1, Ordering::Relaxed);
        window.push_back(runtime.run(Transpose::new(&matrix)));
        if window.len() >= WINDOW {
            settle(window.pop_front(), done, tally);
        }
    }
    while !window.is_empty() {
        settle(window.pop_front(), done, tally);
    }
}

fn settle(pending: Option<Pending<Tensor>>, done: &AtomicU64, tally: &Tally) {
    let Some(pending) = pending else { return };
    done.fetch_add(1, Ordering::Relaxed);
    let counter = match pending.wait() {
        Ok(turned) => {
            assert_eq!(turned.shape().dims(), [3, 2]);
            &tally.right
        }
        Err(Error::ShuttingDown | Error::Unsupported { .. }) => &tally.refused,
        Err(Error::Cancelled) => panic!("nobody cancelled"),
        Err(_) => &tally.failed,
    };
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Number of threads of this process; always 0 if the system does not report it.
fn threads_now() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(0, |entries| entries.count())
}
