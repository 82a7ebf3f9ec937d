//! The convolutional code over streams: an encoder and a decoder of frames that never end, with all that they must remember.
//!
//! The decoder keeps a cost for each state, and a bit for each state and step of which no block was decided yet. Blocks begin at multiples of
//! [`VITERBI_BLOCK_BITS`] steps and are decided when the step `depth` behind their end is known, whatever pieces the stream came in: so any
//! cutting gives the same bits.

use std::sync::Arc;

use panoply_core::op::signal::{Puncture, VITERBI_BLOCK_BITS};

use crate::viterbi::{STATES, Trellis, level_of};

/// What a bit that was not sent counts as.
const UNKNOWN_BIT: u8 = 128;
/// The cost of the largest distance of one soft bit.
const FULL: u16 = 14;
/// A cost that no path which begins in the first state reaches in the first steps.
const UNREACHABLE: u16 = 1000;
/// Steps after which the least cost is taken off, so that costs fit their type.
const STEPS_PER_SETTLING: u64 = 1024;

/// An encoder between two bytes.
#[derive(Clone)]
pub struct Encoder {
    trellis: Arc<Trellis>,
    puncture: Puncture,
    state: usize,
    /// Coded bits so far, sent or not, but for whole periods of the pattern.
    at: usize,
    /// Bits that do not fill a byte yet, the first highest, and how many.
    rest: u8,
    rest_bits: usize,
}

impl Encoder {
    /// Before the first bit.
    pub fn new(trellis: Arc<Trellis>, puncture: Puncture) -> Encoder {
        Encoder { trellis, puncture, state: 0, at: 0, rest: 0, rest_bits: 0 }
    }

    /// How many bytes are full behind this many more.
    pub fn output_len(&self, bytes: usize) -> usize {
        let sent = self.puncture.sent(self.at + 16 * bytes) - self.puncture.sent(self.at);
        (self.rest_bits + sent) / 8
    }

    /// The coded bits of more bytes, as many as are full.
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

/// A decoder between two soft bits.
#[derive(Clone)]
pub struct Decoder {
    /// Of each branch into a state, from the lower and from the higher state before it, masks of its two coded bits.
    branches: Arc<Branches>,
    puncture: Puncture,
    depth: usize,
    costs: [u16; STATES],
    /// Of each step of which no block was decided yet, a bit for each state: whether the higher of the two states before is the better.
    choices: Vec<u64>,
    steps: u64,
    /// Coded bits so far, but for whole periods of the pattern; and the first of a step whose second has not come.
    at: usize,
    first: Option<u8>,
}

/// Masks of the coded bits of the branches into each state: from the lower state before it, then from the higher; the first coded bit, then the second.
struct Branches([[[u16; STATES]; 2]; 2]);

impl Branches {
    fn new(trellis: &Trellis) -> Branches {
        let outputs = trellis.outputs();
        Branches(std::array::from_fn(|higher| {
            std::array::from_fn(|second| {
                std::array::from_fn(|state| {
                    let register = (state >> 5) << 6 | (state & 31) << 1 | higher;
                    let bit = outputs[register] >> (1 - second) & 1;
                    0_u16.wrapping_sub(u16::from(bit))
                })
            })
        }))
    }
}

impl Decoder {
    /// Before the first soft bit. A block is decided `depth` steps behind its end.
    pub fn new(trellis: &Trellis, puncture: Puncture, depth: usize) -> Decoder {
        let mut costs = [UNREACHABLE; STATES];
        costs[0] = 0;
        let branches = Arc::new(Branches::new(trellis));
        Decoder { branches, puncture, depth, costs, choices: Vec::new(), steps: 0, at: 0, first: None }
    }

    /// Takes more soft bits, and adds the bytes of blocks that they decide.
    pub fn decode(&mut self, softs: &[u8], decoded: &mut Vec<u8>) {
        let mut softs = softs.iter();
        loop {
            let soft = match self.puncture.is_sent(self.at) {
                true => match softs.next() {
                    Some(soft) => *soft,
                    None => return,
                },
                false => UNKNOWN_BIT,
            };
            self.at = (self.at + 1) % self.puncture.period();
            match self.first.take() {
                None => self.first = Some(soft),
                Some(first) => self.step(level_of(first).into(), level_of(soft).into(), decoded),
            }
        }
    }

    fn step(&mut self, a: u16, b: u16, decoded: &mut Vec<u8>) {
        let [[low_first, low_second], [high_first, high_second]] = &self.branches.0;
        let (not_a, not_b) = (FULL - a, FULL - b);
        let of = |value: u16, other: u16, mask: u16| value & !mask | other & mask;
        let (mut costs, mut higher) = ([0_u16; STATES], [0_u8; STATES]);
        for state in 0..STATES {
            let before = (state & 31) << 1;
            let low = self.costs[before] + of(a, not_a, low_first[state]) + of(b, not_b, low_second[state]);
            let high = self.costs[before + 1] + of(a, not_a, high_first[state]) + of(b, not_b, high_second[state]);
            higher[state] = u8::from(high < low);
            costs[state] = low.min(high);
        }
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_PER_SETTLING) {
            let least = costs.iter().copied().min().unwrap_or(0);
            costs.iter_mut().for_each(|cost| *cost -= least);
        }
        self.costs = costs;
        self.choices.push(higher.iter().enumerate().fold(0, |word, (state, bit)| word | u64::from(*bit) << state));
        if self.choices.len() == self.depth + VITERBI_BLOCK_BITS {
            self.decide(decoded);
        }
    }

    /// The oldest block, along the likeliest path back from here; the lowest state of equals.
    fn decide(&mut self, decoded: &mut Vec<u8>) {
        let mut state = (0..STATES).min_by_key(|state| self.costs[*state]).unwrap_or(0);
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
    use crate::synthetic::Noise;

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
            let (mut decoder, mut decoded) = (Decoder::new(&trellis, puncture, 128), Vec::new());
            decoder.decode(&received, &mut decoded);
            assert!(decoded.len() + 40 > data.len(), "{} of {}", decoded.len(), data.len());
            assert_eq!(decoded, data[..decoded.len()], "{puncture:?}");
        }
    }
}
