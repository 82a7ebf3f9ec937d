//! The ops `Fir`, `Iir` and `Convolve`.

use num_complex::Complex32;
use panoply_core::op::signal::{Convolve, Fir, Iir};
use panoply_core::{DType, OneThread, Result, Tensor, Threads, Value};

use super::output::{Output, TakeMemory, numbers};
use super::space::Space;
use crate::fir::Taps;
use crate::iir::Sections;
use crate::level::{Kind, Level};
use crate::rates::Rates;
use crate::spectral::{Plans, Spectral, transform_len};
use crate::threads::{for_each_piece, share};

/// The least number of samples, over all lines, in one turn of a thread.
const TURN_SAMPLES_MIN: usize = 4096;

/// A filter of finite response that keeps the rate, in the form that costs least. A sample is one
/// number, or two if it is complex.
pub(super) enum Linear {
    Sums(Taps),
    /// Complex taps: their real and their imaginary parts.
    TwoSums(Taps, Taps),
    RealSpectra(Spectral),
    ComplexSpectra(Spectral),
}

/// The largest number of recursive filters' states that are held at a time, and the least number of
/// lines that are processed at a time all the same.
const STATES_MAX: usize = 1 << 20;
const LINES_MIN: usize = 1 << 12;

/// Taps, real or complex.
pub(super) enum AnyTaps {
    Real(Vec<f32>),
    Complex(Vec<Complex32>),
}

impl AnyTaps {
    pub(super) fn of(tensor: &Tensor) -> Result<AnyTaps> {
        let tensor = tensor.contiguous()?;
        Ok(match tensor.dtype() {
            DType::Complex64 => AnyTaps::Complex(tensor.as_slice::<Complex32>()?.to_vec()),
            _ => AnyTaps::Real(tensor.as_slice::<f32>()?.to_vec()),
        })
    }

    /// Keeps the first `len` taps only.
    fn cut(self, len: usize) -> AnyTaps {
        match self {
            AnyTaps::Real(mut taps) => {
                taps.truncate(len);
                AnyTaps::Real(taps)
            }
            AnyTaps::Complex(mut taps) => {
                taps.truncate(len);
                AnyTaps::Complex(taps)
            }
        }
    }

    fn len(&self) -> usize {
        match self {
            AnyTaps::Real(taps) => taps.len(),
            AnyTaps::Complex(taps) => taps.len(),
        }
    }

    /// Reverses the taps and conjugates them.
    fn turned(self) -> AnyTaps {
        match self {
            AnyTaps::Real(taps) => AnyTaps::Real(taps.into_iter().rev().collect()),
            AnyTaps::Complex(taps) => AnyTaps::Complex(taps.into_iter().rev().map(|tap| tap.conj()).collect()),
        }
    }

    fn complex(&self) -> Vec<Complex32> {
        match self {
            AnyTaps::Real(taps) => taps.iter().map(|tap| (*tap).into()).collect(),
            AnyTaps::Complex(taps) => taps.clone(),
        }
    }
}

impl Linear {
    /// A filter by direct sums, at any cost: then the pieces of a stream give bit for bit the same
    /// result as the whole stream.
    pub(super) fn by_sums(level: Level, taps: &AnyTaps, step: usize) -> Linear {
        match taps {
            AnyTaps::Real(taps) => Linear::Sums(Taps::new(level, taps, step)),
            AnyTaps::Complex(taps) => {
                let part = |part: fn(&Complex32) -> f32| taps.iter().map(part).collect::<Vec<f32>>();
                let (re, im) = (part(|tap| tap.re), part(|tap| tap.im));
                Linear::TwoSums(Taps::new(level, &re, step), Taps::new(level, &im, step))
            }
        }
    }

    /// The cheaper of direct sums and spectra, for lines of `len` samples.
    fn cheapest(level: Level, plans: &mut Plans, taps: &AnyTaps, step: usize, len: usize) -> Linear {
        if !spectra_pay(level, taps, step, len) {
            return Linear::by_sums(level, taps, step);
        }
        match Spectral::new(plans, &taps.complex()) {
            Some(spectral) if step == 1 => Linear::RealSpectra(spectral),
            Some(spectral) => Linear::ComplexSpectra(spectral),
            None => Linear::by_sums(level, taps, step),
        }
    }

    /// Number of history numbers that the filter needs.
    pub(super) fn history_len(&self) -> usize {
        match self {
            Linear::Sums(taps) | Linear::TwoSums(taps, _) => taps.history_len(),
            Linear::RealSpectra(_) | Linear::ComplexSpectra(_) => 0,
        }
    }

    pub(super) fn filter(&self, threads: &dyn Threads, history: &[f32], input: &[f32], output: &mut [f32]) {
        match self {
            Linear::Sums(taps) => taps.filter(threads, history, input, output),
            Linear::TwoSums(re, im) => {
                re.filter(threads, history, input, output);
                let mut turned = vec![0.0; output.len()];
                im.filter(threads, history, input, &mut turned);
                for (out, turned) in output.chunks_exact_mut(2).zip(turned.chunks_exact(2)) {
                    out[0] -= turned[1];
                    out[1] += turned[0];
                }
            }
            Linear::RealSpectra(spectral) => spectral.filter(threads, history, input, output),
            Linear::ComplexSpectra(spectral) => spectral.filter::<Complex32>(
                threads,
                bytemuck::cast_slice(history),
                bytemuck::cast_slice(input),
                bytemuck::cast_slice_mut(output),
            ),
        }
    }
}

impl Linear {
    /// Computes a part of a line's full convolution, from index `first` on.
    pub(super) fn part_of_full(&self, threads: &dyn Threads, line: &[f32], first: usize, out: &mut [f32]) {
        // The outputs beyond the end of the line are those of silence after it.
        let begin = line.len().min(first);
        let within = (line.len() - begin).min(out.len());
        let (inside, behind) = out.split_at_mut(within);
        self.filter(threads, &line[..begin], &line[begin..begin + within], inside);
        if !behind.is_empty() {
            let skipped = first.saturating_sub(line.len());
            let silence = vec![0.0; skipped + behind.len()];
            let mut all = vec![0.0; silence.len()];
            self.filter(threads, line, &silence, &mut all);
            behind.copy_from_slice(&all[skipped..]);
        }
    }
}

/// Whether spectra are faster than direct sums for a line, estimated from the time of each method
/// for a sample.
fn spectra_pay(level: Level, taps: &AnyTaps, step: usize, len: usize) -> bool {
    let Some(transform) = transform_len(taps.len()) else { return false };
    let product_ns = match level.kind() {
        Kind::Plain => 0.12,
        Kind::Avx2 => 0.03,
        Kind::Avx512 | Kind::Gfni => 0.015,
    };
    let parts = if matches!(taps, AnyTaps::Complex(_)) { 2 } else { 1 };
    let sums = product_ns * (taps.len() * step * parts) as f64 * len as f64;
    let pieces = len.div_ceil((transform - taps.len() + 1) * (3 - step));
    let spectra = pieces as f64 * transform as f64 * (1.0 + 0.35 * f64::from(transform.ilog2()));
    spectra < sums
}

/// The work on a line. Its arguments are the threads for it, the index of the line, and the line's
/// part of the output.
pub(super) type WorkOnLine<'a> = &'a (dyn Fn(&dyn Threads, usize, &mut [f32]) + Sync);

/// Calls `work` with each line of the output and its index. Several lines share a turn; if there
/// are few lines, each gets all threads.
pub(super) fn each_line(threads: &dyn Threads, output: &mut [f32], line: usize, work: WorkOnLine<'_>) {
    if line == 0 || output.is_empty() {
        return;
    }
    let lines = output.len() / line;
    if lines < 2 * threads.count() {
        output.chunks_exact_mut(line).enumerate().for_each(|(index, part)| work(threads, index, part));
        return;
    }
    let each = share(lines, threads.count(), TURN_SAMPLES_MIN.div_ceil(line));
    for_each_piece(threads, output, each * line, &|turn, part| {
        part.chunks_exact_mut(line).enumerate().for_each(|(at, part)| work(&OneThread, turn * each + at, part));
    });
}

pub(super) fn step_of(tensor: &Tensor) -> usize {
    if tensor.dtype() == DType::Complex64 { 2 } else { 1 }
}

pub(super) fn fir(op: &Fir, space: &mut Space, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    let (input, taps, step) = (op.input.contiguous()?, AnyTaps::of(&op.taps)?, step_of(&op.input));
    let (shape, len) = (op.output_shape()?, input.shape().last().copied().unwrap_or(0));
    let (line, out_line) = (len * step, shape.last().copied().unwrap_or(0) * step);
    let mut output = Output::take(input.dtype(), shape, take)?;
    let samples = numbers(&input)?;
    // Before a line the signal is zero, so taps that only meet samples before the line do not
    // count.
    let taps = taps.cut(len.saturating_mul(op.up).max(1));
    if (op.up, op.down) == (1, 1) {
        let filter = Linear::cheapest(space.level, &mut space.plans, &taps, step, len);
        each_line(threads, output.numbers(), line, &|threads, index, out| {
            filter.filter(threads, &[], &samples[index * line..(index + 1) * line], out);
        });
    } else {
        let filter = rates(space.level, &taps, op.up, op.down, step);
        each_line(threads, output.numbers(), out_line, &|threads, index, out| {
            filter.filter(threads, &[], &samples[index * line..(index + 1) * line], 0, out);
        });
    }
    output.value()
}

/// A filter that changes the rate, for samples of `step` numbers.
pub(super) fn rates(level: Level, taps: &AnyTaps, up: usize, down: usize, step: usize) -> Rates {
    match taps {
        AnyTaps::Real(taps) => Rates::new(level, taps, None, (up, down), step),
        AnyTaps::Complex(taps) => {
            let part = |part: fn(&Complex32) -> f32| taps.iter().map(part).collect::<Vec<f32>>();
            Rates::new(level, &part(|tap| tap.re), Some(&part(|tap| tap.im)), (up, down), step)
        }
    }
}

pub(super) fn iir(op: &Iir, space: &mut Space, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    let (input, step) = (op.input.contiguous()?, step_of(&op.input));
    let mut output = Output::take(input.dtype(), *input.shape(), take)?;
    let len = input.shape().last().copied().unwrap_or(0);
    let sections = Sections::new(space.level, &op.sections);
    let lines = input.elements().checked_div(len).unwrap_or(0);
    // Process a few thousand lines at a time, so that their states take little memory for any
    // number of lines.
    let some = lines.min((STATES_MAX / (step * sections.count()).max(1)).max(LINES_MIN)).max(1);
    let mut states = vec![[0.0; 2]; some * step * sections.count()];
    let (samples, numbers_of_some) = (numbers(&input)?, (some * len * step).max(1));
    for (samples, output) in samples.chunks(numbers_of_some).zip(output.numbers().chunks_mut(numbers_of_some)) {
        let used = samples.len() / (len * step).max(1) * step * sections.count();
        states[..used].fill([0.0; 2]);
        sections.filter(threads, len, step, samples, output, &mut states[..used]);
    }
    output.value()
}

pub(super) fn convolve(op: &Convolve, space: &mut Space, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    let (input, step) = (op.input.contiguous()?, step_of(&op.input));
    let taps = AnyTaps::of(&op.kernel)?;
    let taps = if op.correlation { taps.turned() } else { taps };
    let (first, count) = op.part_of_full();
    let mut output = Output::take(input.dtype(), op.output_shape()?, take)?;
    let len = input.shape().last().copied().unwrap_or(0);
    let filter = Linear::cheapest(space.level, &mut space.plans, &taps, step, count);
    let (samples, line) = (numbers(&input)?, len * step);
    each_line(threads, output.numbers(), count * step, &|threads, index, out| {
        filter.part_of_full(threads, &samples[index * line..(index + 1) * line], first * step, out);
    });
    output.value()
}
