//! `panoply bench --models --callers`: threads that each send one request after the other to a
//! model server, which batches them. The inputs are on the host.

use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply::models::{Array, Model};
use panoply::serve::{ServeOptions, Server};
use panoply::{DeviceId, RunOptions, Runtime};
use serde::Serialize;

use super::budget::Time;
use super::callers::all_at_once;
use super::cases::Case;
use super::models::{self, ModelCase, refused};
use super::{first_of_each_api, start_with};
use crate::configuration::{BenchOptions, Format, ModelsOptions};
use crate::failure::Failure;
use crate::screen::Screen;

/// How long each configuration is measured, unless the user sets a time.
const TIME_PER_WAY: Duration = Duration::from_secs(2);
/// Answers of each caller before measuring starts.
const WARM_UPS: usize = 8;
/// The longest time that a request waits for others.
const WAIT_MAX: Duration = Duration::from_millis(1);
/// Server configurations: the most rows of a batch, and the number of batches in flight.
const WAYS: [(usize, usize); 4] = [(64, 1), (32, 2), (64, 2), (128, 2)];

/// The result of one configuration.
#[derive(Serialize)]
struct ServedRow {
    case: String,
    device: String,
    callers: usize,
    batch_max: usize,
    instances: usize,
    answers: usize,
    answers_per_second: f64,
    /// The throughput relative to one caller without a server.
    times: f64,
    p50_us: f64,
    p99_us: f64,
    mean_batch: f64,
}

/// Measures each model of a folder on the first device of each API.
pub fn run(options: &BenchOptions, of: &ModelsOptions, callers: usize, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = Arc::new(start_with(options, true, |settings| {
        settings.limits.in_flight_max = settings.limits.in_flight_max.max(callers);
    })?);
    let time = match options.time {
        Time::PerCase(time) => time,
        Time::InAll(_) => TIME_PER_WAY,
    };
    if options.format == Format::Table {
        screen.line(screen.strong(&head()))?;
    }
    let (cases, mut failed) = (models::single(of)?, 0);
    for case in &cases {
        for device in first_of_each_api(&runtime) {
            let shown = measure(case, &runtime, device.id, callers, time, |row| {
                match options.format {
                    Format::Json => screen.json_line(&row)?,
                    Format::Table => screen.line(line(&row))?,
                }
                screen.flush()
            });
            match shown {
                Err(Failure::Run(error)) => {
                    failed += 1;
                    crate::failure::warn(format!("{} on {}: {error:#}", case.name(), device.id));
                }
                other => other?,
            }
        }
    }
    match failed {
        0 => Ok(()),
        _ => Err(Failure::Run(anyhow::anyhow!("{failed} of {} models failed, as said above", cases.len()))),
    }
}

fn measure(
    case: &ModelCase,
    runtime: &Arc<Runtime>,
    device: DeviceId,
    callers: usize,
    time: Duration,
    mut show: impl FnMut(ServedRow) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (network, arrays) = case.load().map_err(anyhow::Error::new)?;
    let names: Vec<String> = network.inputs().iter().map(|port| port.name.clone()).collect();
    let inputs: Vec<(&str, Array)> = names.iter().map(String::as_str).zip(arrays).collect();
    let model = Model::new(&**runtime, network);
    let alone = RunOptions::require(device);
    let one = || model.infer_with(&inputs, &alone).map(drop).map_err(refused);
    let (latencies, took) = call(1, time, &one).map_err(anyhow::Error::new)?;
    let alone_rate = latencies.len() as f64 / took.as_secs_f64();
    let name = case.name();
    let row = |latencies: Vec<Duration>, took: Duration, way: (usize, usize), callers: usize, mean_batch: f64| {
        let mut micros: Vec<f64> = latencies.iter().map(|latency| latency.as_secs_f64() * 1e6).collect();
        micros.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let last = micros.len().saturating_sub(1);
            micros.get(((micros.len() as f64 * share) as usize).min(last)).copied().unwrap_or(0.0)
        };
        let answers_per_second = micros.len() as f64 / took.as_secs_f64();
        ServedRow {
            case: name.replacen("infer/", "serve/", 1),
            device: device.to_string(),
            callers,
            batch_max: way.0,
            instances: way.1,
            answers: micros.len(),
            answers_per_second,
            times: answers_per_second / alone_rate,
            p50_us: at(0.5),
            p99_us: at(0.99),
            mean_batch,
        }
    };
    show(row(latencies, took, (1, 1), 1, 1.0))?;
    for (batch_max, instances) in WAYS {
        let preferred: Vec<usize> = (0..).map(|power| 1 << power).take_while(|size| *size <= batch_max).collect();
        let sizes = preferred.clone();
        let queue_depth_max = callers.max(ServeOptions::default().queue_depth_max);
        let (wait_max, run) = (WAIT_MAX, alone.clone());
        let serving =
            ServeOptions { batch_max, preferred, wait_max, instances, queue_depth_max, run, ..ServeOptions::default() };
        let server = Server::start(&model, serving).map_err(refused).map_err(anyhow::Error::new)?;
        let sizes = sizes.into_iter().take_while(|size| *size <= callers.next_power_of_two());
        warm_up(&server, &inputs, sizes).map_err(refused).map_err(anyhow::Error::new)?;
        let ask = || server.infer(&inputs).map(drop).map_err(refused);
        let before = server.batches();
        let (latencies, took) = call(callers, time, &ask).map_err(anyhow::Error::new)?;
        let (batches, rows) = server.batches();
        let mean_batch = (rows - before.1) as f64 / (batches - before.0).max(1) as f64;
        show(row(latencies, took, (batch_max, instances), callers, mean_batch))?;
    }
    Ok(())
}

/// Runs batches of these sizes, so that they are compiled before the clock starts.
fn warm_up(
    server: &Server,
    inputs: &[(&str, Array)],
    sizes: impl Iterator<Item = usize>,
) -> Result<(), panoply::serve::Error> {
    for size in sizes {
        let (batches, rows) = server.batches();
        if size > 2 && batches == rows {
            break; // The server does not batch this model's requests.
        }
        let tickets = (0..size).map(|_| server.submit(inputs, &RunOptions::default()));
        let tickets = tickets.collect::<Result<Vec<_>, _>>()?;
        tickets.into_iter().try_for_each(|ticket| ticket.wait().map(drop))?;
    }
    Ok(())
}

/// Makes every caller send one request after the other for `time`.
fn call(
    callers: usize,
    time: Duration,
    ask: &(impl Fn() -> panoply::Result<()> + Sync),
) -> panoply::Result<(Vec<Duration>, Duration)> {
    let timed = || {
        let asked = Instant::now();
        ask().map(|()| asked.elapsed())
    };
    all_at_once(vec![timed; callers], WARM_UPS, time)
}

fn head() -> String {
    let latency = format!("{:>10}{:>10}{:>7}", "P50 µs", "P99", "BATCH");
    format!("{:<34}{:<12}{:>8}{:>9}{:>12}{:>7}{latency}", "CASE", "DEVICE", "CALLERS", "BATCHES", "ANSWERS/S", "TIMES")
}

fn line(row: &ServedRow) -> String {
    let ServedRow { case, device, callers, batch_max, instances, answers_per_second, times, .. } = row;
    let latency = format!("{:>10.0}{:>10.0}{:>7.1}", row.p50_us, row.p99_us, row.mean_batch);
    let way = format!("{instances} x {batch_max}");
    format!("{case:<34}{device:<12}{callers:>8}{way:>9}{answers_per_second:>12.0}{times:>7.2}{latency}")
}
