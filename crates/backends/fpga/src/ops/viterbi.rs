//! Viterbi: one packet per frame. Bits that were not sent are replaced by neutral bytes. A long
//! tail-biting frame is sent three times in a row, and the middle round is used. Short tail-biting
//! frames, which need an exact search for the likeliest path, and log-likelihood inputs are
//! refused.

use panoply_core::op::signal::{EXACT_TAIL_BITS_MAX, Ending, Viterbi};
use panoply_core::{DType, Result, Shape, Tensor, Value};

use super::{CardWork, CorePass, Packet};
use crate::driver::Identity;
use crate::map::{BEAT_BYTES, CoreKind, VITERBI_ANY_START, VITERBI_BEST_END, VITERBI_CODE};

/// A neutral soft bit.
const ERASED: u8 = 128;
const TAIL_BITS: usize = 6;

/// Number of steps per round of a frame, and number of rounds.
fn steps(op: &Viterbi) -> (usize, usize) {
    match op.ending {
        Ending::Terminated => (op.bits + TAIL_BITS, 1),
        Ending::Open => (op.bits, 1),
        Ending::TailBiting => (op.bits, 3),
    }
}

pub(super) fn refusal(identity: &Identity, op: &Viterbi) -> Option<String> {
    if op.input.dtype() != DType::U8 {
        return Some("the core takes soft bits of u8 alone".to_owned());
    }
    if op.ending == Ending::TailBiting && op.bits <= EXACT_TAIL_BITS_MAX {
        return Some(format!(
            "the core goes round tail-biting frames, which suits those of more than {EXACT_TAIL_BITS_MAX} bits"
        ));
    }
    let ((steps, rounds), limit) = (steps(op), identity.viterbi.unwrap_or(0) as usize);
    let steps = steps.saturating_mul(rounds);
    (steps > limit).then(|| format!("a frame has {steps} steps; the core takes {limit}"))
}

struct ViterbiWork {
    pass: Option<CorePass>,
    /// Number of bits in a frame, and index of the first used decoded bit.
    bits: usize,
    first: usize,
    output: Vec<u8>,
    shape: Shape,
}

pub(super) fn work(op: &Viterbi) -> Result<Box<dyn CardWork>> {
    let shape = op.output_shape()?;
    let (steps, rounds) = steps(op);
    let mut packets = Vec::new();
    // Frames without bits need no decoding.
    if op.bits > 0 {
        let input = op.input.to_vec::<u8>()?;
        let answer_bytes = (steps * rounds).div_ceil(64) * BEAT_BYTES;
        let frames = input.chunks_exact(op.coded_bits().max(1));
        packets.extend(frames.map(|frame| Packet { payload: whole(op, frame, steps, rounds).into(), answer_bytes }));
    }
    let first = if op.ending == Ending::TailBiting { op.bits } else { 0 };
    let output = vec![0; shape.elements()];
    let pass = Some(CorePass { core: CoreKind::Viterbi, registers: vec![(VITERBI_CODE, code(op))], packets });
    Ok(Box::new(ViterbiWork { pass, bits: op.bits, first, output, shape }))
}

fn code(op: &Viterbi) -> u32 {
    let [first, second] = op.code.polynomials.map(u32::from);
    let ends = match op.ending {
        Ending::Terminated => 0,
        Ending::Open => VITERBI_BEST_END,
        Ending::TailBiting => VITERBI_ANY_START | VITERBI_BEST_END,
    };
    first | second << 8 | ends
}

/// The frame with neutral bytes for the bits that were not sent, repeated for each round.
fn whole(op: &Viterbi, frame: &[u8], steps: usize, rounds: usize) -> Vec<u8> {
    let mut received = frame.iter();
    let mut bit = |at| if op.code.puncture.is_sent(at) { received.next().copied().unwrap_or(ERASED) } else { ERASED };
    let once: Vec<u8> = (0..2 * steps).map(&mut bit).collect();
    once.repeat(rounds)
}

impl CardWork for ViterbiWork {
    fn pass(&mut self, _number: usize) -> Option<CorePass> {
        self.pass.take()
    }

    fn take(&mut self, _pass: usize, packet: usize, answer: &[u8]) {
        let each = self.bits.div_ceil(8);
        let frame = &mut self.output[packet * each..(packet + 1) * each];
        for at in 0..self.bits {
            let from = self.first + at;
            frame[at / 8] |= (answer[from / 8] >> (7 - from % 8) & 1) << (7 - at % 8);
        }
    }

    fn value(self: Box<Self>) -> Result<Value> {
        Tensor::from_vec(self.output, self.shape).map(Value::Tensor)
    }
}
