//! `panoply signal spectrum`: shows the mean power of each frequency, by Welch's method.

use anyhow::{Result, bail};
use panoply::prelude::*;
use panoply::signal::{Frames, PowerScale, Psd};
use serde::Serialize;

use super::chart::{self, Axis, Curve};
use super::picture::{Picture, colour};
use super::{
    DEPTH_DB, ascending, decibels, frequencies, hann, hertz, line_of, numbers_only, opened, progress, warn_of_odd,
};
use crate::configuration::Format;
use crate::configuration::signal::SpectrumOptions;
use crate::failure::Failure;
use crate::partial::Partial;
use crate::screen::Screen;
use crate::vectors::start;

/// The name of the axis of powers.
const POWER: &str = "power, dB";
/// Lines of the picture on a terminal, and pixels of the picture in a file.
const LINES: usize = 14;
const PIXELS: (usize, usize) = (1024, 400);

#[derive(Serialize)]
struct SpectrumReport {
    recording: String,
    rate_hz: f64,
    centre_hz: f64,
    samples: u64,
    /// Samples that are NaN or infinite, which count as silence.
    not_finite: u64,
    lowest_hz: f64,
    highest_hz: f64,
    peak_hz: f64,
    peak_db: f32,
    /// Powers by ascending frequency, in decibels relative to a full-scale tone.
    decibels: Vec<f32>,
}

/// Runs `panoply signal spectrum`.
pub fn run(options: &SpectrumOptions, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let findings = found(options, &runtime)?;
    let title = format!("{}: {} samples at {}", findings.recording, findings.samples, hertz(findings.rate_hz));
    if let Some(file) = &options.svg {
        Partial::create(file, true)?.finish_with(drawn(&title, &findings).as_bytes())?;
    }
    if let Some(file) = &options.png {
        Partial::create(file, true)?.finish_with(&painted(&findings).png(&runtime)?)?;
    }
    match options.format {
        Format::Json => screen.json(&findings),
        Format::Table => print(&title, &findings, screen),
    }
}

fn found(options: &SpectrumOptions, runtime: &Runtime) -> Result<SpectrumReport> {
    let mut reader = opened(&options.recording)?;
    let (layout, bar) = (*reader.layout(), progress(reader.samples_left(), "samples"));
    let frames = Frames::new(&hann(options.bins)?, options.bins / 2);
    let (mut sums, mut weight, mut samples, mut not_finite) = (Vec::new(), 0.0, 0, 0);
    for block in &mut reader {
        let Some(line) = line_of(block, weight == 0.0)? else { break };
        let line = numbers_only(line, &mut not_finite)?;
        samples += line.elements() as u64;
        bar.inc(line.elements() as u64);
        if line.elements() < options.bins {
            continue;
        }
        let op = Psd { input: line.clone(), frames: frames.clone(), detrend: false, scale: PowerScale::Spectrum };
        let powers = runtime.run(op).wait()?;
        let count = frames.count(line.elements()) as f64;
        sums.resize(powers.elements(), 0.0);
        sums.iter_mut().zip(powers.as_slice::<f32>()?).for_each(|(sum, power)| *sum += count * f64::from(*power));
        weight += count;
    }
    bar.finish_and_clear();
    warn_of_odd(not_finite, samples);
    if weight == 0.0 {
        bail!("the recording has {samples} samples; expected at least {}, or fewer --bins", options.bins);
    }
    let powers: Vec<f32> = sums.iter().map(|sum| decibels((sum / weight) as f32)).collect();
    let decibels = ascending(&powers, layout.complex);
    let ((lowest_hz, highest_hz), last) = (frequencies(&layout), decibels.len().max(2) - 1);
    let peak = (0..decibels.len()).max_by(|a, b| decibels[*a].total_cmp(&decibels[*b])).unwrap_or(0);
    let spans = if layout.complex { decibels.len() } else { last };
    Ok(SpectrumReport {
        recording: options.recording.file.display().to_string(),
        rate_hz: layout.rate_hz,
        centre_hz: layout.centre_hz,
        samples,
        not_finite,
        lowest_hz,
        highest_hz,
        peak_hz: lowest_hz + (highest_hz - lowest_hz) * peak as f64 / spans as f64,
        peak_db: decibels[peak],
        decibels,
    })
}

/// Returns the weakest and the strongest power to show.
fn range(decibels: &[f32]) -> (f32, f32) {
    let finite = || decibels.iter().copied().filter(|value| value.is_finite());
    let high = finite().fold(f32::NEG_INFINITY, f32::max).max(-300.0);
    let low = finite().fold(f32::INFINITY, f32::min).max(high - DEPTH_DB);
    ((low / 10.0).floor() * 10.0, ((high / 10.0).ceil() * 10.0).max((low / 10.0).floor() * 10.0 + 10.0))
}

fn print(title: &str, findings: &SpectrumReport, screen: &mut Screen) -> Result<(), Failure> {
    screen.line(screen.strong(title))?;
    let (low, high) = range(&findings.decibels);
    let values = chart::columns(&findings.decibels, screen.width().saturating_sub(9));
    for (number, line) in chart::blocks(&values, low, high, LINES).iter().enumerate() {
        let level = high - (high - low) * number as f32 / LINES as f32;
        screen.line(format!("{} {line}", screen.faint(&format!("{level:5.0} dB"))))?;
    }
    let (left, right) = (hertz(findings.lowest_hz), hertz(findings.highest_hz));
    let gap = values.len().saturating_sub(left.len() + right.len()).max(1);
    screen.line(screen.faint(&format!("{}{left}{}{right}", " ".repeat(9), " ".repeat(gap))))?;
    screen.line(format!("strongest: {} at {:.1} dB", hertz(findings.peak_hz), findings.peak_db))
}

fn drawn(title: &str, findings: &SpectrumReport) -> String {
    let (low, high) = range(&findings.decibels);
    let x = Axis::frequency(findings.lowest_hz, findings.highest_hz);
    let y = Axis::round(POWER, low.into(), high.into());
    let step = (findings.highest_hz - findings.lowest_hz) / findings.decibels.len() as f64;
    let point = |(at, value): (usize, &f32)| (findings.lowest_hz + step * at as f64, f64::from(*value));
    let points = findings.decibels.iter().enumerate().map(point).collect();
    chart::svg(title, &x, &y, &[Curve { name: String::new(), points, dots: false }])
}

fn painted(findings: &SpectrumReport) -> Picture {
    let (low, high) = range(&findings.decibels);
    let x = Axis::frequency(findings.lowest_hz, findings.highest_hz);
    columns(findings).framed(&x, &Axis::round(POWER, low.into(), high.into()), true)
}

fn columns(findings: &SpectrumReport) -> Picture {
    let (low, high) = range(&findings.decibels);
    // A spectrum of few bins still fills the picture.
    let bins = chart::columns(&findings.decibels, PIXELS.0);
    let values: Vec<f32> = (0..PIXELS.0).map(|x| bins[x * bins.len() / PIXELS.0]).collect();
    let mut picture = Picture::new(values.len(), PIXELS.1, [16, 18, 24]);
    for (x, value) in values.iter().enumerate() {
        let share = ((value - low) / (high - low)).clamp(0.0, 1.0);
        let top = ((1.0 - share) * PIXELS.1 as f32) as usize;
        (top..PIXELS.1).for_each(|y| picture.set(x, y, colour(1.0 - y as f32 / PIXELS.1 as f32)));
    }
    picture
}
