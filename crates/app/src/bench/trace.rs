//! `panoply bench --trace`: runs a seeded trace of ops of four kinds, with sizes over five decades,
//! which arrive in bursts. The router is compared with two kinds of baselines: each device alone,
//! and an oracle that knows the measured best device of each op. Inputs start on the host, and
//! outputs return to the host.
//!
//! A policy that would take too long runs only the beginning of the trace, and its total is
//! extrapolated. While a policy runs, a thread samples how often a device is idle while another has
//! a queue.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use panoply::backend::Op;
use panoply::prelude::*;
use panoply::{DType, DeviceId};
use serde::Serialize;

use super::random::Normals;
use crate::configuration::{BenchOptions, Format};
use crate::failure::Failure;
use crate::op_kind::{AnyOp, OpKind, size_text};
use crate::screen::Screen;

/// Measurements of each op on each device for the oracle: at least the minimum, and up to the
/// maximum within the time.
const MEASURED_TIMES_MIN: usize = 4;
const MEASURED_TIMES_MAX: usize = 100;
const MEASURED_TIME: Duration = Duration::from_millis(10);
/// The longest run of a policy; the rest of the trace is extrapolated.
const WAY_TIME_MAX: Duration = Duration::from_secs(15);
/// The sampling interval of the devices' queues while a trace runs.
const LOOK_EVERY: Duration = Duration::from_micros(500);
/// The most ops in a burst.
const BURST_MAX: u64 = 128;
const SEED: u64 = 2026;

/// One op of the repertoire.
struct Piece {
    kind: OpKind,
    size: Vec<usize>,
    op: Op,
    /// The best time on each device; `None` if the device does not run the op.
    times: Vec<Option<Duration>>,
}

/// The repertoire of ops, the devices, and the order in which ops arrive.
struct Trace {
    pieces: Vec<Piece>,
    devices: Vec<DeviceId>,
    /// Bursts of indices into `pieces`.
    bursts: Vec<Vec<usize>>,
}

/// The result of one policy.
#[derive(Serialize)]
struct TraceRow {
    policy: String,
    /// The ops of the whole trace, and the number of them that ran.
    ops: usize,
    ops_run: usize,
    /// Seconds for the whole trace, extrapolated if only a part ran.
    seconds: f64,
    /// The share of samples in which a device was idle while another had a queue.
    idle_beside_a_queue: f64,
    /// The number of ops that each device ran.
    shares: Vec<(String, usize)>,
}

/// Runs the trace with each policy and prints the totals.
pub fn run(options: &BenchOptions, runtime: &Runtime, fresh: Runtime, screen: &mut Screen) -> Result<(), Failure> {
    let devices: Vec<DeviceId> = runtime.devices().map(|device| device.id).collect();
    let mut trace = Trace { pieces: repertoire()?, devices, bursts: Vec::new() };
    trace.measure(runtime)?;
    trace.draw(options.trace_ops);
    if options.format == Format::Table {
        trace.print_repertoire(screen)?;
    }
    let mut rows = Vec::new();
    for (index, device) in trace.devices.iter().enumerate() {
        if trace.pieces.iter().all(|piece| piece.times[index].is_some()) {
            rows.push(trace.play(runtime, format!("always {device}"), |_| RunOptions::require(*device))?);
        }
    }
    rows.push(trace.play(runtime, "oracle".to_owned(), |piece| RunOptions::require(trace.best(piece)))?);
    rows.push(trace.play(runtime, "router".to_owned(), |_| RunOptions::default())?);
    rows.push(trace.play(&fresh, "router, nothing learned".to_owned(), |_| RunOptions::default())?);
    show(&rows, options.format, screen)
}

fn repertoire() -> Result<Vec<Piece>, Failure> {
    let sizes: [(OpKind, Vec<usize>); 4] = [
        (OpKind::MatMul, (3..=10).map(|power| 1 << power).collect()),
        (OpKind::Map, (6..=22).step_by(2).map(|power| 1 << power).collect()),
        (OpKind::Reduce, (6..=22).step_by(2).map(|power| 1 << power).collect()),
        (OpKind::Sort, (6..=20).step_by(2).map(|power| 1 << power).collect()),
    ];
    let make = |dims: &[usize]| Normals::new(7).tensor_of(DType::F32, dims);
    let mut pieces = Vec::new();
    for (kind, sizes) in sizes {
        for size in sizes {
            let size = vec![size];
            let op = kind.op(&size, &make).ok_or_else(|| anyhow::anyhow!("{} has no such size", kind.name()))?;
            pieces.push(Piece { kind, size, op: op.map_err(anyhow::Error::new)?, times: Vec::new() });
        }
    }
    Ok(pieces)
}

impl Trace {
    /// Measures every piece on every device, which also teaches the router.
    fn measure(&mut self, runtime: &Runtime) -> Result<(), Failure> {
        for piece in &mut self.pieces {
            for device in &self.devices {
                let (mut best, begun) = (None, Instant::now());
                for round in 0..MEASURED_TIMES_MAX {
                    if round >= MEASURED_TIMES_MIN && begun.elapsed() > MEASURED_TIME {
                        break;
                    }
                    let start = Instant::now();
                    let options = RunOptions::require(*device).to_host();
                    let Ok(_) = runtime.run_with(AnyOp(piece.op.clone()), options).wait() else { break };
                    let took = start.elapsed();
                    best = Some(best.map_or(took, |best: Duration| best.min(took)));
                }
                piece.times.push(best);
            }
            if piece.times.iter().all(Option::is_none) {
                return Err(Failure::Run(anyhow::anyhow!("no device runs {}", piece.kind.name())));
            }
        }
        Ok(())
    }

    /// Draws the bursts. Pieces are drawn uniformly, so that sizes are spread evenly over the
    /// decades.
    fn draw(&mut self, ops: usize) {
        let mut random = Draws(SEED);
        let mut left = ops;
        while left > 0 {
            let length = (1 + random.below(BURST_MAX)).min(left as u64) as usize;
            self.bursts.push((0..length).map(|_| random.below(self.pieces.len() as u64) as usize).collect());
            left -= length;
        }
    }

    fn best(&self, piece: &Piece) -> DeviceId {
        let timed = piece.times.iter().zip(&self.devices).filter_map(|(time, device)| Some(((*time)?, *device)));
        timed.min().map_or(self.devices[0], |(_, device)| device)
    }

    /// Runs the trace, or as much as fits in `WAY_TIME_MAX`. The ops of a burst are all sent,
    /// then all waited for.
    fn play(
        &self,
        runtime: &Runtime,
        policy: String,
        options: impl Fn(&Piece) -> RunOptions,
    ) -> Result<TraceRow, Failure> {
        let mut shares: Vec<(String, usize)> = Vec::new();
        let (done, start) = (AtomicBool::new(false), Instant::now());
        let mut ops_run = 0;
        let looks = std::thread::scope(|scope| {
            let watch = scope.spawn(|| watch(runtime, &done));
            let mut play = || -> Result<Duration, Failure> {
                for burst in self.bursts.iter().take_while(|_| start.elapsed() < WAY_TIME_MAX) {
                    self.play_burst(burst, runtime, &options, &mut shares)?;
                    ops_run += burst.len();
                }
                Ok(start.elapsed())
            };
            let took = play();
            done.store(true, Ordering::Relaxed);
            took.map(|took| (took, watch.join().unwrap_or_default()))
        });
        let (took, (looks, idle)) = looks?;
        let ops: usize = self.bursts.iter().map(Vec::len).sum();
        let seconds = took.as_secs_f64() * ops as f64 / ops_run.max(1) as f64;
        let idle_beside_a_queue = idle as f64 / looks.max(1) as f64;
        Ok(TraceRow { policy, ops, ops_run, seconds, idle_beside_a_queue, shares })
    }

    fn play_burst(
        &self,
        burst: &[usize],
        runtime: &Runtime,
        options: &impl Fn(&Piece) -> RunOptions,
        shares: &mut Vec<(String, usize)>,
    ) -> Result<(), Failure> {
        let send = |index: &usize| {
            let piece = &self.pieces[*index];
            runtime.run_with(AnyOp(piece.op.clone()), options(piece).to_host()).with_report()
        };
        let pending: Vec<_> = burst.iter().map(send).collect();
        for op in pending {
            let report = op.wait().map_err(anyhow::Error::new)?.report;
            let device = report.device.to_string();
            match shares.iter_mut().find(|(name, _)| *name == device) {
                Some((_, count)) => *count += 1,
                None => shares.push((device, 1)),
            }
        }
        Ok(())
    }

    fn print_repertoire(&self, screen: &mut Screen) -> Result<(), Failure> {
        let names: Vec<String> = self.devices.iter().map(|device| format!("{:>14}", device.to_string())).collect();
        screen.line(screen.strong(&format!("{:<20}{}", "OP", names.concat())))?;
        for piece in &self.pieces {
            let cell = |time: &Option<Duration>| match time {
                Some(time) => format!("{:>11.1} µs", time.as_secs_f64() * 1e6),
                None => format!("{:>14}", "cannot"),
            };
            let times: String = piece.times.iter().map(cell).collect();
            let name = format!("{} {}", piece.kind.name(), size_text(&piece.size));
            screen.line(screen.faint(&format!("{name:<20}{times}")))?;
        }
        Ok(())
    }
}

/// Samples the queues. Returns the number of samples, and of those in which a device was idle while
/// another had a queue.
fn watch(runtime: &Runtime, done: &AtomicBool) -> (usize, usize) {
    let (mut looks, mut idle) = (0, 0);
    while !done.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK_EVERY);
        let workers = runtime.workers();
        let resting = workers.iter().any(|worker| {
            let counters = &worker.counters;
            counters.completed + counters.failed + counters.cancelled + counters.moved >= counters.accepted
        });
        looks += 1;
        idle += usize::from(resting && workers.iter().any(|worker| worker.queued > 0));
    }
    (looks, idle)
}

fn show(rows: &[TraceRow], format: Format, screen: &mut Screen) -> Result<(), Failure> {
    if format == Format::Json {
        return rows.iter().try_for_each(|row| screen.json_line(row));
    }
    let oracle = rows.iter().find(|row| row.policy == "oracle").map_or(f64::NAN, |row| row.seconds);
    let head = format!("{:<26}{:>10}{:>14}{:>8}  SHARES", "POLICY", "SECONDS", "OF ORACLE", "IDLE");
    screen.line(screen.strong(&head))?;
    for row in rows {
        let shares: Vec<String> = row.shares.iter().map(|(device, count)| format!("{device} {count}")).collect();
        let (ratio, idle) = (row.seconds / oracle, 100.0 * row.idle_beside_a_queue);
        let part = if row.ops_run < row.ops { format!(" (of {} run)", row.ops_run) } else { String::new() };
        let figures = format!("{:<26}{:>10.3}{:>13.2}x{:>6.1} %", row.policy, row.seconds, ratio, idle);
        screen.line(format!("{figures}  {}{part}", shares.join(", ")))?;
    }
    screen.line(screen.faint("IDLE: share of samples in which a device was idle while another had a queue"))
}

/// A seeded generator: it makes the same trace in every run.
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % limit.max(1)
    }
}
