//! Interleave and Scramble: one element, one bit at a time.

use panoply_core::op::signal::{Interleave, Scramble, Scrambler};
use panoply_core::{HostBufferMut, Result, Tensor, Value};

pub(super) fn interleave(op: &Interleave) -> Result<Value> {
    let (input, frame) = (op.input.contiguous()?, op.interleaver.frame());
    let (bytes, each) = (input.as_bytes()?, input.dtype().size_bytes());
    let mut output = bytes.to_vec();
    for first in (0..input.elements()).step_by(frame) {
        for place in 0..frame {
            let (mut to, mut from) = (first + place, first + op.interleaver.source(place));
            if op.inverse {
                (to, from) = (from, to);
            }
            output[to * each..(to + 1) * each].copy_from_slice(&bytes[from * each..(from + 1) * each]);
        }
    }
    let mut buffer = HostBufferMut::zeroed(output.len())?;
    buffer.bytes_mut().copy_from_slice(&output);
    Tensor::from_host(input.dtype(), *input.shape(), buffer.freeze()).map(Value::Tensor)
}

pub(super) fn scramble(op: &Scramble) -> Result<Value> {
    let input = op.input.contiguous()?;
    let len = input.shape().last().copied().unwrap_or(0).max(1);
    let (polynomial, seed) = op.scrambler.register();
    let mut output = Vec::new();
    for line in input.as_slice::<u8>()?.chunks(len) {
        let mut register = seed;
        for byte in line {
            let mut scrambled = 0;
            for bit in (0..8).rev().map(|at| u64::from(byte >> at & 1)) {
                let fed = u64::from((register & polynomial).count_ones() % 2);
                let out = bit ^ fed;
                register = register << 1
                    | match op.scrambler {
                        Scrambler::Additive { .. } => fed,
                        Scrambler::SelfSynchronizing { .. } if op.inverse => bit,
                        Scrambler::SelfSynchronizing { .. } => out,
                    };
                scrambled = scrambled << 1 | out as u8;
            }
            output.push(scrambled);
        }
    }
    Tensor::from_vec(output, *input.shape()).map(Value::Tensor)
}
