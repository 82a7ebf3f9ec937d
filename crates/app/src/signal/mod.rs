//! `panoply signal`: shows and decodes recordings, compares error rates with theory, and runs a
//! receiver against the clock. Each command has a module; `picture`, with the
//! shapes of `letters`, and `chart` draw.

mod ber;
mod chart;
mod decode;
mod letters;
mod picture;
mod realtime;
mod record;
mod spectrum;
mod theory;
mod waterfall;

use std::fs::File;
use std::io::BufReader;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use panoply::prelude::*;
use panoply::signal::Window;
use panoply::signal::recording::{RecordingError, RecordingReader, SampleLayout};

use crate::configuration::signal::{Recording, SignalOptions};
use crate::failure::{Failure, warn};
use crate::screen::Screen;

/// Samples that are read and transformed at a time.
const BLOCK: usize = 1 << 18;
/// The range of the displayed power, in decibels below the strongest.
const DEPTH_DB: f32 = 90.0;

/// Runs the chosen command.
pub fn run(options: &SignalOptions, screen: &mut Screen) -> Result<(), Failure> {
    match options {
        SignalOptions::Spectrum(options) => spectrum::run(options, screen),
        SignalOptions::Waterfall(options) => waterfall::run(options, screen),
        SignalOptions::Decode(options) => decode::run(options, screen),
        SignalOptions::Ber(options) => ber::run(options, screen),
        SignalOptions::Realtime(options) => realtime::run(options, screen),
        SignalOptions::Record(options) => record::run(options, screen),
    }
}

fn opened(recording: &Recording) -> Result<RecordingReader<BufReader<File>>> {
    let reader = match &recording.raw {
        Some(layout) => RecordingReader::open_raw(&recording.file, *layout, BLOCK),
        None => RecordingReader::open(&recording.file, BLOCK),
    };
    let reader = reader.and_then(|reader| if recording.pairs { reader.pairs() } else { Ok(reader) });
    reader.with_context(|| format!("{} cannot be read", recording.file.display()))
}

/// Returns the first signal of a block.
fn first_line(block: &Tensor) -> Result<Tensor> {
    Ok(match block.shape().rank() {
        1 => block.clone(),
        _ => block.slice(0, 0, 1)?.contiguous()?.reshape([block.shape()[1]])?,
    })
}

/// Returns the first signal of a block. If a block after the first cannot be read, warns and
/// returns `None`, so that the blocks before it are still shown.
fn line_of(block: std::result::Result<Tensor, RecordingError>, comes_first: bool) -> Result<Option<Tensor>> {
    match block {
        Ok(block) => first_line(&block).map(Some),
        Err(error) if comes_first => Err(error).context("the recording cannot be read"),
        Err(error) => {
            warn(error);
            Ok(None)
        }
    }
}

/// Replaces NaN and infinite samples by zeros, and adds their number to `found`. A single such
/// sample would spoil every frequency.
fn numbers_only(line: Tensor, found: &mut u64) -> Result<Tensor> {
    let len = line.elements();
    match line.dtype() {
        DType::Complex64 => {
            let is_odd = |value: &Complex64| !(value.re.is_finite() && value.im.is_finite());
            let odd = line.as_slice::<Complex64>()?.iter().filter(|value| is_odd(value)).count();
            if odd == 0 {
                return Ok(line);
            }
            *found += odd as u64;
            let mut values = line.to_vec::<Complex64>()?;
            values.iter_mut().filter(|value| is_odd(value)).for_each(|value| *value = Complex64::default());
            Ok(Tensor::from_vec(values, [len])?)
        }
        _ => {
            let odd = line.as_slice::<f32>()?.iter().filter(|value| !value.is_finite()).count();
            if odd == 0 {
                return Ok(line);
            }
            *found += odd as u64;
            let mut values = line.to_vec::<f32>()?;
            values.iter_mut().filter(|value| !value.is_finite()).for_each(|value| *value = 0.0);
            Ok(Tensor::from_vec(values, [len])?)
        }
    }
}

/// Warns about samples that are NaN or infinite.
fn warn_of_odd(found: u64, samples: u64) {
    if found > 0 {
        warn(format!("{found} of {samples} samples are NaN or infinite, and count as silence"));
    }
}

fn hann(len: usize) -> Result<Tensor> {
    let weights: Vec<f32> = Window::Hann.periodic(len)?.iter().map(|weight| *weight as f32).collect();
    Ok(Tensor::from_vec(weights, [len])?)
}

/// Converts a power to decibels. Silence becomes -400 dB.
fn decibels(power: f32) -> f32 {
    if power > 0.0 { (10.0 * power.log10()).max(-400.0) } else { -400.0 }
}

/// Reorders a spectrum by ascending frequency. The second half of a complex signal's bins has the
/// negative frequencies.
fn ascending<T: Copy>(bins: &[T], complex: bool) -> Vec<T> {
    match complex {
        true => {
            let (positive, negative) = bins.split_at(bins.len().div_ceil(2));
            [negative, positive].concat()
        }
        false => bins.to_vec(),
    }
}

/// Returns the lowest and the highest frequency of a recording's spectrum.
fn frequencies(layout: &SampleLayout) -> (f64, f64) {
    let half = layout.rate_hz / 2.0;
    if layout.complex { (layout.centre_hz - half, layout.centre_hz + half) } else { (0.0, half) }
}

/// Formats a frequency in the unit that suits its size.
fn hertz(frequency: f64) -> String {
    match frequency.abs() {
        size if size >= 1e9 => format!("{:.3} GHz", frequency / 1e9),
        size if size >= 1e6 => format!("{:.3} MHz", frequency / 1e6),
        size if size >= 1e3 => format!("{:.2} kHz", frequency / 1e3),
        _ => format!("{frequency:.1} Hz"),
    }
}

/// A progress bar on the error output; hidden if the error output is not a terminal.
fn progress(total: Option<u64>, what: &'static str) -> ProgressBar {
    if !crate::verbosity::shows_progress() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}");
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_message(what)
}
