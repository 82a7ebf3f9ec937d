//! `panoply signal waterfall`: shows the power of each frequency over time.

use anyhow::{Result, bail};
use panoply::prelude::*;
use panoply::signal::recording::SampleLayout;
use panoply::signal::{Frames, Stft};
use serde::Serialize;

use super::chart::{self, Axis, document};
use super::picture::{Picture, base64, colour};
use super::{
    DEPTH_DB, ascending, decibels, frequencies, hann, hertz, line_of, numbers_only, opened, progress, warn_of_odd,
};
use crate::configuration::Format;
use crate::configuration::signal::WaterfallOptions;
use crate::failure::Failure;
use crate::partial::Partial;
use crate::screen::Screen;
use crate::vectors::start;

/// The smallest picture in a file, without its axes: columns and rows.
const PIXELS_MIN: (usize, usize) = (640, 320);
/// Lines on a terminal.
const LINES: usize = 24;
const SHADES: [char; 10] = [' ', '.', ':', '-', '=', '+', '*', '#', '%', '@'];

/// Rows of powers in order of time. All rows cover equally many samples, except that the last may
/// cover fewer.
struct PowerRows {
    layout: SampleLayout,
    samples: u64,
    not_finite: u64,
    /// In decibels, by ascending frequency.
    rows: Vec<Vec<f32>>,
}

#[derive(Serialize)]
struct WaterfallReport {
    recording: String,
    rate_hz: f64,
    centre_hz: f64,
    samples: u64,
    /// Samples that are NaN or infinite, which count as silence.
    not_finite: u64,
    seconds: f64,
    lowest_hz: f64,
    highest_hz: f64,
    rows: usize,
    bins: usize,
    weakest_db: f32,
    strongest_db: f32,
}

/// Runs `panoply signal waterfall`.
pub fn run(options: &WaterfallOptions, screen: &mut Screen) -> Result<(), Failure> {
    let runtime = start()?;
    let rows = gathered(options, &runtime)?;
    let (low, high) = range(&rows.rows);
    let findings = findings(options, &rows, low, high);
    if options.png.is_some() || options.svg.is_some() {
        let picture = painted(&rows.rows, low, high);
        if let Some(file) = &options.svg {
            Partial::create(file, true)?.finish_with(drawn(&findings, &picture.png(&runtime)?).as_bytes())?;
        }
        if let Some(file) = &options.png {
            let (x, y) = findings.axes();
            let whole = picture.at_least(PIXELS_MIN.0, PIXELS_MIN.1).framed(&x, &y, false);
            Partial::create(file, true)?.finish_with(&whole.png(&runtime)?)?;
        }
    }
    match options.format {
        Format::Json => screen.json(&findings),
        Format::Table => print(&findings, &rows.rows, screen),
    }
}

/// Computes the mean powers. Whenever there are too many rows, neighbouring rows are merged in
/// pairs. A long recording therefore ends with between half of `rows` and `rows` rows.
fn gathered(options: &WaterfallOptions, runtime: &Runtime) -> Result<PowerRows> {
    let mut reader = opened(&options.recording)?;
    let (layout, bar) = (*reader.layout(), progress(reader.samples_left(), "samples"));
    let frames = Frames::new(&hann(options.bins)?, options.bins);
    let (mut sums, mut samples): (Vec<(Vec<f32>, u32)>, u64) = (Vec::new(), 0);
    let (mut each, mut not_finite) = (1, 0);
    for block in &mut reader {
        let Some(line) = line_of(block, samples == 0)? else { break };
        let line = numbers_only(line, &mut not_finite)?;
        samples += line.elements() as u64;
        bar.inc(line.elements() as u64);
        if line.elements() < options.bins {
            continue;
        }
        let spectra = runtime.run(Stft { input: line, frames: frames.clone() }).wait()?;
        let bins = spectra.shape()[1];
        for spectrum in spectra.as_slice::<Complex64>()?.chunks_exact(bins) {
            let powers = spectrum.iter().map(|value| value.norm_sqr() / (options.bins as f32).powi(2) * 4.0);
            match sums.last_mut().filter(|(_, count)| *count < each) {
                Some((sum, count)) => {
                    sum.iter_mut().zip(powers).for_each(|(sum, power)| *sum += power);
                    *count += 1;
                }
                None => sums.push((powers.collect(), 1)),
            }
            if sums.len() > options.rows {
                sums = joined(sums);
                each *= 2;
            }
        }
    }
    bar.finish_and_clear();
    warn_of_odd(not_finite, samples);
    if sums.is_empty() {
        bail!("the recording has {samples} samples; expected at least {}, or fewer --bins", options.bins);
    }
    let row = |(sum, count): &(Vec<f32>, u32)| {
        let mean: Vec<f32> = sum.iter().map(|sum| decibels(sum / *count as f32)).collect();
        ascending(&mean, layout.complex)
    };
    Ok(PowerRows { layout, samples, not_finite, rows: sums.iter().map(row).collect() })
}

/// Merges neighbouring rows in pairs.
fn joined(rows: Vec<(Vec<f32>, u32)>) -> Vec<(Vec<f32>, u32)> {
    let mut joined: Vec<(Vec<f32>, u32)> = Vec::with_capacity(rows.len().div_ceil(2));
    for (at, (row, count)) in rows.into_iter().enumerate() {
        match joined.last_mut().filter(|_| at % 2 == 1) {
            Some((sum, total)) => {
                sum.iter_mut().zip(row).for_each(|(sum, power)| *sum += power);
                *total += count;
            }
            None => joined.push((row, count)),
        }
    }
    joined
}

fn range(rows: &[Vec<f32>]) -> (f32, f32) {
    let finite = || rows.iter().flatten().copied().filter(|value| value.is_finite());
    let high = finite().fold(f32::NEG_INFINITY, f32::max).max(-300.0);
    (finite().fold(f32::INFINITY, f32::min).max(high - DEPTH_DB).min(high - 1.0), high)
}

fn findings(options: &WaterfallOptions, rows: &PowerRows, weakest_db: f32, strongest_db: f32) -> WaterfallReport {
    let (lowest_hz, highest_hz) = frequencies(&rows.layout);
    WaterfallReport {
        recording: options.recording.file.display().to_string(),
        rate_hz: rows.layout.rate_hz,
        centre_hz: rows.layout.centre_hz,
        samples: rows.samples,
        not_finite: rows.not_finite,
        seconds: rows.samples as f64 / rows.layout.rate_hz,
        lowest_hz,
        highest_hz,
        rows: rows.rows.len(),
        bins: rows.rows.first().map_or(0, Vec::len),
        weakest_db,
        strongest_db,
    }
}

fn share(value: f32, low: f32, high: f32) -> f32 {
    ((value - low) / (high - low)).clamp(0.0, 1.0)
}

fn print(findings: &WaterfallReport, rows: &[Vec<f32>], screen: &mut Screen) -> Result<(), Failure> {
    let title = format!("{}: {:.3} s at {}", findings.recording, findings.seconds, hertz(findings.rate_hz));
    screen.line(screen.strong(&title))?;
    let (low, high, width) = (findings.weakest_db, findings.strongest_db, screen.width().saturating_sub(12));
    for number in 0..LINES.min(rows.len()) {
        let lines = LINES.min(rows.len());
        let part = &rows[number * rows.len() / lines..(number + 1) * rows.len() / lines];
        let strongest: Vec<f32> =
            (0..findings.bins).map(|bin| part.iter().map(|row| row[bin]).fold(f32::NEG_INFINITY, f32::max)).collect();
        let shade = |value: &f32| SHADES[(share(*value, low, high) * 9.99) as usize];
        let text: String = chart::columns(&strongest, width).iter().map(shade).collect();
        let time = findings.seconds * number as f64 / lines as f64;
        screen.line(format!("{} {text}", screen.faint(&format!("{time:8.4} s"))))?;
    }
    let (left, right) = (hertz(findings.lowest_hz), hertz(findings.highest_hz));
    let gap = width.min(findings.bins).saturating_sub(left.len() + right.len()).max(1);
    screen.line(screen.faint(&format!("{}{left}{}{right}", " ".repeat(11), " ".repeat(gap))))
}

fn painted(rows: &[Vec<f32>], low: f32, high: f32) -> Picture {
    let mut picture = Picture::new(rows.first().map_or(1, Vec::len), rows.len(), [0; 3]);
    for (y, row) in rows.iter().enumerate() {
        row.iter().enumerate().for_each(|(x, value)| picture.set(x, y, colour(share(*value, low, high))));
    }
    picture
}

fn drawn(findings: &WaterfallReport, png: &[u8]) -> String {
    let [left, top, width, height] = chart::AREA;
    let (x, y) = findings.axes();
    let body = format!(
        "<image x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" preserveAspectRatio=\"none\" \
         style=\"image-rendering:pixelated\" href=\"data:image/png;base64,{}\"/>\n{}",
        base64(png),
        chart::axes(&x, &y, false)
    );
    let title = format!("{}: {:.0} to {:.0} dB", findings.recording, findings.weakest_db, findings.strongest_db);
    document(&title, &body)
}

impl WaterfallReport {
    /// The axes of frequency and of time.
    fn axes(&self) -> (Axis, Axis) {
        (Axis::frequency(self.lowest_hz, self.highest_hz), Axis::time(self.seconds))
    }
}
