//! ConvolutionalEncode and Viterbi: the code of rate ½ with 64 states.

use super::reed_solomon::check_rows;
use crate::error::{Error, Result};
use crate::op::Describe;
use crate::part::{PartMut, PartRef};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Bits that the register remembers.
const TAIL_BITS: usize = 6;
/// The most bits of a frame.
pub const FRAME_BITS_MAX: usize = 1 << 16;

/// A code by the bits of its register of seven that each coded bit is the parity of; the newest bit is the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Convolutional {
    /// The polynomials of the first and the second coded bit.
    pub polynomials: [u8; 2],
    /// Which coded bits are sent.
    pub puncture: Puncture,
}

/// Which of the coded bits are sent, over and over: all, or fewer for a higher rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Puncture {
    /// A bit for each coded bit of a period, the first lowest.
    kept: u32,
    period: u8,
}

impl Puncture {
    /// All bits: rate ½.
    pub const NONE: Puncture = Puncture { kept: 1, period: 1 };
    /// Rate ⅔, as DVB and Wi-Fi's successors send it.
    pub const TWO_THIRDS: Puncture = Puncture { kept: 0b1011, period: 4 };
    /// Rate ¾.
    pub const THREE_QUARTERS: Puncture = Puncture { kept: 0b01_1011, period: 6 };
    /// Rate ⅚.
    pub const FIVE_SIXTHS: Puncture = Puncture { kept: 0b01_1001_1011, period: 10 };
    /// Rate ⅞.
    pub const SEVEN_EIGHTHS: Puncture = Puncture { kept: 0b01_1001_1010_1011, period: 14 };

    /// A pattern of the caller's own, of at most 32 coded bits, of which at least one is sent.
    pub fn new(pattern: &[bool]) -> Result<Puncture> {
        if pattern.is_empty() || pattern.len() > 32 || !pattern.contains(&true) {
            let got = format!("{} bits, {} sent", pattern.len(), pattern.iter().filter(|kept| **kept).count());
            return Err(Error::invalid("puncture", "1 to 32 coded bits, of which at least one is sent", got));
        }
        let kept = pattern.iter().enumerate().map(|(at, kept)| u32::from(*kept) << at).sum();
        Ok(Puncture { kept, period: pattern.len() as u8 })
    }

    /// Coded bits after which the pattern begins again.
    pub const fn period(self) -> usize {
        self.period as usize
    }

    /// Whether this coded bit is sent.
    pub const fn is_sent(self, at: usize) -> bool {
        self.kept >> (at % self.period as usize) & 1 == 1
    }

    /// How many of so many coded bits are sent.
    pub const fn sent(self, coded: usize) -> usize {
        let (period, rest) = (self.period as usize, coded % self.period as usize);
        let of_rest = self.kept & ((1_u64 << rest) - 1) as u32;
        coded / period * self.kept.count_ones() as usize + of_rest.count_ones() as usize
    }
}

impl Default for Convolutional {
    /// 171 and 133 in octal, as DVB sends them. CCSDS inverts the second coded bit; Wi-Fi sends 133 first.
    fn default() -> Convolutional {
        Convolutional { polynomials: [0o171, 0o133], puncture: Puncture::NONE }
    }
}

impl Convolutional {
    pub(super) fn check(self, bits: usize, ending: Ending) -> Result<()> {
        if self.polynomials.iter().any(|polynomial| *polynomial == 0 || *polynomial > 0o177) {
            let got = format!("{:#o} and {:#o}", self.polynomials[0], self.polynomials[1]);
            return Err(Error::invalid("convolutional: polynomials", "0o1 to 0o177", got));
        }
        // The decoder of a frame that bites its tail goes three times round.
        let limit = if ending == Ending::TailBiting { FRAME_BITS_MAX / 3 } else { FRAME_BITS_MAX };
        match bits {
            1..TAIL_BITS if ending == Ending::TailBiting => {
                Err(Error::invalid("convolutional: bits of a frame that bites its tail", "0, or 6 and more", bits))
            }
            got if got > limit => Err(Error::OutOfBounds { what: "convolutional: bits of a frame", limit, got }),
            _ => Ok(()),
        }
    }
}

/// How a frame ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ending {
    /// With six zeros that bring the register back to where it began.
    #[default]
    Terminated,
    /// With its last bit: the decoder takes the likeliest state.
    Open,
    /// In the state in which it began, that of its last six bits. The decoder takes the likeliest path through the frame three times over, from any
    /// state to any state, and gives its middle.
    TailBiting,
}

/// Encodes frames of bits, which lie in bytes, the first highest: from `[…, ⌈bits/8⌉]` to `[…, ⌈coded/8⌉]`, both u8. A terminated frame has
/// `2 · (bits + 6)` coded bits, any other `2 · bits`, of which those that the code punctures are left out; what is left of the last byte is zero.
#[derive(Clone, Debug)]
pub struct ConvolutionalEncode {
    /// The code.
    pub code: Convolutional,
    /// The frames.
    pub input: Tensor,
    /// Bits of each frame.
    pub bits: usize,
    /// How each frame ends.
    pub ending: Ending,
}

/// The likeliest bits of frames, by Viterbi: from `[…, coded]`, a byte for each coded bit, to `[…, ⌈bits/8⌉]`, both u8.
///
/// A byte is 0 for a certain 0 and 255 for a certain 1; 128 says nothing, and stands for a bit that was not sent. It counts as
/// `⌊15·byte/256⌋` of 14 steps. Of two paths that are equally likely the one through the lower state is taken, from the end on.
#[derive(Clone, Debug)]
pub struct Viterbi {
    /// The code.
    pub code: Convolutional,
    /// The coded bits.
    pub input: Tensor,
    /// Bits of each frame.
    pub bits: usize,
    /// How each frame ends.
    pub ending: Ending,
}

/// Coded bits of a frame that are sent.
fn coded_bits(code: Convolutional, bits: usize, ending: Ending) -> usize {
    let bits = bits.min(FRAME_BITS_MAX);
    code.puncture.sent(match ending {
        Ending::Terminated => 2 * (bits + TAIL_BITS),
        Ending::Open | Ending::TailBiting => 2 * bits,
    })
}

impl ConvolutionalEncode {
    /// Encodes frames of so many bits, terminated, with the default code.
    pub fn new(input: &Tensor, bits: usize) -> ConvolutionalEncode {
        let (code, ending) = (Convolutional::default(), Ending::Terminated);
        ConvolutionalEncode { code, input: input.clone(), bits, ending }
    }

    /// With another code.
    pub fn code(mut self, code: Convolutional) -> ConvolutionalEncode {
        self.code = code;
        self
    }

    /// With another ending.
    pub fn ending(mut self, ending: Ending) -> ConvolutionalEncode {
        self.ending = ending;
        self
    }

    /// Coded bits of a frame that are sent.
    pub fn coded_bits(&self) -> usize {
        coded_bits(self.code, self.bits, self.ending)
    }

    /// The output's shape.
    pub fn output_shape(&self) -> Result<Shape> {
        let last = check_rows(&self.input, self.bits.div_ceil(8), "convolutional_encode: input")?;
        self.input.shape().with_dim(last, self.coded_bits().div_ceil(8))
    }
}

impl Viterbi {
    /// Decodes terminated frames of so many bits, with the default code.
    pub fn new(input: &Tensor, bits: usize) -> Viterbi {
        Viterbi { code: Convolutional::default(), input: input.clone(), bits, ending: Ending::Terminated }
    }

    /// With another code.
    pub fn code(mut self, code: Convolutional) -> Viterbi {
        self.code = code;
        self
    }

    /// With another ending.
    pub fn ending(mut self, ending: Ending) -> Viterbi {
        self.ending = ending;
        self
    }

    /// Coded bits of a frame that are sent.
    pub fn coded_bits(&self) -> usize {
        coded_bits(self.code, self.bits, self.ending)
    }

    /// The output's shape.
    pub fn output_shape(&self) -> Result<Shape> {
        let last = check_rows(&self.input, self.coded_bits(), "viterbi: input")?;
        self.input.shape().with_dim(last, self.bits.div_ceil(8))
    }
}

impl Describe for ConvolutionalEncode {
    fn name(&self) -> &'static str {
        "convolutional_encode"
    }

    fn validate(&self) -> Result<()> {
        self.code.check(self.bits, self.ending)?;
        self.output_shape().map(drop)
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.input).into());
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.input).into());
    }
}

impl Describe for Viterbi {
    fn name(&self) -> &'static str {
        "viterbi"
    }

    fn validate(&self) -> Result<()> {
        self.code.check(self.bits, self.ending)?;
        self.output_shape().map(drop)
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.input).into());
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.input).into());
    }
}
