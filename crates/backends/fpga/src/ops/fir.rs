//! Fir: lines and taps as integers, with exact sums.
//!
//! The core filters real lines with its number of taps. A complex line becomes two real lines,
//! complex taps become two filters, and a longer filter runs in several passes, each delayed by the
//! taps before. The host adds the resulting integers. So only the samples and the taps are rounded:
//! with 24 bits the error is at most `taps · 2^-22 · max |x| · max |tap|`. Non-finite numbers are
//! zero on the card, and the host adds their terms afterwards.

use std::rc::Rc;

use panoply_core::op::signal::Fir;
use panoply_core::{DType, Result, Shape, Value};

use super::{CardWork, CorePass, Packet, numbers, tensor, too_long, too_narrow};
use crate::driver::Identity;
use crate::fixed::{FixedPointLine, number, quantized};
use crate::map::{BEAT_BYTES, CoreKind, FIR_TAP_INDEX, FIR_TAP_VALUE};

/// Maximum number of passes for one part of the taps: the sums of these passes fit into 64 bits.
const PASSES_MAX: usize = 16;

pub(super) fn refusal(identity: &Identity, op: &Fir) -> Option<String> {
    let (taps, bits) = identity.fir.unwrap_or_default();
    if (op.up, op.down) != (1, 1) {
        return Some("its core keeps the rate".to_owned());
    }
    let (got, limit) = (op.taps.elements(), taps as usize * PASSES_MAX);
    let long = (got > limit).then(|| format!("a filter of {got} taps; the core takes {limit} in {PASSES_MAX} passes"));
    let line = || too_long("a line", op.input.shape().last().copied().unwrap_or(0).saturating_mul(BEAT_BYTES));
    long.or_else(line).or_else(|| too_narrow(bits))
}

struct FirWork {
    input: Vec<f32>,
    taps: Vec<f32>,
    /// Number of parts of a sample and of a tap: 2 if complex, otherwise 1.
    parts: usize,
    tap_parts: usize,
    /// Number of samples in a line.
    len: usize,
    core_taps: usize,
    fixed_taps: FixedPointLine,
    exponents: Vec<i32>,
    /// For each line its real part and, if it is complex, its imaginary part.
    packets: Vec<Packet>,
    sums: Vec<i64>,
    dtype: DType,
    shape: Shape,
}

pub(super) fn work(identity: &Identity, op: &Fir) -> Result<Box<dyn CardWork>> {
    let (core_taps, bits) = identity.fir.unwrap_or_default();
    let (input, taps) = (numbers(&op.input)?, numbers(&op.taps)?);
    let parts_of = |dtype| if dtype == DType::Complex64 { 2 } else { 1 };
    let (parts, tap_parts) = (parts_of(op.input.dtype()), parts_of(op.taps.dtype()));
    let len = op.input.shape().last().copied().unwrap_or(0);
    let (mut exponents, mut packets) = (Vec::new(), Vec::new());
    if len > 0 {
        for line in input.chunks_exact(len * parts) {
            let fixed = quantized(line, bits);
            exponents.push(fixed.exponent);
            packets.extend((0..parts).map(|part| packet(fixed.values.iter().skip(part).step_by(parts))));
        }
    }
    let (fixed_taps, sums) = (quantized(&taps, bits), vec![0; input.len()]);
    let (dtype, shape, core_taps) = (op.input.dtype(), op.output_shape()?, core_taps as usize);
    Ok(Box::new(FirWork {
        input,
        taps,
        parts,
        tap_parts,
        len,
        core_taps,
        fixed_taps,
        exponents,
        packets,
        sums,
        dtype,
        shape,
    }))
}

fn packet<'a>(samples: impl Iterator<Item = &'a i32>) -> Packet {
    let payload: Rc<[u8]> = samples.flat_map(|sample| i64::from(*sample).to_le_bytes()).collect();
    Packet { answer_bytes: payload.len(), payload }
}

impl FirWork {
    /// The part of the taps and the first tap of a pass.
    fn taps_of(&self, pass: usize) -> Option<(usize, usize)> {
        let passes = (self.taps.len() / self.tap_parts).div_ceil(self.core_taps);
        (pass < passes * self.tap_parts).then(|| (pass / passes, pass % passes * self.core_taps))
    }

    /// Adds the terms with non-finite factors, which the card treated as zero.
    fn spoil(&self, output: &mut [f32]) {
        let taps = self.taps.len() / self.tap_parts;
        let all_taps_finite = self.taps.iter().all(|tap| tap.is_finite());
        for (at, x) in self.input.iter().enumerate().filter(|(_, x)| !all_taps_finite || !x.is_finite()) {
            let (sample, part) = (at / self.parts, at % self.parts);
            let line_end = (sample / self.len + 1) * self.len;
            for tap in (0..taps).take(line_end - sample) {
                for tap_part in 0..self.tap_parts {
                    let product = x * self.taps[tap * self.tap_parts + tap_part];
                    let (to, falls) = place(part, tap_part);
                    if !product.is_finite() {
                        output[(sample + tap) * self.parts + to] += if falls { -product } else { product };
                    }
                }
            }
        }
    }
}

/// The part of the output that a product of these parts belongs to, and whether the product is
/// subtracted.
fn place(part: usize, tap_part: usize) -> (usize, bool) {
    (part ^ tap_part, part == 1 && tap_part == 1)
}

impl CardWork for FirWork {
    fn pass(&mut self, number: usize) -> Option<CorePass> {
        let (tap_part, first) = self.taps_of(number)?;
        let own = self.fixed_taps.values.iter().skip(tap_part).step_by(self.tap_parts).skip(first);
        let padded = own.copied().chain(std::iter::repeat(0)).take(self.core_taps);
        let writes = padded.map(|tap| (FIR_TAP_VALUE, tap as u32));
        let registers = std::iter::once((FIR_TAP_INDEX, 0)).chain(writes).collect();
        Some(CorePass { core: CoreKind::Fir, registers, packets: self.packets.clone() })
    }

    fn take(&mut self, pass: usize, packet: usize, answer: &[u8]) {
        let Some((tap_part, first)) = self.taps_of(pass) else { return };
        let (line, part) = (packet / self.parts, packet % self.parts);
        let (to, falls) = place(part, tap_part);
        let sums = &mut self.sums[line * self.len * self.parts..(line + 1) * self.len * self.parts];
        let places = sums.iter_mut().skip(to).step_by(self.parts).skip(first);
        for (sum, bytes) in places.zip(answer.as_chunks::<8>().0) {
            let value = i64::from_le_bytes(*bytes);
            *sum = if falls { sum.wrapping_sub(value) } else { sum.wrapping_add(value) };
        }
    }

    fn value(self: Box<Self>) -> Result<Value> {
        let line_numbers = (self.len * self.parts).max(1);
        let exponent = |at: usize| self.exponents[at / line_numbers] + self.fixed_taps.exponent;
        let mut output: Vec<f32> = self.sums.iter().enumerate().map(|(at, sum)| number(*sum, exponent(at))).collect();
        self.spoil(&mut output);
        tensor(self.dtype, output, self.shape).map(Value::Tensor)
    }
}
