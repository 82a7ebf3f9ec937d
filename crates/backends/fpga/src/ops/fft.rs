//! Fft and Ifft: lines of the core's length, as integers with one exponent per line. The inverse
//! transform is the forward transform of the conjugate, conjugated and divided by the length.
//!
//! The core keeps 32 bits and rounds once per stage, so a line's error is about
//! `2^-23 · log2(size)` of the spectrum's mean. The op's tolerance for f32 allows this. A line with
//! non-finite samples becomes NaN and is not sent.

use panoply_core::op::signal::{Fft, Ifft, half_spectrum_len};
use panoply_core::{DType, Result, Shape, Tensor, Value};

use super::{CardWork, CorePass, Packet, numbers, tensor, too_narrow};
use crate::driver::Identity;
use crate::fixed::{number, quantized};
use crate::map::CoreKind;

/// Number of lines per packet.
const LINES: usize = 64;

pub(super) fn refusal(identity: &Identity, op: &Fft) -> Option<String> {
    of_this_size(identity, &op.input, op.axis)
}

pub(super) fn inverse_refusal(identity: &Identity, op: &Ifft) -> Option<String> {
    let real = op.real_len.map(|_| "its core gives complex lines".to_owned());
    real.or_else(|| of_this_size(identity, &op.input, op.axis))
}

fn of_this_size(identity: &Identity, input: &Tensor, axis: usize) -> Option<String> {
    let (size, bits) = identity.fft.unwrap_or_default();
    let len = input.shape().get(axis).copied().unwrap_or(0);
    if input.dtype() == DType::F64 {
        return Some("its core has 24 bits".to_owned());
    }
    if axis + 1 != input.shape().rank() {
        return Some("it transforms along the last axis".to_owned());
    }
    let other = (len != size as usize).then(|| format!("its core transforms {size} samples, not {len}"));
    other.or_else(|| too_narrow(bits))
}

struct FftWork {
    /// The lines to send, with two integers per sample, and the exponent of every line of the
    /// input. The exponent is `None` for non-finite lines, which are not sent.
    lines: Option<Vec<Vec<i32>>>,
    exponents: Vec<Option<i32>>,
    size: usize,
    /// Number of output samples per line.
    kept: usize,
    inverse: bool,
    /// Index of the input line for each line that was sent.
    sent: Vec<usize>,
    output: Vec<f32>,
    shape: Shape,
}

pub(super) fn work(identity: &Identity, op: &Fft) -> Result<Box<dyn CardWork>> {
    let size = identity.fft.unwrap_or_default().0 as usize;
    let kept = if op.input.dtype() == DType::F32 { half_spectrum_len(size) } else { size };
    lines(&op.input, size, kept, false, op.output_shape()?)
}

pub(super) fn inverse_work(identity: &Identity, op: &Ifft) -> Result<Box<dyn CardWork>> {
    let size = identity.fft.unwrap_or_default().0 as usize;
    lines(&op.input, size, size, true, op.output_shape()?)
}

fn lines(input: &Tensor, size: usize, kept: usize, inverse: bool, shape: Shape) -> Result<Box<dyn CardWork>> {
    let is_real = input.dtype() == DType::F32;
    let numbers = numbers(input)?;
    let (mut lines, mut exponents, mut sent) = (Vec::new(), Vec::new(), Vec::new());
    for (at, line) in numbers.chunks_exact(if is_real { size } else { 2 * size }).enumerate() {
        let is_finite = line.iter().all(|number| number.is_finite());
        let fixed = quantized(line, 24);
        exponents.push(is_finite.then_some(fixed.exponent));
        if is_finite {
            sent.push(at);
            lines.push(samples(&fixed.values, is_real, inverse));
        }
    }
    let output = vec![f32::NAN; exponents.len() * kept * 2];
    Ok(Box::new(FftWork { lines: Some(lines), exponents, size, kept, inverse, sent, output, shape }))
}

/// Two integers per sample, conjugated for the inverse transform. The negation of the most negative
/// integer does not fit, so it is off by one.
fn samples(values: &[i32], is_real: bool, inverse: bool) -> Vec<i32> {
    let limit = (1 << 23) - 1;
    match (is_real, inverse) {
        (true, _) => values.iter().flat_map(|value| [*value, 0]).collect(),
        (false, false) => values.to_vec(),
        (false, true) => values.as_chunks::<2>().0.iter().flat_map(|[re, im]| [*re, (-im).min(limit)]).collect(),
    }
}

impl CardWork for FftWork {
    fn pass(&mut self, _number: usize) -> Option<CorePass> {
        let lines = self.lines.take()?;
        let packet = |lines: &[Vec<i32>]| {
            let payload: Vec<u8> = lines.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
            Packet { answer_bytes: payload.len(), payload: payload.into() }
        };
        let packets = lines.chunks(LINES).map(packet).collect();
        Some(CorePass { core: CoreKind::Fft, registers: Vec::new(), packets })
    }

    fn take(&mut self, _pass: usize, packet: usize, answer: &[u8]) {
        for (at, spectrum) in answer.chunks_exact(8 * self.size).enumerate() {
            let line = self.sent[packet * LINES + at];
            // Division by a power of two only changes the exponent.
            let divided = if self.inverse { self.size.ilog2() as i32 } else { 0 };
            let exponent = self.exponents[line].unwrap_or(0) - divided;
            let output = &mut self.output[line * self.kept * 2..(line + 1) * self.kept * 2];
            for (place, (to, bytes)) in output.iter_mut().zip(spectrum.as_chunks::<4>().0).enumerate() {
                let value = i64::from(i32::from_le_bytes(*bytes));
                *to = number(if self.inverse && place % 2 == 1 { -value } else { value }, exponent);
            }
        }
    }

    fn value(self: Box<Self>) -> Result<Value> {
        tensor(DType::Complex64, self.output, self.shape).map(Value::Tensor)
    }
}
