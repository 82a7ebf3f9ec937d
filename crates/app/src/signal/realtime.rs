//! `panoply signal realtime`: runs a receiver on one thread, period by period, and counts missed
//! deadlines.

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use panoply::Object;
use panoply::placement::realtime::{Deadlines, Policy, Standing, Ticker};
use panoply::placement::{CpuSet, Histogram, affinity};
use panoply::prelude::*;
use panoply::signal::packets::{Here, Runs};
use panoply::signal::synthetic::{Channel, Noise};
use panoply::signal::{SampleFormat, root_raised_cosine, write_samples};
use serde::Serialize;

use super::{hertz, progress};
use crate::configuration::Format;
use crate::configuration::signal::RealtimeOptions;
use crate::failure::Failure;
use crate::screen::Screen;

/// Samples per symbol, and the pulse length in symbols.
const SYMBOL_SAMPLES: usize = 2;
const PULSE_SYMBOLS: usize = 20;
/// Frames of the signal, which repeats after the last, and bits per frame.
const FRAMES: usize = 64;
const FRAME_BITS: usize = 512;
const CODED_BITS: usize = 2 * (FRAME_BITS + 6);
/// The noise power in each sample; the symbol power is 1.
const NOISE: f64 = 0.1;
/// Warm-up periods that are not measured, in which memory and tables are allocated.
const PERIODS_WARM: usize = 20;

/// The column at which the bars of the histogram start, and the length of the longest.
const BAR_START: usize = 23;
const BAR_WIDTH_MAX: usize = 60;

#[derive(Serialize)]
struct RealtimeReport {
    period_us: u64,
    samples_per_period: usize,
    rate_hz: f64,
    periods: u64,
    busy_threads: usize,
    standing: String,
    notes: Vec<String>,
    met: u64,
    missed: u64,
    overruns: u64,
    share_met: f64,
    /// The number of missed or overrun periods that would have met their deadline if the thread had
    /// had the CPU to itself.
    kept_off: u64,
    /// How long the thread was ready while other threads ran, and how long the host of a virtual
    /// machine ran something else while its CPUs were ready. `None` if the system does not report
    /// it.
    behind_threads_us: Option<u64>,
    behind_host_us: Option<u64>,
    /// Samples per second, if the thread never waited and had the CPU to itself.
    capacity_hz: f64,
    bits_decoded: u64,
    bits_wrong: u64,
    jitter_us: Quantiles,
    work_us: Quantiles,
    /// The CPU time of the work.
    own_us: Quantiles,
    /// The jitter histogram: the upper end of each bucket in microseconds, and its count.
    jitter_histogram: Vec<(f64, u64)>,
}

#[derive(Serialize)]
struct Quantiles {
    median: f64,
    p99: f64,
    p9999: f64,
    max: f64,
}

/// Runs `panoply signal realtime`.
pub fn run(options: &RealtimeOptions, screen: &mut Screen) -> Result<(), Failure> {
    let findings = measured(options)?;
    match options.format {
        Format::Json => screen.json(&findings),
        Format::Table => print(&findings, screen),
    }
}

fn measured(options: &RealtimeOptions) -> Result<RealtimeReport> {
    let mut policy = Policy { priority: options.priority, cpus: None, lock_memory: options.priority.is_some() };
    if let Some(cpu) = options.cpu {
        policy = policy.on(CpuSet::from_cpus([cpu]).map_err(|error| anyhow!("--cpu: {error}"))?);
    }
    let stop = AtomicBool::new(false);
    let received = thread::scope(|scope| {
        for _ in 0..options.busy {
            scope.spawn(|| {
                let mut sum = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    sum = black_box(sum.wrapping_mul(3).wrapping_add(1));
                }
            });
        }
        let done = scope.spawn(|| received(options, &policy)).join();
        stop.store(true, Ordering::Relaxed);
        done.map_err(|_| anyhow!("the receiver panicked"))?
    })?;
    Ok(findings(options, &received))
}

/// The receiver's results over all periods.
struct ReceiverResults {
    standing: Standing,
    deadlines: Deadlines,
    decoded: u64,
    wrong: u64,
    behind_threads: Option<Duration>,
    behind_host: Option<Duration>,
}

fn received(options: &RealtimeOptions, policy: &Policy) -> Result<ReceiverResults> {
    let mut receiver = ReceiverThread::new(options.samples)?;
    for _ in 0..PERIODS_WARM {
        receiver.period()?;
    }
    (receiver.decoded, receiver.wrong) = (0, 0);
    let bar = progress(Some(options.periods), "periods");
    let standing = policy.enter();
    let lost = || (affinity::waited_time(), affinity::stolen_time(options.cpu));
    let before = lost();
    let mut ticker = Ticker::new(options.period);
    for number in 0..options.periods {
        ticker.wait();
        receiver.period()?;
        ticker.done();
        if number.is_multiple_of(512) {
            bar.set_position(number);
        }
    }
    let behind = lost();
    bar.finish_and_clear();
    let since = |(before, now): (Duration, Duration)| now.saturating_sub(before);
    Ok(ReceiverResults {
        standing,
        deadlines: ticker.deadlines().clone(),
        decoded: receiver.decoded,
        wrong: receiver.wrong,
        behind_threads: before.0.zip(behind.0).map(since),
        behind_host: before.1.zip(behind.1).map(since),
    })
}

/// A signal that repeats, and a receiver with its state.
struct ReceiverThread {
    here: Here,
    /// The samples in a radio's format: i16, two per complex sample.
    bytes: Vec<u8>,
    loop_bytes: usize,
    at: usize,
    period_bytes: usize,
    stream: Object,
    sent: Vec<u8>,
    /// Soft bits of frames that are not complete yet.
    softs: Vec<u8>,
    /// Symbols still to skip, because the pulse filters delay the first sent symbol.
    early: usize,
    frame: usize,
    decoded: u64,
    wrong: u64,
}

impl ReceiverThread {
    fn new(period_samples: usize) -> Result<ReceiverThread> {
        let mut here = Here::with_streams();
        let taps: Vec<f32> =
            root_raised_cosine(SYMBOL_SAMPLES, 0.35, PULSE_SYMBOLS)?.iter().map(|tap| *tap as f32).collect();
        let taps = Tensor::from_slice(&taps, [taps.len()])?;
        let sent = Noise::new(1).bytes(FRAMES * FRAME_BITS / 8);
        let samples = samples(&mut here, &taps, &sent)?;
        let mut bytes = Vec::new();
        write_samples(
            SampleFormat::I16,
            &samples.iter().flat_map(|value| [value.re / 4.0, value.im / 4.0]).collect::<Vec<_>>(),
            &mut bytes,
        );
        let filter = Filter::Fir { taps, up: 1, down: SYMBOL_SAMPLES };
        let stream = here.run(StartFilter::new(filter, DType::Complex64))?;
        Ok(ReceiverThread {
            here,
            loop_bytes: bytes.len(),
            bytes,
            at: 0,
            period_bytes: 4 * period_samples,
            stream,
            sent,
            softs: Vec::new(),
            early: PULSE_SYMBOLS,
            frame: 0,
            decoded: 0,
            wrong: 0,
        })
    }

    /// Runs one period: reads, filters, demodulates and decodes the samples, and compares the bits
    /// with those sent.
    fn period(&mut self) -> Result<()> {
        let mut raw = Vec::with_capacity(self.period_bytes);
        while raw.len() < self.period_bytes {
            let end = self.loop_bytes.min(self.at + self.period_bytes - raw.len());
            raw.extend_from_slice(&self.bytes[self.at..end]);
            self.at = end % self.loop_bytes;
        }
        let len = raw.len();
        let samples = self.here.run(ReadSamples::new(SampleFormat::I16, &Tensor::from_vec(raw, [len])?).complex())?;
        let symbols = self.here.run(StreamFilter::new(&self.stream, &samples))?;
        let likely = self.here.run(Demodulate::soft(Constellation::Qpsk, &symbols, NOISE as f32))?;
        let skipped = self.early.min(symbols.elements());
        self.early -= skipped;
        let soft = |value: &f32| (128.0 - 13.0 * value).clamp(0.0, 255.0) as u8;
        self.softs.extend(likely.as_slice::<f32>()?[2 * skipped..].iter().map(soft));
        self.frames()
    }

    fn frames(&mut self) -> Result<()> {
        let count = self.softs.len() / CODED_BITS;
        if count == 0 {
            return Ok(());
        }
        let whole: Vec<u8> = self.softs.drain(..count * CODED_BITS).collect();
        let bits = self.here.run(Viterbi::new(&Tensor::from_vec(whole, [count, CODED_BITS])?, FRAME_BITS))?;
        for got in bits.as_slice::<u8>()?.chunks(FRAME_BITS / 8) {
            let sent = &self.sent[self.frame * FRAME_BITS / 8..(self.frame + 1) * FRAME_BITS / 8];
            self.wrong += got.iter().zip(sent).map(|(got, sent)| u64::from((got ^ sent).count_ones())).sum::<u64>();
            self.frame = (self.frame + 1) % FRAMES;
        }
        self.decoded += (count * FRAME_BITS) as u64;
        Ok(())
    }
}

/// Makes the signal of the frames, such that it can be repeated without a seam.
fn samples(here: &mut Here, taps: &Tensor, sent: &[u8]) -> Result<Vec<Complex64>> {
    let coded = here.run(ConvolutionalEncode::new(&Tensor::from_slice(sent, [FRAMES, FRAME_BITS / 8])?, FRAME_BITS))?;
    let frame_symbols =
        |frame: &[u8]| (0..CODED_BITS / 2).map(|at| frame[at / 4] >> (6 - 2 * (at % 4)) & 3).collect::<Vec<u8>>();
    let symbols: Vec<u8> = coded.as_slice::<u8>()?.chunks(CODED_BITS.div_ceil(8)).flat_map(frame_symbols).collect();
    let points = here.run(Modulate::new(Constellation::Qpsk, &Tensor::from_slice(&symbols, [symbols.len()])?))?;
    let points = points.to_vec::<Complex64>()?;
    let twice = [&points[..], &points].concat();
    let wave = here.run(Fir::new(&Tensor::from_slice(&twice, [twice.len()])?, taps).interpolate(SYMBOL_SAMPLES))?;
    let mut wave = wave.to_vec::<Complex64>()?[points.len() * SYMBOL_SAMPLES..].to_vec();
    Channel::new(2).noise(NOISE)?.pass(&mut wave);
    Ok(wave)
}

fn findings(options: &RealtimeOptions, received: &ReceiverResults) -> RealtimeReport {
    let ReceiverResults { standing, deadlines, .. } = received;
    let own_ns = if deadlines.own_ns.count() > 0 { &deadlines.own_ns } else { &deadlines.work_ns };
    let mean_s = own_ns.mean() / 1e9;
    let us = |time: Duration| time.as_micros() as u64;
    RealtimeReport {
        period_us: options.period.as_micros() as u64,
        samples_per_period: options.samples,
        rate_hz: options.samples as f64 / options.period.as_secs_f64(),
        periods: options.periods,
        busy_threads: options.busy,
        standing: standing.to_string(),
        notes: standing.notes(),
        met: deadlines.met,
        missed: deadlines.missed,
        overruns: deadlines.overruns,
        share_met: deadlines.share_met(),
        kept_off: deadlines.kept_off,
        behind_threads_us: received.behind_threads.map(us),
        behind_host_us: received.behind_host.map(us),
        capacity_hz: if mean_s > 0.0 { options.samples as f64 / mean_s } else { 0.0 },
        bits_decoded: received.decoded,
        bits_wrong: received.wrong,
        jitter_us: quantiles(&deadlines.jitter_ns),
        work_us: quantiles(&deadlines.work_ns),
        own_us: quantiles(own_ns),
        jitter_histogram: deadlines.jitter_ns.steps().map(|(upper, count)| (upper as f64 / 1e3, count)).collect(),
    }
}

fn quantiles(histogram: &Histogram) -> Quantiles {
    let us = |share: f64| histogram.quantile(share) as f64 / 1e3;
    Quantiles { median: us(0.5), p99: us(0.99), p9999: us(0.9999), max: histogram.max() as f64 / 1e3 }
}

fn print(findings: &RealtimeReport, screen: &mut Screen) -> Result<(), Failure> {
    screen.line(screen.strong(&format!(
        "{} samples every {} µs: {} a second",
        findings.samples_per_period,
        findings.period_us,
        hertz(findings.rate_hz)
    )))?;
    screen.prose(&format!("scheduling: {}", findings.standing))?;
    let late = format!("{} late, {} periods overrun", findings.missed, findings.overruns);
    let late = if findings.missed + findings.overruns > 0 { screen.alarming(&late) } else { late };
    screen.line(format!(
        "deadlines: {} of {} met ({:.4} %), {late}",
        findings.met,
        findings.met + findings.missed + findings.overruns,
        100.0 * findings.share_met
    ))?;
    if findings.kept_off > 0 {
        screen.line(format!(
            "           {} of those while something else had the CPU{}",
            findings.kept_off,
            elsewhere(findings)
        ))?;
    }
    let times = [("jitter", &findings.jitter_us), ("work", &findings.work_us), ("of CPU", &findings.own_us)];
    for (name, times) in times {
        screen.line(format!(
            "{name:>9}: {:.1} µs in the middle, {:.1} at 99 %, {:.1} at 99.99 %, {:.1} at the most",
            times.median, times.p99, times.p9999, times.max
        ))?;
    }
    screen.line(format!("  decoded: {} bits, {} wrong", findings.bits_decoded, findings.bits_wrong))?;
    screen.line(format!(" capacity: {} of samples on this core", hertz(findings.capacity_hz)))?;
    screen.line(screen.faint("jitter up to"))?;
    let width = screen.width().saturating_sub(BAR_START).min(BAR_WIDTH_MAX);
    for (upper, count, bar) in bars(&joined(&findings.jitter_histogram), width) {
        screen.line(format!("{upper:9.1} µs {count:9} {}", screen.faint(&bar)))?;
    }
    Ok(())
}

/// Adds a bar to each bucket. The bar of the largest has this width.
fn bars(buckets: &[(f64, u64)], width: usize) -> Vec<(f64, u64, String)> {
    let most = buckets.iter().map(|(_, count)| *count).max().unwrap_or(1).max(1);
    let bar = |count: u64| "█".repeat((count as f64 / most as f64 * width as f64).ceil() as usize);
    buckets.iter().map(|(upper, count)| (*upper, *count, bar(*count))).collect()
}

/// Formats the time that the thread lost to other threads and to the host, as far as the system
/// reports it.
fn elsewhere(findings: &RealtimeReport) -> String {
    let told = |what: &str, time: Option<u64>| time.map(|us| format!("{:.2} ms {what}", us as f64 / 1e3));
    let told =
        [told("behind other threads", findings.behind_threads_us), told("taken by the host", findings.behind_host_us)];
    let told: Vec<String> = told.into_iter().flatten().collect();
    if told.is_empty() { String::new() } else { format!(": {}", told.join(", ")) }
}

/// Merges histogram buckets into powers of two, so that they fit on a screen.
fn joined(steps: &[(f64, u64)]) -> Vec<(f64, u64)> {
    let mut joined: Vec<(f64, u64)> = Vec::new();
    for (upper, count) in steps {
        let end = upper.max(0.1).log2().ceil().exp2();
        match joined.last_mut().filter(|(last, _)| *last == end) {
            Some((_, total)) => *total += count,
            None => joined.push((end, *count)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: bars were as long as buckets are large beside a single step of the histogram, so
    /// they were up to 172 columns wide on any screen.
    #[test]
    fn bars_are_as_wide_as_the_screen_allows() {
        let steps: Vec<(f64, u64)> = (0..16).map(|step| (8.0 + f64::from(step) / 2.0, 100)).collect();
        let bars = bars(&joined(&steps), 17);
        assert_eq!(bars.iter().map(|(_, _, bar)| bar.chars().count()).max(), Some(17), "{bars:?}");
    }
}
