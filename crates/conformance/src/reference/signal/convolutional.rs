//! ConvolutionalEncode and Viterbi: one bit and one state at a time.

use panoply_core::op::signal::{Convolutional, ConvolutionalEncode, Ending, Viterbi};
use panoply_core::{DType, Result, Tensor, Value};

pub(super) fn encode(op: &ConvolutionalEncode) -> Result<Value> {
    let input = op.input.contiguous()?;
    let tail = if op.ending == Ending::Terminated { 6 } else { 0 };
    let mut coded = Vec::new();
    let bytes = op.bits.div_ceil(8);
    for frame in input.as_slice::<u8>()?.chunks(bytes.max(1)).take(frames(&input)) {
        let bit = |at: usize| if at < op.bits { frame[at / 8] >> (7 - at % 8) & 1 } else { 0 };
        // A tail-biting frame starts with its last bits in the register.
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
        // Frames without bits have at most a tail of zeros.
        coded = vec![0; op.output_shape()?.elements()];
    }
    Tensor::from_vec(coded, op.output_shape()?).map(Value::Tensor)
}

pub(super) fn viterbi(op: &Viterbi) -> Result<Value> {
    let input = op.input.contiguous()?;
    // Each coded bit as its distance from 0 on a scale whose middle carries no information.
    let (levels, full): (Vec<f64>, f64) = match op.input.dtype() {
        DType::F32 => (input.as_slice::<f32>()?.iter().map(|soft| level_of_logarithm(*soft)).collect(), 16384.0),
        _ => (input.as_slice::<u8>()?.iter().map(|soft| (f64::from(*soft) * 15.0 / 256.0).floor()).collect(), 14.0),
    };
    let mut decoded = Vec::new();
    for frame in levels.chunks(op.coded_bits().max(1)).take(frames(&input)) {
        let mut received = frame.iter();
        let tail = if op.ending == Ending::Terminated { 6 } else { 0 };
        let whole = |at: usize| if op.code.puncture.is_sent(at) { received.next().copied() } else { Some(full / 2.0) };
        let whole: Vec<f64> = (0..2 * (op.bits + tail)).filter_map(whole).collect();
        let search = Search { code: op.code, full };
        let path = match op.ending {
            Ending::Terminated => search.path(&whole, Some(0), Some(0)).1,
            Ending::Open => search.path(&whole, Some(0), None).1,
            // The best of all paths that end in their initial state; of equals, the one from the
            // lowest state.
            Ending::TailBiting if op.bits <= 112 => {
                let circles = (0..64).map(|state| search.path(&whole, Some(state), Some(state)));
                let best = circles.reduce(|best, own| if own.0 < best.0 { own } else { best });
                best.map(|(_, path)| path).unwrap_or_default()
            }
            Ending::TailBiting => search.path(&whole.repeat(3), None, None).1.split_off(op.bits),
        };
        decoded.extend(packed(&path[..path.len().min(op.bits)]));
    }
    Tensor::from_vec(decoded, op.output_shape()?).map(Value::Tensor)
}

/// Maps 128 … -128 to steps of 1/64. NaN maps to the middle.
fn level_of_logarithm(soft: f32) -> f64 {
    if soft.is_nan() {
        return 8192.0;
    }
    f64::from((8192.5_f32 - 64.0 * soft.clamp(-128.0, 128.0)).floor())
}

fn frames(input: &Tensor) -> usize {
    let dims: &[usize] = input.shape();
    dims[..dims.len() - 1].iter().product()
}

struct Search {
    code: Convolutional,
    /// The distance of a certain 1 from 0.
    full: f64,
}

impl Search {
    /// The cost and the bits of the cheapest path between two states, or with free ends. Of two
    /// equal paths, the one from the lower state.
    fn path(&self, frame: &[f64], first: Option<usize>, last: Option<usize>) -> (f64, Vec<u8>) {
        let is_first = |state: usize| first.is_none_or(|first| first == state);
        let mut costs: Vec<f64> = (0..64).map(|state| if is_first(state) { 0.0 } else { f64::INFINITY }).collect();
        let mut steps: Vec<Vec<usize>> = Vec::new();
        for pair in frame.chunks_exact(2) {
            let cost = |register: u8| -> f64 {
                let bits = outputs(self.code, register);
                (0..2).map(|at| if bits[at] == 1 { self.full - pair[at] } else { pair[at] }).sum()
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
        let last = last.unwrap_or(cheapest);
        let (mut state, mut bits) = (last, Vec::new());
        for from in steps.iter().rev() {
            bits.push((state / 32) as u8);
            state = from[state];
        }
        bits.reverse();
        (costs[last], bits)
    }
}

fn outputs(code: Convolutional, register: u8) -> [u8; 2] {
    code.polynomials.map(|polynomial| (register & polynomial).count_ones() as u8 % 2)
}

fn packed(bits: &[u8]) -> Vec<u8> {
    bits.chunks(8).map(|bits| bits.iter().enumerate().fold(0, |byte, (at, bit)| byte | bit << (7 - at))).collect()
}
