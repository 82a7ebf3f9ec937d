//! `panoply bench --chains`: two callers, each with a chain of small ops on a device. A link reads
//! the answer of the link before. One chain alone is measured, both one after the other, and both
//! at once: independent ops of a device that can do so overlap.

use std::time::{Duration, Instant};

use panoply::graph::Graph;
use panoply::prelude::*;
use panoply::{DType, DeviceId};
use serde::Serialize;

use super::budget::Time;
use super::callers::all_at_once;
use super::random::Normals;
use super::start_with;
use crate::configuration::{BenchOptions, Format};
use crate::failure::Failure;
use crate::screen::Screen;

/// Rows and columns of the matrices.
const SIZE: usize = 256;
/// Products in a chain, each with a softmax behind it.
const PRODUCTS: usize = 16;
/// How long each way is measured in each round, unless the user sets a time; and the rounds, of
/// which the median counts.
const TIME_PER_WAY: Duration = Duration::from_millis(500);
const ROUNDS: usize = 5;
/// The most chains of each caller before measuring starts, which fill pools and record graphs. Slow
/// devices run as many as the time allows, but at least two.
const WARM_UPS_MAX: usize = 50;
const WARM_UPS_MIN: usize = 2;

/// How a caller runs its chain.
#[derive(Clone, Copy)]
enum ChainKind {
    /// Op after op, each after the answer of the one before.
    Ops,
    /// As one graph.
    Graph,
}

/// The times of a kind of chain on one device.
#[derive(Serialize)]
struct ChainsRow {
    device: String,
    chain: &'static str,
    ops: usize,
    /// One chain.
    alone_us: f64,
    /// Two chains, one after the other.
    in_turn_us: f64,
    /// Two chains of two callers.
    at_once_us: f64,
    /// `at_once_us / in_turn_us`: the median of the rounds.
    ratio: f64,
}

/// Measures both kinds of chains on the first device of each API. Fails if a ratio is above
/// `ratio_max`.
pub fn run(options: &BenchOptions, ratio_max: f64, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start_with(options, false, |_| {})?;
    let time = match options.time {
        Time::PerCase(time) => time,
        Time::InAll(_) => TIME_PER_WAY,
    };
    if options.format == Format::Table {
        screen.line(screen.strong(&head()))?;
    }
    let mut over = Vec::new();
    for device in super::first_of_each_api(&runtime) {
        for kind in [ChainKind::Ops, ChainKind::Graph] {
            let row = measure(&runtime, device.id, kind, time).map_err(anyhow::Error::new)?;
            match options.format {
                Format::Json => screen.json_line(&row)?,
                Format::Table => screen.line(line(&row))?,
            }
            screen.flush()?;
            if row.ratio > ratio_max {
                over.push(format!("{:.2} for the chains of {} on {}", row.ratio, row.chain, row.device));
            }
        }
    }
    match over.is_empty() {
        true => Ok(()),
        false => Err(Failure::Run(anyhow::anyhow!(
            "two chains at once: expected at most {ratio_max} of the time in turn, got {}",
            over.join(", ")
        ))),
    }
}

fn measure(runtime: &Runtime, device: DeviceId, kind: ChainKind, time: Duration) -> panoply::Result<ChainsRow> {
    let chains = [chain(runtime, device, kind, 1)?, chain(runtime, device, kind, 2)?];
    let (first, second): (&Chain<'_>, &Chain<'_>) = (&*chains[0], &*chains[1]);
    let both = || first().and_then(|()| second());
    let (mut alone, mut in_turn, mut at_once, mut ratios) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    // Compiles the kernels.
    both()?;
    let start = Instant::now();
    both()?;
    let fitting = (time.as_secs_f64() / start.elapsed().as_secs_f64().max(1e-9)) as usize;
    for round in 0..ROUNDS {
        let warm_ups = if round == 0 { fitting.clamp(WARM_UPS_MIN, WARM_UPS_MAX) } else { 1 };
        alone.push(time_of(vec![first], warm_ups, time)?);
        in_turn.push(time_of(vec![&both as &Chain<'_>], warm_ups, time)?);
        // Each caller runs one chain of a pair.
        at_once.push(time_of(vec![first, second], warm_ups, time)? * 2.0);
        ratios.push(at_once[round] / in_turn[round]);
    }
    let [alone_us, in_turn_us, at_once_us, ratio] = [alone, in_turn, at_once, ratios].map(median);
    let chain = if let ChainKind::Ops = kind { "ops" } else { "graph" };
    Ok(ChainsRow { device: device.to_string(), chain, ops: 2 * PRODUCTS, alone_us, in_turn_us, at_once_us, ratio })
}

type Chain<'a> = dyn Fn() -> panoply::Result<()> + Sync + 'a;

/// The time for each call, in microseconds, if every caller repeats its own for `time`.
fn time_of(callers: Vec<&Chain<'_>>, warm_ups: usize, time: Duration) -> panoply::Result<f64> {
    let (calls, took) = all_at_once(callers, warm_ups, time)?;
    Ok(took.as_secs_f64() * 1e6 / calls.len().max(1) as f64)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// A chain on matrices of its own, on the device.
fn chain(
    runtime: &Runtime,
    device: DeviceId,
    kind: ChainKind,
    seed: u64,
) -> panoply::Result<Box<dyn Fn() -> panoply::Result<()> + Sync + '_>> {
    let mut normals = Normals::new(seed);
    let options = move || RunOptions::require(device);
    let mut resident = || -> panoply::Result<Tensor> {
        runtime.run_with(Transfer::to_device(&normals.tensor([SIZE, SIZE])?, device), options()).wait()
    };
    let (x, w) = (resident()?, resident()?);
    if let ChainKind::Ops = kind {
        return Ok(Box::new(move || {
            let mut x = x.clone();
            for _ in 0..PRODUCTS {
                let product = runtime.run_with(MatMul::new(&x, &w), options()).wait()?;
                x = runtime.run_with(Softmax::new(&product), options()).wait()?;
            }
            Ok(())
        }));
    }
    let mut g = Graph::builder("chain");
    let (mut y, factor) = (
        g.input("x", DType::F32, &[SIZE.into(), SIZE.into()])?,
        g.input("w", DType::F32, &[SIZE.into(), SIZE.into()])?,
    );
    for _ in 0..PRODUCTS {
        let product = g.matmul(y, factor)?;
        y = g.softmax(product, 1)?;
    }
    g.output("y", y)?;
    let graph = RunGraph::new(&g.finish()?, &[&x, &w]);
    Ok(Box::new(move || runtime.run_with(graph.clone(), options()).wait().map(drop)))
}

fn head() -> String {
    format!("{:<14}{:<8}{:>12}{:>14}{:>14}{:>8}", "DEVICE", "CHAIN", "ALONE µs", "IN TURN µs", "AT ONCE µs", "RATIO")
}

fn line(row: &ChainsRow) -> String {
    let times = format!("{:>12.0}{:>14.0}{:>14.0}", row.alone_us, row.in_turn_us, row.at_once_us);
    format!("{:<14}{:<8}{times}{:>8.2}", row.device, row.chain, row.ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_share_the_time_of_their_chains() {
        let chain = || {
            std::thread::sleep(Duration::from_millis(2));
            Ok(())
        };
        let chain: &Chain<'_> = &chain;
        let alone = time_of(vec![chain], 1, Duration::from_millis(60)).unwrap();
        let at_once = 2.0 * time_of(vec![chain, chain], 1, Duration::from_millis(60)).unwrap();
        assert!(alone >= 2_000.0 && at_once < 1.8 * alone, "{alone} {at_once}");
    }
}
