//! The costs of the runtime itself, each beside its yardstick in the same run:
//!
//! ```text
//! cargo bench --bench runtime                     # everything, or only some of it:
//! cargo bench --bench runtime -- messages ops decisions pools
//! cargo bench --bench runtime -- --json           # the numbers that have limits, one JSON object per line
//! ```
//!
//! The yardsticks: two bare threads that park and unpark each other, and a queue of the standard
//! library. Machines are noisy, so each value is the median of several rounds, and the ratio is
//! what matters.
#![allow(unsafe_code)] // The allocator that counts.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use panoply_conformance::virtual_device::{Script, VirtualBackend};
use panoply_core::op::compute::{Map, MatMul, Transpose};
use panoply_core::op::crypto::{AeadAlgorithm, Key, Seal};
use panoply_core::{DeviceId, Operation, Tensor};
use panoply_cpu::CpuBackend;
use panoply_runtime::telemetry::Histogram;
use panoply_runtime::worker::BoxError;
use panoply_runtime::{Envelope, PoolOptions, RunOptions, Runtime, Worker, WorkerPool};

/// Counts allocations on request, so that the cost of a small op can be given in allocations. The
/// counter is off otherwise: two threads that always write it would distort the measured times.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static COUNTS: AtomicBool = AtomicBool::new(false);

fn count_one() {
    if COUNTS.load(Ordering::Relaxed) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

/// How many allocations `work` makes, on every thread.
fn allocations_of(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    COUNTS.store(true, Ordering::SeqCst);
    work();
    COUNTS.store(false, Ordering::SeqCst);
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

// SAFETY: passes every call to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count_one();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    // `cargo test --benches` and `cargo nextest` call this with other arguments and want no
    // measurement.
    if !std::env::args().any(|argument| argument == "--bench") {
        println!("run with: cargo bench --bench runtime");
        return;
    }
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let wanted = |section: &str| asked.is_empty() || asked.iter().any(|name| name == section);
    row("what", "figure".to_owned(), "yardstick in the same run".to_owned());
    if wanted("messages") {
        messages();
    }
    if wanted("ops") {
        small_ops(request_us(true));
    }
    if wanted("decisions") {
        decisions();
    }
    if wanted("pools") {
        pools();
    }
}

/// Measures a program's own workers.
fn messages() {
    let throughput = messages_per_second();
    let channel = channel_messages_per_second();
    row("messages, one producer to one worker, handled", format!("{:.1} M/s", throughput / 1e6), {
        format!("std::sync::mpsc::sync_channel {:.1} M/s", channel / 1e6)
    });
    let bare = park_round_trip_us();
    let parked = request_us(true);
    row("request/reply to a parked worker", format!("{parked:.2} µs"), {
        format!("bare park/unpark {bare:.2} µs, ratio {:.2}", parked / bare)
    });
    row("request/reply to a hot worker", format!("{:.2} µs", request_us(false)), String::new());
    let idle = idle_percent();
    row("eight idle workers", format!("{idle:.3} % of a core"), String::new());
}

fn row(what: &str, figure: String, yardstick: String) {
    if !json() {
        println!("{what:<58} {figure:>12}  {yardstick}");
    }
}

/// Prints a value for programs, with `--json`, instead of the rows.
fn number(name: &str, value: f64) {
    if json() {
        println!("{{\"number\":\"{name}\",\"value\":{value}}}");
    }
}

fn json() -> bool {
    std::env::args().any(|argument| argument == "--json")
}

/// Adds up its messages, and answers with the sum.
struct Sum(u64, Arc<AtomicU64>);

impl Worker for Sum {
    type Message = u64;
    type Reply = u64;

    fn handle(&mut self, envelope: Envelope<u64>) -> Result<u64, BoxError> {
        self.0 = self.0.wrapping_add(envelope.message);
        Ok(self.0)
    }

    fn shutdown(&mut self) {
        self.1.store(self.0, Ordering::Relaxed);
    }
}

fn pool(workers: usize) -> (WorkerPool<Sum>, Arc<AtomicU64>) {
    let total = Arc::new(AtomicU64::new(0));
    let shared = Arc::clone(&total);
    let options = PoolOptions { workers, queue_depth_max: 4096, ..PoolOptions::default() };
    match WorkerPool::start(options, move |_| Sum(0, Arc::clone(&shared))) {
        Ok(pool) => (pool, total),
        Err(error) => panic!("the pool does not start: {error}"),
    }
}

fn messages_per_second() -> f64 {
    const MESSAGES: u64 = 4_000_000;
    median(7, || {
        let (pool, total) = pool(1);
        let start = Instant::now();
        for number in 0..MESSAGES {
            if pool.send(number).is_err() {
                panic!("the pool stopped");
            }
        }
        pool.stop();
        let took = start.elapsed();
        assert_eq!(total.load(Ordering::Relaxed), MESSAGES * (MESSAGES - 1) / 2, "every message was handled");
        MESSAGES as f64 / took.as_secs_f64()
    })
}

fn channel_messages_per_second() -> f64 {
    const MESSAGES: u64 = 1_000_000;
    median(5, || {
        let (sender, receiver) = std::sync::mpsc::sync_channel::<u64>(4096);
        let start = Instant::now();
        let consumer = std::thread::spawn(move || receiver.iter().fold(0_u64, u64::wrapping_add));
        for number in 0..MESSAGES {
            sender.send(number).ok();
        }
        drop(sender);
        assert_eq!(consumer.join().ok(), Some(MESSAGES * (MESSAGES - 1) / 2));
        MESSAGES as f64 / start.elapsed().as_secs_f64()
    })
}

/// Two threads that park and unpark each other; both are parked when the round begins.
fn park_round_trip_us() -> f64 {
    let (ping, pong) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let stop = Arc::new(AtomicBool::new(false));
    let main = std::thread::current();
    let there = {
        let (ping, pong, stop) = (Arc::clone(&ping), Arc::clone(&pong), Arc::clone(&stop));
        std::thread::spawn(move || {
            while !stop.load(Ordering::Acquire) {
                while !ping.swap(false, Ordering::AcqRel) {
                    if stop.load(Ordering::Acquire) {
                        return;
                    }
                    std::thread::park();
                }
                pong.store(true, Ordering::Release);
                main.unpark();
            }
        })
    };
    let took = median_of(&mut times(600, || {
        std::thread::sleep(Duration::from_micros(300));
        let start = Instant::now();
        ping.store(true, Ordering::Release);
        there.thread().unpark();
        while !pong.swap(false, Ordering::AcqRel) {
            std::thread::park();
        }
        start.elapsed().as_secs_f64() * 1e6
    }));
    stop.store(true, Ordering::Release);
    there.thread().unpark();
    there.join().ok();
    took
}

/// The time of a request and its reply. `parked` waits before each request until the worker sleeps.
fn request_us(parked: bool) -> f64 {
    let (pool, _) = pool(1);
    let rounds = if parked { 600 } else { 20_000 };
    median_of(&mut times(rounds, || {
        if parked {
            std::thread::sleep(Duration::from_micros(300));
        }
        let start = Instant::now();
        match pool.request(1).map(|reply| reply.wait()) {
            Ok(Ok(sum)) => black_box(sum),
            other => panic!("no reply: {other:?}"),
        };
        start.elapsed().as_secs_f64() * 1e6
    }))
}

fn idle_percent() -> f64 {
    let (pool, _) = pool(8);
    std::thread::sleep(Duration::from_millis(100));
    let (start, before) = (Instant::now(), cpu_time());
    std::thread::sleep(Duration::from_secs(2));
    let percent = (cpu_time() - before).as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
    drop(pool);
    percent
}

/// The CPU time that this process has used.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Measures small ops through the whole runtime: submit, queue, run, outcome.
fn small_ops(parked_round_trip_us: f64) {
    let runtime = match Runtime::builder().backend(Arc::new(CpuBackend::new())).build() {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime: {error}"),
    };
    let Ok(values) = Tensor::from_vec(vec![1.0_f32; 64], [64]) else { panic!("no tensor") };
    let add = || match runtime.run(Map::add(&values, &values)).wait() {
        Ok(sum) => black_box(sum),
        Err(error) => panic!("no sum: {error}"),
    };
    let timed = |rounds: usize, pause: Option<Duration>| {
        median_of(&mut times(rounds, || {
            if let Some(pause) = pause {
                std::thread::sleep(pause);
            }
            let start = Instant::now();
            add();
            start.elapsed().as_secs_f64() * 1e6
        }))
    };
    let parked = timed(600, Some(Duration::from_micros(300)));
    row("add of 64 f32 through the runtime, parked", format!("{parked:.2} µs"), {
        format!("parked request/reply {parked_round_trip_us:.2} µs, {:+.2} µs", parked - parked_round_trip_us)
    });
    number("add64_parked_over_round_trip_us", parked - parked_round_trip_us);
    let hot = timed(20_000, None);
    number("add64_hot_us", hot);
    row("add of 64 f32 through the runtime, hot", format!("{hot:.2} µs"), String::new());
    telemetry(hot);
    let each = allocations_of(|| (0..1000).for_each(|_| drop(add()))) as f64 / 1000.0;
    number("add64_allocations", each);
    row("  allocations for each of them", format!("{each:.2}"), "the output and the task record".to_owned());
    let Ok(matrix) = Tensor::from_vec(vec![1.0_f32; 64], [8, 8]) else { panic!("no tensor") };
    let many = median(5, || {
        let start = Instant::now();
        let mut window = std::collections::VecDeque::new();
        for _ in 0..100_000 {
            window.push_back(runtime.run(Transpose::new(&matrix)));
            if window.len() == 256 {
                window.pop_front().map(|pending| pending.wait().map(black_box));
            }
        }
        window.into_iter().for_each(|pending| drop(pending.wait()));
        100_000.0 / start.elapsed().as_secs_f64()
    });
    row("small ops, one caller, 256 under way", format!("{:.2} M/s", many / 1e6), String::new());
}

/// Measures seals of 1 KiB, one each millisecond, beside products of 4096 that keep the CPU busy,
/// and how much the products lose by it. Rounds with and without seals alternate.
fn pools() {
    const ROUNDS: usize = 6;
    let runtime = match Runtime::builder().backend(Arc::new(CpuBackend::new())).build() {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime: {error}"),
    };
    let Ok(matrix) = Tensor::from_vec(vec![1.0_f32; 4096 * 4096], [4096, 4096]) else { panic!("no tensor") };
    let Ok(key) = Key::seal(AeadAlgorithm::Aes256Gcm, &[7; 32]) else { panic!("no key") };
    let product = || {
        let start = Instant::now();
        if let Err(error) = runtime.run(MatMul::new(&matrix, &matrix)).wait() {
            panic!("no product: {error}");
        }
        start.elapsed().as_secs_f64()
    };
    let seal_us = || {
        let start = Instant::now();
        if let Err(error) = runtime.run(Seal::new(&key, [1; 12], vec![9; 1024])).wait() {
            panic!("not sealed: {error}");
        }
        start.elapsed().as_secs_f64() * 1e6
    };
    // The router learns both.
    black_box((times(8, seal_us), times(2, product)));
    let idle_us = median_of(&mut times(1000, seal_us));
    let (mut seals, mut alone, mut beside) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        alone.push(product());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let sealing = scope.spawn(|| {
                let mut seals = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                    seals.push(seal_us());
                }
                seals
            });
            beside.push(product());
            stop.store(true, Ordering::Relaxed);
            // The last seal may have begun after the product.
            seals.extend(sealing.join().unwrap_or_default().into_iter().rev().skip(1));
        });
    }
    seals.sort_by(f64::total_cmp);
    let at = |share: f64| seals[((seals.len() as f64 * share) as usize).min(seals.len() - 1)];
    let (alone, beside) = (median_of(&mut alone), median_of(&mut beside));
    let loss_percent = (beside / alone - 1.0) * 100.0;
    row("seal of 1 KiB beside products of 4096, p99", format!("{:.0} µs", at(0.99)), {
        format!("median {:.0} µs, of {}; hot on an idle CPU {idle_us:.0} µs", at(0.5), seals.len())
    });
    row("product of 4096 beside seals", format!("{beside:.3} s"), format!("alone {alone:.3} s, {loss_percent:+.1} %"));
    number("seal_beside_product_p99_us", at(0.99));
    number("product_beside_seals_loss_percent", loss_percent);
}

/// Measures the router's choice alone, among eight devices with a history each.
fn decisions() {
    let latencies = (1..=8).map(|number| Script::new().latency(Duration::from_micros(20 * number)));
    let backend = latencies.fold(VirtualBackend::new(Arc::new(CpuBackend::new())), VirtualBackend::device);
    let runtime = match Runtime::builder().backend(Arc::new(backend)).build() {
        Ok(runtime) => runtime,
        Err(error) => panic!("no runtime: {error}"),
    };
    let Ok(values) = Tensor::from_vec(vec![1.0_f32; 64], [8, 8]) else { panic!("no tensor") };
    let devices: Vec<DeviceId> = runtime.devices().map(|device| device.id).collect();
    for device in devices.iter().cycle().take(8 * devices.len()) {
        runtime.run_with(MatMul::new(&values, &values), RunOptions::require(*device)).wait().ok();
    }
    let Ok(op) = MatMul::new(&values, &values).into_op() else { panic!("no op") };
    let options = RunOptions::default();
    let rounds = 1000;
    let decide = || (0..rounds).for_each(|_| drop(black_box(runtime.decide(black_box(&op), &options))));
    let each = median(101, || {
        let start = Instant::now();
        decide();
        start.elapsed().as_secs_f64() * 1e9 / f64::from(rounds)
    });
    let allocations = allocations_of(decide);
    number("decision_of_eight_ns", each);
    row("the router's choice among eight devices", format!("{each:.0} ns"), {
        format!("{allocations} allocations in {rounds} choices")
    });
}

/// The cost of metrics per op: three histograms and an event without a listener, relative to the op
/// itself.
fn telemetry(op_us: f64) {
    let histograms = [Histogram::new(), Histogram::new(), Histogram::new()];
    let rounds = 10_000_u64;
    let each = median(101, || {
        let start = Instant::now();
        for value in 0..rounds {
            histograms.iter().for_each(|histogram| histogram.note(black_box(value)));
            tracing::trace!(target: "panoply::op", value, "an op is done");
        }
        start.elapsed().as_secs_f64() * 1e9 / rounds as f64
    });
    let share = each / (op_us * 1e3) * 100.0;
    number("telemetry_percent", share);
    row("telemetry for each op", format!("{each:.1} ns"), format!("{share:.2} % of the hot add of 64 f32"));
}

fn times(rounds: usize, mut once: impl FnMut() -> f64) -> Vec<f64> {
    (0..rounds).map(|_| once()).collect()
}

fn median(rounds: usize, once: impl FnMut() -> f64) -> f64 {
    median_of(&mut times(rounds, once))
}

fn median_of(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
