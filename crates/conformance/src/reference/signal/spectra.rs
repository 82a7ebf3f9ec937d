//! Dct, Stft, Istft, Psd, Fft2 and Hilbert: sums in f64.

use std::f64::consts::{PI, SQRT_2};

use panoply_core::op::signal::{Dct, DctKind, Fft2, Frames, Hilbert, Istft, PowerScale, Psd, Stft};
use panoply_core::{DType, Result, Value};

use super::fft::{Complex, complex_tensor, map_lines, numbers, spectrum, whole_spectrum};
use crate::values::{tensor_of, to_f64};

pub(super) fn dct(op: &Dct) -> Result<Value> {
    let values = to_f64(&op.input)?;
    let len = op.input.shape().last().copied().unwrap_or(0);
    let mut output = Vec::new();
    for line in values.chunks(len.max(1)) {
        output.extend((0..len).map(|k| cosine(op.kind, op.orthonormal, line, k)));
    }
    Ok(Value::Tensor(tensor_of(DType::F32, op.input.shape(), &output)))
}

fn cosine(kind: DctKind, orthonormal: bool, line: &[f64], k: usize) -> f64 {
    let (n, last) = (line.len() as f64, line.len() - 1);
    let (frequency, is_end) = (k as f64, |at: usize| at == 0 || at == last);
    let term = |(j, x): (usize, &f64)| {
        let j_half = j as f64 + 0.5;
        match kind {
            DctKind::One => {
                let weight = if is_end(j) { if orthonormal { SQRT_2 } else { 1.0 } } else { 2.0 };
                weight * x * (PI * j as f64 * frequency / (n - 1.0)).cos()
            }
            DctKind::Two => 2.0 * x * (PI * frequency * j_half / n).cos(),
            DctKind::Three => {
                let weight = if j == 0 { if orthonormal { SQRT_2 } else { 1.0 } } else { 2.0 };
                weight * x * (PI * j as f64 * (frequency + 0.5) / n).cos()
            }
            DctKind::Four => 2.0 * x * (PI * (frequency + 0.5) * j_half / n).cos(),
        }
    };
    let sum: f64 = line.iter().enumerate().map(term).sum();
    if !orthonormal {
        return sum;
    }
    match kind {
        DctKind::One => sum / (2.0 * (n - 1.0)).sqrt() / if is_end(k) { SQRT_2 } else { 1.0 },
        DctKind::Two if k == 0 => sum / (4.0 * n).sqrt(),
        DctKind::Two | DctKind::Three | DctKind::Four => sum / (2.0 * n).sqrt(),
    }
}

pub(super) fn fft2(op: &Fft2) -> Result<Value> {
    let (values, shape) = (numbers(&op.input)?, op.output_shape()?);
    let (last, sign) = (shape.rank() - 1, if op.inverse { 1.0 } else { -1.0 });
    let rows = map_lines(&values, op.input.shape(), &shape, last, |line| spectrum(line, sign));
    let mut planes = map_lines(&rows, &shape, &shape, last - 1, |line| spectrum(line, sign));
    if op.inverse {
        let divisor = (shape[last] * shape[last - 1]) as f64;
        planes.iter_mut().flatten().for_each(|value| *value /= divisor);
    }
    Ok(Value::Tensor(complex_tensor(&shape, &planes)?))
}

pub(super) fn hilbert(op: &Hilbert) -> Result<Value> {
    let (values, shape) = (numbers(&op.input)?, op.input.shape());
    let analytic = map_lines(&values, shape, shape, shape.rank() - 1, |line| {
        let n = line.len();
        let mut bins = spectrum(line, -1.0);
        for (k, bin) in bins.iter_mut().enumerate() {
            let weight = match 2 * k {
                0 => 1.0,
                twice if twice == n => 1.0,
                twice if twice < n => 2.0,
                _ => 0.0,
            };
            bin.iter_mut().for_each(|part| *part *= weight / n as f64);
        }
        spectrum(&bins, 1.0)
    });
    Ok(Value::Tensor(complex_tensor(shape, &analytic)?))
}

/// The samples of each frame of a line, times the window, padded with zeros at the end.
fn framed(frames: &Frames, window: &[f64], line: &[Complex], detrend: bool) -> Vec<Vec<Complex>> {
    let silence = frames.silence();
    let sample = |place: usize| place.checked_sub(silence).and_then(|at| line.get(at)).copied().unwrap_or_default();
    let frame = |index: usize| {
        let mut samples: Vec<Complex> = (0..window.len()).map(|at| sample(index * frames.hop + at)).collect();
        let count = samples.len() as f64;
        let mean = |part: usize| samples.iter().map(|sample| sample[part]).sum::<f64>() / count;
        let mean = if detrend { [mean(0), mean(1)] } else { [0.0; 2] };
        for (sample, weight) in samples.iter_mut().zip(window) {
            *sample = [(sample[0] - mean[0]) * weight, (sample[1] - mean[1]) * weight];
        }
        samples.resize(frames.transform, [0.0; 2]);
        samples
    };
    (0..frames.count(line.len())).map(frame).collect()
}

pub(super) fn stft(op: &Stft) -> Result<Value> {
    let (values, window, shape) = (numbers(&op.input)?, to_f64(&op.frames.window)?, op.output_shape()?);
    let (len, bins) = (op.input.shape().last().copied().unwrap_or(0), shape[shape.rank() - 1]);
    let mut output = Vec::new();
    for line in values.chunks(len.max(1)) {
        for frame in framed(&op.frames, &window, line, false) {
            output.extend_from_slice(&spectrum(&frame, -1.0)[..bins]);
        }
    }
    Ok(Value::Tensor(complex_tensor(&shape, &output)?))
}

pub(super) fn psd(op: &Psd) -> Result<Value> {
    let (values, window, shape) = (numbers(&op.input)?, to_f64(&op.frames.window)?, op.output_shape()?);
    let (len, bins) = (op.input.shape().last().copied().unwrap_or(0), shape[shape.rank() - 1]);
    let scale = match op.scale {
        PowerScale::Density => 1.0 / window.iter().map(|weight| weight * weight).sum::<f64>(),
        PowerScale::Spectrum => 1.0 / window.iter().sum::<f64>().powi(2),
    };
    let mut output = Vec::new();
    for line in values.chunks(len.max(1)) {
        let spectra: Vec<Vec<Complex>> =
            framed(&op.frames, &window, line, op.detrend).iter().map(|frame| spectrum(frame, -1.0)).collect();
        for bin in 0..bins {
            let power = spectra.iter().map(|bins| bins[bin][0].powi(2) + bins[bin][1].powi(2)).sum::<f64>();
            let has_mirror = op.input.dtype() == DType::F32 && bin != 0 && 2 * bin != op.frames.transform;
            output.push(power / spectra.len() as f64 * scale * if has_mirror { 2.0 } else { 1.0 });
        }
    }
    Ok(Value::Tensor(tensor_of(DType::F32, &shape, &output)))
}

pub(super) fn istft(op: &Istft) -> Result<Value> {
    let (values, window, shape) = (numbers(&op.input)?, to_f64(&op.frames.window)?, op.output_shape()?);
    let (bins, count) = (op.frames.bins(op.real), op.frames.count(op.len));
    let lines: usize = shape.iter().take(shape.rank() - 1).product();
    let mut output = Vec::new();
    for line in 0..lines {
        let mut sums = vec![[0.0; 2]; op.len];
        let mut weights = vec![0.0; op.len];
        for frame in 0..count {
            let bins = &values[(line * count + frame) * bins..][..bins];
            let bins = if op.real { whole_spectrum(bins, op.frames.transform) } else { bins.to_vec() };
            let samples = spectrum(&bins, 1.0);
            for (at, weight) in window.iter().enumerate() {
                let place = (frame * op.frames.hop + at).checked_sub(op.frames.silence());
                let Some(place) = place.filter(|place| *place < op.len) else { continue };
                let own = samples[at].map(|part| part * weight / op.frames.transform as f64);
                sums[place] = [sums[place][0] + own[0], sums[place][1] + own[1]];
                weights[place] += weight * weight;
            }
        }
        let one =
            |(sum, weight): (&Complex, &f64)| if *weight < 1e-10 { [0.0; 2] } else { sum.map(|part| part / weight) };
        output.extend(sums.iter().zip(&weights).map(one));
    }
    Ok(Value::Tensor(match op.real {
        true => tensor_of(DType::F32, &shape, &output.iter().map(|[re, _]| *re).collect::<Vec<f64>>()),
        false => complex_tensor(&shape, &output)?,
    }))
}
