//! Fir, Iir, Convolve and Channelize: the sums of their definitions, in f64.

use std::f64::consts::TAU;

use panoply_core::op::signal::{Channelize, Convolve, Fir, Iir};
use panoply_core::{DType, Result, Tensor, Value};

use super::fft::{Complex, complex_tensor, numbers, product, sum};
use crate::values::tensor_of;

pub(super) fn fir(op: &Fir) -> Result<Value> {
    let (input, taps, shape) = (numbers(&op.input)?, numbers(&op.taps)?, op.output_shape()?);
    let len = op.input.shape().last().copied().unwrap_or(0);
    let out_len = shape.last().copied().unwrap_or(0);
    let mut output = Vec::new();
    for line in lines(&input, len) {
        for at in 0..out_len {
            // The time at the raised rate. The input samples are at its multiples of `up`.
            let time = at * op.down;
            let sample = |tap: usize| {
                let place = time.checked_sub(tap).filter(|place| place.is_multiple_of(op.up))?;
                line.get(place / op.up)
            };
            let terms = taps.iter().enumerate().filter_map(|(tap, weight)| Some(product(*weight, *sample(tap)?)));
            output.push(terms.fold([0.0; 2], sum));
        }
    }
    tensor(op.input.dtype(), &shape, &output)
}

pub(super) fn iir(op: &Iir) -> Result<Value> {
    let mut signal = numbers(&op.input)?;
    let len = op.input.shape().last().copied().unwrap_or(0).max(1);
    for line in signal.chunks_mut(len) {
        for section in &op.sections {
            for part in 0..2 {
                // Earlier samples and outputs.
                let (mut x, mut y) = ([0.0; 2], [0.0; 2]);
                for value in line.iter_mut() {
                    let now = value[part];
                    let forward = section.b[0] * now + section.b[1] * x[0] + section.b[2] * x[1];
                    let out = forward - section.a[0] * y[0] - section.a[1] * y[1];
                    (x, y) = ([now, x[0]], [out, y[0]]);
                    value[part] = out;
                }
            }
        }
    }
    tensor(op.input.dtype(), op.input.shape(), &signal)
}

pub(super) fn convolve(op: &Convolve) -> Result<Value> {
    let (input, mut kernel, shape) = (numbers(&op.input)?, numbers(&op.kernel)?, op.output_shape()?);
    if op.correlation {
        kernel.reverse();
        kernel.iter_mut().for_each(|value| value[1] = -value[1]);
    }
    let (first, count) = op.part_of_full();
    let len = op.input.shape().last().copied().unwrap_or(0);
    let mut output = Vec::new();
    for line in lines(&input, len) {
        for at in first..first + count {
            let term = |(tap, weight): (usize, &Complex)| Some(product(*weight, *line.get(at.checked_sub(tap)?)?));
            output.push(kernel.iter().enumerate().filter_map(term).fold([0.0; 2], sum));
        }
    }
    tensor(op.input.dtype(), &shape, &output)
}

pub(super) fn channelize(op: &Channelize) -> Result<Value> {
    let (input, taps, shape) = (numbers(&op.input)?, numbers(&op.taps)?, op.output_shape()?);
    let len = op.input.shape().last().copied().unwrap_or(0);
    let mut output = Vec::new();
    for line in lines(&input, len) {
        for frame in 0..len.div_ceil(op.channels) {
            let time = frame * op.channels;
            for channel in 0..op.channels {
                let term = |(tap, weight): (usize, &Complex)| {
                    let place = time.checked_sub(tap)?;
                    let angle = -TAU * (channel * place % op.channels) as f64 / op.channels as f64;
                    Some(product(product(*line.get(place)?, [angle.cos(), angle.sin()]), *weight))
                };
                output.push(taps.iter().enumerate().filter_map(term).fold([0.0; 2], sum));
            }
        }
    }
    tensor(DType::Complex64, &shape, &output)
}

fn lines(values: &[Complex], len: usize) -> impl Iterator<Item = &[Complex]> {
    values.chunks(len.max(1))
}

fn tensor(dtype: DType, dims: &[usize], values: &[Complex]) -> Result<Value> {
    let tensor: Tensor = match dtype {
        DType::Complex64 => complex_tensor(dims, values)?,
        _ => tensor_of(dtype, dims, &values.iter().map(|[re, _]| *re).collect::<Vec<f64>>()),
    };
    Ok(Value::Tensor(tensor))
}
