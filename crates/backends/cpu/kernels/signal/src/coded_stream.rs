//! The convolutional code over endless streams: an encoder and a decoder with their complete state.
//!
//! The decoder keeps a cost for each state, and a bit for each state and each step of an undecided
//! block. Blocks begin at multiples of [`VITERBI_BLOCK_BITS`] steps. A block is decided when the
//! step `depth` after its end is known. So the bits do not depend on how the stream was cut into
//! pieces.

use std::sync::Arc;

use panoply_core::op::signal::{Puncture, VITERBI_BLOCK_BITS};

use crate::viterbi::frame::{Branches, Cost, cheapest, from_state};
use crate::viterbi::{STATES, Trellis};

/// Number of steps after which the least cost is subtracted, so that costs do not overflow.
const STEPS_PER_SETTLING: u64 = 1024;

/// The state of an encoder between two bytes.
#[derive(Clone)]
pub struct Encoder {
    trellis: Arc<Trellis>,
    puncture: Puncture,
    state: usize,
    /// Number of coded bits so far, sent or punctured, modulo the period of the pattern.
    at: usize,
    /// Bits that do not fill a byte yet, the first in the highest bit, and their number.
    rest: u8,
    rest_bits: usize,
}

impl Encoder {
    /// An encoder before the first bit.
    pub fn new(trellis: Arc<Trellis>, puncture: Puncture) -> Encoder {
        Encoder { trellis, puncture, state: 0, at: 0, rest: 0, rest_bits: 0 }
    }

    /// Number of complete output bytes after `bytes` more input bytes.
    pub fn output_len(&self, bytes: usize) -> usize {
        let sent = self.puncture.sent(self.at + 16 * bytes) - self.puncture.sent(self.at);
        (self.rest_bits + sent) / 8
    }

    /// Encodes more bytes, and writes the output bytes that are complete.
    pub fn encode(&mut self, data: &[u8], coded: &mut [u8]) {
        let mut coded = coded.iter_mut();
        for byte in data {
            let (bits, state) = self.trellis.encode_byte(self.state, *byte);
            self.state = state;
            for at in 0..16 {
                if !self.puncture.is_sent(self.at + at) {
                    continue;
                }
                self.rest |= ((bits >> (15 - at) & 1) as u8) << (7 - self.rest_bits);
                self.rest_bits += 1;
                if self.rest_bits == 8 {
                    if let Some(place) = coded.next() {
                        *place = self.rest;
                    }
                    (self.rest, self.rest_bits) = (0, 0);
                }
            }
            self.at = (self.at + 16) % self.puncture.period();
        }
    }
}

/// The state of a decoder between two soft bits. Soft bits are bytes, with costs of u16, or
/// log-likelihoods, with costs of u32.
#[derive(Clone)]
pub(crate) struct Decoder<C> {
    branches: Arc<Branches<C>>,
    puncture: Puncture,
    depth: usize,
    costs: [C; STATES],
    /// For each step of an undecided block a bit for each state: whether the higher of its two
    /// predecessors is better.
    choices: Vec<u64>,
    steps: u64,
    /// Number of coded bits so far, modulo the period of the pattern; and the first bit of a step
    /// whose second bit has not arrived.
    at: usize,
    first: Option<C>,
}

impl<C: Cost> Decoder<C> {
    /// A decoder before the first soft bit. A block is decided `depth` steps after its end.
    pub(crate) fn new(trellis: &Trellis, puncture: Puncture, depth: usize) -> Decoder<C> {
        let (branches, costs) = (Arc::new(Branches::new(trellis)), from_state(0));
        Decoder { branches, puncture, depth, costs, choices: Vec::new(), steps: 0, at: 0, first: None }
    }

    /// Decodes more soft bits, and appends the bytes of the blocks that they decide.
    pub(crate) fn decode(&mut self, softs: &[C::Soft], decoded: &mut Vec<u8>) {
        let mut softs = softs.iter();
        loop {
            let level = match self.puncture.is_sent(self.at) {
                true => match softs.next() {
                    Some(soft) => C::of(*soft),
                    None => return,
                },
                false => C::UNKNOWN,
            };
            self.at = (self.at + 1) % self.puncture.period();
            match self.first.take() {
                None => self.first = Some(level),
                Some(first) => self.step([first, level], decoded),
            }
        }
    }

    fn step(&mut self, levels: [C; 2], decoded: &mut Vec<u8>) {
        let (mut costs, choices) = self.branches.step(levels, &self.costs);
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_PER_SETTLING) {
            let least = costs[cheapest(&costs)];
            costs.iter_mut().for_each(|cost| *cost = *cost - least);
        }
        self.costs = costs;
        self.choices.push(choices);
        if self.choices.len() == self.depth + VITERBI_BLOCK_BITS {
            self.decide(decoded);
        }
    }

    /// Decides the oldest block along the likeliest path back from the current step. Among equal
    /// states the lowest is chosen.
    fn decide(&mut self, decoded: &mut Vec<u8>) {
        let mut state = cheapest(&self.costs);
        let mut bits = 0_u64;
        for (step, choices) in self.choices.iter().enumerate().rev() {
            if step < VITERBI_BLOCK_BITS {
                bits |= (state as u64 >> 5) << (VITERBI_BLOCK_BITS - 1 - step);
            }
            state = (state & 31) << 1 | (choices >> state & 1) as usize;
        }
        decoded.extend_from_slice(&bits.to_be_bytes());
        self.choices.drain(..VITERBI_BLOCK_BITS);
    }
}

#[cfg(test)]
mod tests {
    use panoply_core::op::signal::{Convolutional, Ending};

    use super::*;
    use crate::level::Level;
    use panoply_radio::synthetic::Noise;

    fn softs(coded: &[u8]) -> Vec<u8> {
        let bit = |at: usize| coded[at / 8] >> (7 - at % 8) & 1;
        (0..8 * coded.len()).map(|at| if bit(at) == 1 { 255 } else { 0 }).collect()
    }

    #[test]
    fn a_stream_begins_as_a_frame_does() {
        let trellis = Arc::new(Trellis::new(Level::PLAIN, Convolutional::default()));
        let data = Noise::new(3).bytes(300);
        let mut frame = vec![0; 600];
        trellis.encode(&data, 2400, Ending::Open, &mut frame);
        let mut encoder = Encoder::new(Arc::clone(&trellis), Puncture::NONE);
        assert_eq!(encoder.output_len(300), 600);
        let mut coded = vec![0; 600];
        encoder.encode(&data, &mut coded);
        assert_eq!(coded, frame);
    }

    #[test]
    fn what_was_sent_comes_out_in_spite_of_errors() {
        let patterns = [
            (Puncture::NONE, 29),
            (Puncture::TWO_THIRDS, 43),
            (Puncture::THREE_QUARTERS, 97),
            (Puncture::SEVEN_EIGHTHS, 401),
        ];
        for (puncture, every) in patterns {
            let trellis = Arc::new(Trellis::new(Level::PLAIN, Convolutional::default()));
            let data = Noise::new(4).bytes(4000);
            let mut encoder = Encoder::new(Arc::clone(&trellis), puncture);
            let mut coded = vec![0; encoder.output_len(data.len())];
            encoder.encode(&data, &mut coded);
            let mut received = softs(&coded);
            received.iter_mut().step_by(every).for_each(|soft| *soft = 255 - *soft);
            let (mut decoder, mut decoded) = (Decoder::<u16>::new(&trellis, puncture, 128), Vec::new());
            decoder.decode(&received, &mut decoded);
            assert!(decoded.len() + 40 > data.len(), "{} of {}", decoded.len(), data.len());
            assert_eq!(decoded, data[..decoded.len()], "{puncture:?}");
            let logarithms: Vec<f32> = received.iter().map(|soft| if *soft == 0 { 2.5 } else { -2.5 }).collect();
            let (mut decoder, mut by_logarithms) = (Decoder::<u32>::new(&trellis, puncture, 128), Vec::new());
            logarithms.chunks(77).for_each(|piece| decoder.decode(piece, &mut by_logarithms));
            assert_eq!(by_logarithms, decoded, "{puncture:?}");
        }
    }
}
