//! Sixty-four callers that drop their futures at random, on devices that fail at random: every
//! accepted op is answered, and all memory is freed. `PANOPLY_STORM_SECONDS` sets the duration.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Context;
use std::time::{Duration, Instant};

use panoply_conformance::values::Random;
use panoply_conformance::virtual_device::{Rates, Script, VirtualBackend};
use panoply_core::op::compute::{Map, Transpose};
use panoply_core::{DType, Error, Tensor};
use panoply_counting_allocator::{Counting, live_bytes};
use panoply_cpu::CpuBackend;
use panoply_runtime::{FallbackPolicy, HealthRules, Priority, RunOptions, Runtime, WorkerLimits};
use support::{asked_for, eventually, poll_for, unpark};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CALLERS: u64 = 64;
const SECONDS_DEFAULT: u64 = 4;
/// The largest growth of the memory in use: full queues, and the inputs and futures of all callers.
const GROWTH_BYTES_MAX: usize = 64 << 20;

#[derive(Default)]
struct Tally {
    asked: AtomicU64,
    right: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
}

fn runtime(seed: u64) -> Runtime {
    let rates =
        Rates { error: 4_000, hang: 3, block: 40, lost: 150, panic: 0, out_of_memory: 2_000, forget: 40, twice: 400 };
    let script = |device: u64| {
        let script = Script::new().resident().latency(Duration::from_micros(2));
        script.random_faults(seed + device, rates, Duration::from_millis(40))
    };
    let backend =
        VirtualBackend::new(Arc::new(CpuBackend::new())).device(script(0)).device(script(1)).device(script(2));
    let limits = WorkerLimits {
        queue_depth_max: 32,
        batch_max: 8,
        in_flight_max: 16,
        op_time_max: Duration::from_millis(15),
        reopen_wait_min: Duration::from_micros(50),
        reopen_wait_max: Duration::from_millis(1),
        reopen_attempts_max: 100_000,
        stuck_threads_max: 1000,
    };
    let rules = HealthRules {
        look_every: Duration::from_millis(5),
        open_wait_min: Duration::from_millis(2),
        open_wait_max: Duration::from_millis(20),
        ..HealthRules::default()
    };
    Runtime::builder().backend(Arc::new(backend)).limits(limits).health(rules).build().unwrap()
}

/// One caller: its futures are awaited, blocked on, polled once and dropped, or dropped at once.
fn call(runtime: &Runtime, seed: u64, end: Instant, tally: &Tally) {
    let mut random = Random::new(seed);
    let input = Tensor::zeros(DType::F32, [64, 64]).unwrap();
    let waker = unpark();
    while Instant::now() < end {
        let policies = [FallbackPolicy::None, FallbackPolicy::Alternate, FallbackPolicy::Retry { times: 2 }];
        let mut options = RunOptions::default().fallback(policies[random.below(3) as usize]);
        options.priority = [Priority::Normal, Priority::Urgent, Priority::Patient][random.below(3) as usize];
        options.to_host = random.below(4) == 0;
        if random.below(2) == 0 {
            options.deadline = Some(Instant::now() + Duration::from_micros(200 + random.below(20_000)));
        }
        tally.asked.fetch_add(1, Ordering::Relaxed);
        let pending = match random.below(2) {
            0 => runtime.run_with(Transpose::new(&input), options),
            _ => runtime.run_with(Map::add(&input, &input), options),
        };
        let answer = match random.below(4) {
            0 => None,
            1 => {
                let mut pending = Box::pin(pending);
                let polled = pending.as_mut().poll(&mut Context::from_waker(&waker));
                match polled {
                    std::task::Poll::Ready(answer) => Some(answer),
                    std::task::Poll::Pending => None,
                }
            }
            2 => {
                let answer = poll_for(&mut Box::pin(pending), &waker, Duration::from_secs(30));
                assert!(answer.is_some(), "an op was never answered: {:?}", runtime.workers());
                answer
            }
            _ => Some(pending.wait()),
        };
        let counter = match answer {
            None => &tally.dropped,
            Some(Ok(_)) => &tally.right,
            Some(Err(error)) => {
                assert!(!matches!(error, Error::ShuttingDown | Error::Cancelled), "{error:?}");
                &tally.failed
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_storm_of_callers_that_drop_their_futures() {
    let seconds = asked_for("PANOPLY_STORM_SECONDS", SECONDS_DEFAULT);
    let tally = Tally::default();
    // Statics are initialised before memory is measured.
    drop(runtime(1000));
    let before = live_bytes();
    let mut highest = 0;
    let runtime = runtime(0);
    std::thread::scope(|scope| {
        let end = Instant::now() + Duration::from_secs(seconds);
        let (runtime, tally) = (&runtime, &tally);
        for caller in 0..CALLERS {
            scope.spawn(move || call(runtime, caller, end, tally));
        }
        while Instant::now() < end {
            highest = highest.max(live_bytes());
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let quiet = |worker: panoply_runtime::WorkerReport| {
        let counters = worker.counters;
        let ended = counters.completed + counters.failed + counters.cancelled + counters.moved;
        counters.accepted == ended && (worker.queued, worker.waiting) == (0, 0)
    };
    eventually("accepted = answered", || runtime.workers().into_iter().all(quiet));
    let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let (asked, right) = (read(&tally.asked), read(&tally.right));
    let (failed, dropped) = (read(&tally.failed), read(&tally.dropped));
    println!("asked {asked}, right {right}, failed {failed}, dropped {dropped}, {:?}", runtime.workers()[0].counters);
    assert_eq!(asked, right + failed + dropped);
    assert!(right > 1000 && failed > 100 && dropped > 500, "right {right}, failed {failed}, dropped {dropped}");
    assert!(runtime.shutdown(Duration::from_secs(30)).drained);
    assert!(highest.saturating_sub(before) < GROWTH_BYTES_MAX, "grew from {before} to {highest} bytes");
    drop(runtime);
    // Threads that were left behind in blocked calls end soon, and free their engines.
    let slack = (before / 100).max(16 << 10);
    eventually("all memory is freed", || live_bytes() <= before + slack);
}
