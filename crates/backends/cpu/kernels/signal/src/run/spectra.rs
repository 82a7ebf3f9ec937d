//! The ops `Dct`, `Stft`, `Istft`, `Psd`, `Fft2` and `Hilbert`.

use std::sync::Mutex;

use num_complex::Complex32;
use panoply_core::op::signal::{Dct, Fft2, Hilbert, Istft, PowerScale, Psd, Stft};
use panoply_core::{DType, Result, Threads, Value};

use super::filtering::{each_line, step_of};
use super::output::{Output, TakeMemory, numbers};
use super::space::Space;
use crate::cosine::{Cosine, Scratch};
use crate::framing::{Framing, mirror};
use crate::threads::{for_each_piece, share};

/// The least number of input numbers for the transforms in one turn of a thread.
const TURN_MIN: usize = 8192;

pub(super) fn dct(op: &Dct, space: &mut Space, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    let input = op.input.contiguous()?;
    let len = input.shape().last().copied().unwrap_or(0);
    let mut output = Output::take(DType::F32, *input.shape(), take)?;
    if output.shape.elements() == 0 {
        return output.value();
    }
    let (samples, transform) = (numbers(&input)?, Cosine::new(&mut space.plans, op.kind, op.orthonormal, len));
    let each = share(samples.len() / len, threads.count(), TURN_MIN.div_ceil(len));
    for_each_piece(threads, output.numbers(), each * len, &|turn, part| {
        let mut scratch = Scratch::default();
        let lines = samples[turn * each * len..].chunks_exact(len);
        part.chunks_exact_mut(len).zip(lines).for_each(|(out, line)| transform.transform(line, out, &mut scratch));
    });
    output.value()
}

pub(super) fn hilbert(op: &Hilbert, space: &mut Space, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    let input = op.input.contiguous()?;
    let len = input.shape().last().copied().unwrap_or(0);
    let mut output = Output::take(DType::Complex64, *input.shape(), take)?;
    if output.shape.elements() == 0 {
        return output.value();
    }
    let (samples, (forward, inverse)) = (numbers(&input)?, space.plans.of(len));
    each_line(threads, output.numbers(), 2 * len, &|_, index, out| {
        let line: &mut [Complex32] = bytemuck::cast_slice_mut(out);
        line.iter_mut().zip(&samples[index * len..]).for_each(|(out, value)| *out = Complex32::new(*value, 0.0));
        forward.process(line);
        for (k, bin) in line.iter_mut().enumerate() {
            let weight = if k == 0 || 2 * k == len { 1.0 } else { 2.0 };
            *bin *= if 2 * k > len { 0.0 } else { weight / len as f32 };
        }
        inverse.process(line);
    });
    output.value()
}

pub(super) fn stft(op: &Stft, space: &mut Space, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    let (input, step, shape) = (op.input.contiguous()?, step_of(&op.input), op.output_shape()?);
    let mut output = Output::take(DType::Complex64, shape, take)?;
    if shape.elements() == 0 {
        return output.value();
    }
    let (samples, framing) = (numbers(&input)?, Framing::new(&mut space.plans, &op.frames)?);
    let (count, bins, len) = (shape[shape.rank() - 2], shape[shape.rank() - 1], framing.transform_len());
    let line = input.shape().last().copied().unwrap_or(0) * step;
    let each = share(shape.elements() / bins, threads.count(), TURN_MIN.div_ceil(len));
    for_each_piece(threads, output.complex(), each * bins, &|turn, part| {
        let (mut spectrum, mut scratch) = (vec![Complex32::default(); len], framing.scratch());
        for (at, out) in part.chunks_exact_mut(bins).enumerate() {
            let (of_line, frame) = ((turn * each + at) / count, (turn * each + at) % count);
            let own = &samples[of_line * line..(of_line + 1) * line];
            framing.spectrum(own, step, frame, false, &mut spectrum, &mut scratch);
            out.copy_from_slice(&spectrum[..bins]);
        }
    });
    output.value()
}

pub(super) fn istft(op: &Istft, space: &mut Space, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    let (input, shape) = (op.input.contiguous()?, op.output_shape()?);
    let mut output = Output::take(op.output_dtype(), shape, take)?;
    output.numbers().fill(0.0);
    if shape.elements() == 0 {
        return output.value();
    }
    let (spectra, framing) = (input.as_slice::<Complex32>()?, Framing::new(&mut space.plans, &op.frames)?);
    let (count, bins, step) = (op.frames.count(op.len), op.frames.bins(op.real), if op.real { 1 } else { 2 });
    let weights = framing.weights(op.len, count);
    each_line(threads, output.numbers(), op.len * step, &|_, index, line| {
        let mut whole = vec![Complex32::default(); framing.transform_len()];
        let mut scratch = framing.scratch();
        for frame in 0..count {
            whole[..bins].copy_from_slice(&spectra[(index * count + frame) * bins..][..bins]);
            if op.real {
                mirror(&mut whole);
            }
            framing.add(&mut whole, step, frame, line, &mut scratch);
        }
        for (samples, weight) in line.chunks_exact_mut(step).zip(&weights) {
            samples.iter_mut().for_each(|sample| *sample = if *weight == 0.0 { 0.0 } else { *sample * weight });
        }
    });
    output.value()
}

pub(super) fn psd(op: &Psd, space: &mut Space, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    let (input, step, shape) = (op.input.contiguous()?, step_of(&op.input), op.output_shape()?);
    let mut output = Output::take(DType::F32, shape, take)?;
    if shape.elements() == 0 {
        return output.value();
    }
    let (samples, framing) = (numbers(&input)?, Framing::new(&mut space.plans, &op.frames)?);
    let (len, bins) = (input.shape().last().copied().unwrap_or(0), shape[shape.rank() - 1]);
    let (count, transform) = (op.frames.count(len), framing.transform_len());
    let weights = || framing.window.iter().map(|weight| f64::from(*weight));
    let sum = match op.scale {
        PowerScale::Density => weights().map(|weight| weight * weight).sum::<f64>(),
        PowerScale::Spectrum => weights().sum::<f64>().powi(2),
    };
    let scale = 1.0 / (sum * count as f64);
    let each = share(count, threads.count(), TURN_MIN.div_ceil(transform));
    let turns = count.div_ceil(each);
    for (line, out) in samples.chunks_exact(len * step).zip(output.numbers().chunks_exact_mut(bins)) {
        let partial: Vec<Mutex<Vec<f64>>> = (0..turns).map(|_| Mutex::new(Vec::new())).collect();
        threads.run(turns, &|turn| {
            let (mut spectrum, mut scratch) = (vec![Complex32::default(); transform], framing.scratch());
            let mut sums = vec![0.0; bins];
            for frame in turn * each..count.min((turn + 1) * each) {
                framing.spectrum(line, step, frame, op.detrend, &mut spectrum, &mut scratch);
                sums.iter_mut().zip(&spectrum).for_each(|(sum, bin)| {
                    *sum += f64::from(bin.re) * f64::from(bin.re) + f64::from(bin.im) * f64::from(bin.im);
                });
            }
            *partial[turn].lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = sums;
        });
        let partial: Vec<Vec<f64>> = partial
            .into_iter()
            .map(|sums| sums.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()))
            .collect();
        for (bin, out) in out.iter_mut().enumerate() {
            let has_mirror = step == 1 && bin != 0 && 2 * bin != transform;
            let power: f64 = partial.iter().map(|sums| sums[bin]).sum();
            *out = (power * scale * if has_mirror { 2.0 } else { 1.0 }) as f32;
        }
    }
    output.value()
}

pub(super) fn fft2(op: &Fft2, space: &mut Space, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    let (input, shape) = (op.input.contiguous()?, op.output_shape()?);
    let mut output = Output::take(DType::Complex64, shape, take)?;
    if shape.elements() == 0 {
        return output.value();
    }
    let (last, from) = (shape.rank() - 1, input.shape()[input.shape().rank() - 1]);
    let (rows, columns) = (shape[last - 1], shape[last]);
    let plan = |both: (_, _)| if op.inverse { both.1 } else { both.0 };
    let (along_rows, along_columns) = (plan(space.plans.of(from)), plan(space.plans.of(rows)));
    let samples = numbers(&input)?;
    let each = share(shape.elements() / columns, threads.count(), TURN_MIN.div_ceil(from));
    for_each_piece(threads, output.complex(), each * columns, &|turn, part| {
        let mut line = vec![Complex32::default(); from];
        let mut scratch = vec![Complex32::default(); along_rows.get_inplace_scratch_len()];
        for (at, out) in part.chunks_exact_mut(columns).enumerate() {
            let row = turn * each + at;
            match input.dtype() {
                DType::F32 => {
                    line.iter_mut().zip(&samples[row * from..]).for_each(|(place, value)| *place = (*value).into())
                }
                _ => line.copy_from_slice(bytemuck::cast_slice(&samples[2 * row * from..2 * (row + 1) * from])),
            }
            along_rows.process_with_scratch(&mut line, &mut scratch);
            out.copy_from_slice(&line[..columns]);
        }
    });
    // The planes are transposed for the second transform, so that its lines are contiguous.
    let mut turned = vec![Complex32::default(); shape.elements()];
    let scale = if op.inverse { 1.0 / (rows * columns) as f32 } else { 1.0 };
    let each = share(shape.elements() / rows, threads.count(), TURN_MIN.div_ceil(rows));
    let planes: &[Complex32] = output.complex();
    for_each_piece(threads, &mut turned, each * rows, &|turn, part| {
        let mut scratch = vec![Complex32::default(); along_columns.get_inplace_scratch_len()];
        for (at, line) in part.chunks_exact_mut(rows).enumerate() {
            let (plane, column) = ((turn * each + at) / columns, (turn * each + at) % columns);
            let source = planes[plane * rows * columns + column..].iter().step_by(columns);
            line.iter_mut().zip(source).for_each(|(place, value)| *place = value * scale);
            along_columns.process_with_scratch(line, &mut scratch);
        }
    });
    let each = share(shape.elements() / columns, threads.count(), TURN_MIN.div_ceil(columns));
    for_each_piece(threads, output.complex(), each * columns, &|turn, part| {
        for (at, out) in part.chunks_exact_mut(columns).enumerate() {
            let (plane, row) = ((turn * each + at) / rows, (turn * each + at) % rows);
            let source = turned[plane * rows * columns + row..].iter().step_by(rows);
            out.iter_mut().zip(source).for_each(|(place, value)| *place = *value);
        }
    });
    output.value()
}
