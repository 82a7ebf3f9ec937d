//! ConvolutionalEncode and Viterbi: one bit and one state at a time.

use panoply_core::op::signal::{Convolutional, ConvolutionalEncode, Ending, Viterbi};
use panoply_core::{Result, Tensor, Value};

pub(super) fn encode(op: &ConvolutionalEncode) -> Result<Value> {
    let input = op.input.contiguous()?;
    let tail = if op.ending == Ending::Terminated { 6 } else { 0 };
    let mut coded = Vec::new();
    let bytes = op.bits.div_ceil(8);
    for frame in input.as_slice::<u8>()?.chunks(bytes.max(1)).take(frames(&input)) {
        let bit = |at: usize| if at < op.bits { frame[at / 8] >> (7 - at % 8) & 1 } else { 0 };
        // The register as if it had seen the frame's last bits, where the frame bites its tail.
        let before = if op.ending == Ending::TailBiting { op.bits.saturating_sub(6)..op.bits } else { 0..0 };
        let mut register = before.fold(0_u8, |register, at| bit(at) << 6 | register >> 1);
        let mut bits = Vec::new();
        for at in 0..op.bits + tail {
            register = bit(at) << 6 | register >> 1;
            bits.extend(outputs(op.code, register));
        }
        let mut places = 0..;
        bits.retain(|_| places.next().is_some_and(|at| op.code.puncture.is_sent(at)));
        coded.extend(packed(&bits));
    }
    if bytes == 0 {
        // Frames without bits have a tail at the most, of zeros.
        coded = vec![0; op.output_shape()?.elements()];
    }
    Tensor::from_vec(coded, op.output_shape()?).map(Value::Tensor)
}

pub(super) fn viterbi(op: &Viterbi) -> Result<Value> {
    let input = op.input.contiguous()?;
    let mut decoded = Vec::new();
    for frame in input.as_slice::<u8>()?.chunks(op.coded_bits().max(1)).take(frames(&input)) {
        let mut received = frame.iter();
        let tail = if op.ending == Ending::Terminated { 6 } else { 0 };
        let whole = |at: usize| if op.code.puncture.is_sent(at) { received.next().copied() } else { Some(128) };
        let whole: Vec<u8> = (0..2 * (op.bits + tail)).filter_map(whole).collect();
        let (times, first) = if op.ending == Ending::TailBiting { (3, op.bits) } else { (1, 0) };
        let path = best_path(op.code, &whole.repeat(times), op.ending);
        decoded.extend(packed(&path[first..path.len().min(first + op.bits)]));
    }
    Tensor::from_vec(decoded, op.output_shape()?).map(Value::Tensor)
}

fn frames(input: &Tensor) -> usize {
    let dims: &[usize] = input.shape();
    dims[..dims.len() - 1].iter().product()
}

/// The bits of the cheapest path; of two alike the one from the lower state.
fn best_path(code: Convolutional, frame: &[u8], ending: Ending) -> Vec<u8> {
    let mut costs = vec![if ending == Ending::TailBiting { 0.0 } else { f64::INFINITY }; 64];
    costs[0] = 0.0;
    let mut steps: Vec<Vec<usize>> = Vec::new();
    for pair in frame.chunks_exact(2) {
        let softs: Vec<f64> = pair.iter().map(|soft| (f64::from(*soft) * 15.0 / 256.0).floor()).collect();
        let cost = |register: u8| -> f64 {
            let bits = outputs(code, register);
            (0..2).map(|at| if bits[at] == 1 { 14.0 - softs[at] } else { softs[at] }).sum()
        };
        let mut next = vec![f64::INFINITY; 64];
        let mut from = vec![0; 64];
        for state in 0..64 {
            for before in [state % 32 * 2, state % 32 * 2 + 1] {
                let total = costs[before] + cost((state / 32 * 64 + before) as u8);
                if total < next[state] {
                    (next[state], from[state]) = (total, before);
                }
            }
        }
        costs = next;
        steps.push(from);
    }
    let cheapest = (0..64).fold(0, |best, state| if costs[state] < costs[best] { state } else { best });
    let mut state = if ending == Ending::Terminated { 0 } else { cheapest };
    let mut bits = Vec::new();
    for from in steps.iter().rev() {
        bits.push((state / 32) as u8);
        state = from[state];
    }
    bits.reverse();
    bits
}

fn outputs(code: Convolutional, register: u8) -> [u8; 2] {
    code.polynomials.map(|polynomial| (register & polynomial).count_ones() as u8 % 2)
}

fn packed(bits: &[u8]) -> Vec<u8> {
    bits.chunks(8).map(|bits| bits.iter().enumerate().fold(0, |byte, (at, bit)| byte | bit << (7 - at))).collect()
}
