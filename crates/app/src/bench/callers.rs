//! `panoply bench --callers`: threads that each send small matrix products and wait for them, with
//! and without batching. The table shows the throughput that batching gains, and the latency that
//! it costs.

use std::time::{Duration, Instant};

use panoply::prelude::*;
use panoply::{Batching, DeviceId, Settings};
use serde::Serialize;

use super::budget::Time;
use super::random::Normals;
use super::start_with;
use crate::configuration::{BenchOptions, Format};
use crate::failure::Failure;
use crate::screen::Screen;

/// Rows and columns of the matrices.
const SIZE: usize = 64;
/// The longest time that a batching strategy may hold an op back.
const WAIT_MAX: Duration = Duration::from_micros(500);
/// How long each strategy is measured, unless the user sets a time.
const TIME_PER_WAY: Duration = Duration::from_secs(1);
/// Products of each caller before measuring starts. They compile kernels, fill pools and train the
/// router.
const WARM_UPS: usize = 20;

/// A batching strategy under test.
struct Way {
    name: &'static str,
    batching: Batching,
    /// The most ops that an engine gets at once; `None` keeps the setting.
    batch_max: Option<usize>,
}

/// The result of one strategy on one device.
#[derive(Serialize)]
struct CallersRow {
    device: String,
    way: &'static str,
    callers: usize,
    ops: usize,
    ops_per_second: f64,
    /// The throughput relative to the first strategy.
    times: f64,
    /// The latency, from the call to the result.
    p50_us: f64,
    p99_us: f64,
    /// The limit for `p99_us`: the longest wait that the strategy allows, plus the P99 of a run.
    p99_limit_us: f64,
    /// The wait, from acceptance until the engine got the op.
    wait_p50_us: f64,
    wait_max_us: f64,
    /// The run, from there until the op was finished.
    run_p50_us: f64,
    run_p99_us: f64,
    mean_batch: f64,
}

/// The times of one product, as its caller measured them.
struct ProductTimes {
    latency: Duration,
    queued: Duration,
    ran: Duration,
    batch_size: u32,
}

/// Measures each strategy on the first device of each API.
pub fn run(options: &BenchOptions, callers: usize, screen: &mut Screen) -> Result<(), Failure> {
    let devices: Vec<DeviceId> = {
        let runtime = start_with(options, false, |_| {})?;
        super::first_of_each_api(&runtime).iter().map(|device| device.id).collect()
    };
    let time = match options.time {
        Time::PerCase(time) => time,
        Time::InAll(_) => TIME_PER_WAY,
    };
    if options.format == Format::Table {
        screen.line(screen.strong(&head()))?;
    }
    for device in devices {
        let mut first = None;
        for way in ways(callers) {
            let runtime = start_with(options, false, |settings: &mut Settings| {
                settings.batching = way.batching;
                settings.limits.batch_max = way.batch_max.unwrap_or(settings.limits.batch_max);
                settings.limits.in_flight_max = settings.limits.in_flight_max.max(callers);
            })?;
            let (seen, took) = serve(&runtime, device, callers, time).map_err(anyhow::Error::new)?;
            let rate = seen.len() as f64 / took.as_secs_f64();
            let times = rate / *first.get_or_insert(rate);
            let row = row(device, &way, callers, seen, rate, times);
            match options.format {
                Format::Json => screen.json_line(&row)?,
                Format::Table => screen.line(line(&row))?,
            }
            screen.flush()?;
        }
    }
    Ok(())
}

fn ways(callers: usize) -> [Way; 5] {
    let (size_max, wait_max) = (callers.max(1), WAIT_MAX);
    [
        Way { name: "one by one", batching: Batching::LowLatency, batch_max: Some(1) },
        Way { name: "low-latency", batching: Batching::LowLatency, batch_max: None },
        Way { name: "adaptive", batching: Batching::Adaptive { size_max, wait_max }, batch_max: None },
        Way { name: "time-or-size", batching: Batching::TimeOrSize { size_max, wait_max }, batch_max: None },
        Way { name: "high-throughput", batching: Batching::HighThroughput { size_max, wait_max }, batch_max: None },
    ]
}

/// Makes every caller send one product after the other for `time`. The inputs are resident on the
/// device.
fn serve(
    runtime: &Runtime,
    device: DeviceId,
    callers: usize,
    time: Duration,
) -> panoply::Result<(Vec<ProductTimes>, Duration)> {
    let inputs = |caller: usize| -> panoply::Result<(Tensor, Tensor)> {
        let mut normals = Normals::new(caller as u64);
        let resident = |tensor: Tensor| runtime.run_with(Transfer::to_device(&tensor, device), require(device)).wait();
        Ok((resident(normals.tensor([SIZE, SIZE])?)?, resident(normals.tensor([SIZE, SIZE])?)?))
    };
    let inputs: Vec<(Tensor, Tensor)> = (0..callers).map(inputs).collect::<panoply::Result<_>>()?;
    let calls = inputs.into_iter().map(|(a, b)| move || product(runtime, device, &a, &b));
    all_at_once(calls.collect(), WARM_UPS, time)
}

/// Makes every caller call `ask` repeatedly for `time`, after `warm_ups` calls that do not count.
/// Returns the callers' results, and the total time.
pub(super) fn all_at_once<S: Send>(
    callers: Vec<impl FnMut() -> panoply::Result<S> + Send>,
    warm_ups: usize,
    time: Duration,
) -> panoply::Result<(Vec<S>, Duration)> {
    let barrier = &std::sync::Barrier::new(callers.len() + 1);
    std::thread::scope(|scope| {
        let call = |mut ask: Box<dyn FnMut() -> panoply::Result<S> + Send + '_>| -> panoply::Result<Vec<S>> {
            let warmed = (0..warm_ups).try_for_each(|_| ask().map(drop));
            // Every caller reaches the barrier, even if a warm-up call failed.
            barrier.wait();
            warmed?;
            let (start, mut seen) = (Instant::now(), Vec::new());
            while start.elapsed() < time {
                seen.push(ask()?);
            }
            Ok(seen)
        };
        let threads: Vec<_> = callers.into_iter().map(|ask| scope.spawn(move || call(Box::new(ask)))).collect();
        barrier.wait();
        let start = Instant::now();
        let mut all = Vec::new();
        for thread in threads {
            let seen = thread.join().map_err(|_| panoply::Error::invalid("a caller", "an end", "a panic"))?;
            all.extend(seen?);
        }
        Ok((all, start.elapsed()))
    })
}

fn product(runtime: &Runtime, device: DeviceId, a: &Tensor, b: &Tensor) -> panoply::Result<ProductTimes> {
    let start = Instant::now();
    let report = runtime.run_with(MatMul::new(a, b), require(device)).with_report().wait()?.report;
    let (latency, batch_size) = (start.elapsed(), report.batch_size);
    Ok(ProductTimes { latency, queued: report.queued, ran: report.ran, batch_size })
}

fn require(device: DeviceId) -> RunOptions {
    RunOptions::require(device)
}

fn row(
    device: DeviceId,
    way: &Way,
    callers: usize,
    seen: Vec<ProductTimes>,
    ops_per_second: f64,
    times: f64,
) -> CallersRow {
    let sorted = |of: fn(&ProductTimes) -> Duration| {
        let mut micros: Vec<f64> = seen.iter().map(|seen| of(seen).as_secs_f64() * 1e6).collect();
        micros.sort_by(f64::total_cmp);
        micros
    };
    let at = |values: &[f64], share: f64| {
        values.get(((values.len() as f64 * share) as usize).min(values.len().saturating_sub(1))).copied().unwrap_or(0.0)
    };
    let (latency, queued, ran) = (sorted(|seen| seen.latency), sorted(|seen| seen.queued), sorted(|seen| seen.ran));
    let batches: f64 = seen.iter().map(|seen| f64::from(seen.batch_size)).sum();
    CallersRow {
        device: device.to_string(),
        way: way.name,
        callers,
        ops: seen.len(),
        ops_per_second,
        times,
        p50_us: at(&latency, 0.5),
        p99_us: at(&latency, 0.99),
        p99_limit_us: way.batching.wait_max().as_secs_f64() * 1e6 + at(&ran, 0.99),
        wait_p50_us: at(&queued, 0.5),
        wait_max_us: at(&queued, 1.0),
        run_p50_us: at(&ran, 0.5),
        run_p99_us: at(&ran, 0.99),
        mean_batch: batches / (seen.len().max(1)) as f64,
    }
}

fn head() -> String {
    let latency = format!("{:>8}{:>8}{:>8}", "P50 µs", "P99", "LIMIT");
    let parts = format!("{:>10}{:>10}{:>9}{:>9}{:>7}", "WAIT p50", "max", "RUN p50", "p99", "BATCH");
    format!("{:<14}{:<16}{:>12}{:>7}{latency}{parts}", "DEVICE", "WAY", "OPS/S", "TIMES")
}

fn line(row: &CallersRow) -> String {
    let latency = format!("{:>8.0}{:>8.0}{:>8.0}", row.p50_us, row.p99_us, row.p99_limit_us);
    let waits = format!("{:>10.0}{:>10.0}", row.wait_p50_us, row.wait_max_us);
    let runs = format!("{:>9.0}{:>9.0}{:>7.1}", row.run_p50_us, row.run_p99_us, row.mean_batch);
    format!("{:<14}{:<16}{:>12.0}{:>7.2}{latency}{waits}{runs}", row.device, row.way, row.ops_per_second, row.times)
}
