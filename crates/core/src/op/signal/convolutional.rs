//! ConvolutionalEncode and Viterbi: the code of rate ½ with 64 states.

use super::reed_solomon::{check_row_len, check_rows};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

mod lossless;

/// Number of bits in the register's memory.
const TAIL_BITS: usize = 6;
/// Number of bits on which a coded bit depends.
const CONSTRAINT_BITS: usize = TAIL_BITS + 1;
/// The most bits of a tail-biting frame whose most likely path is searched for exactly: 16
/// constraint lengths.
pub const EXACT_TAIL_BITS_MAX: usize = 16 * CONSTRAINT_BITS;
/// Steps of the scale that one unit of a log-likelihood spans.
pub const LOGARITHM_STEPS: usize = 64;
/// The largest log-likelihood. Larger values are clamped.
pub const LOGARITHM_MAX: usize = 128;
/// The most bits of a frame.
pub const FRAME_BITS_MAX: usize = 1 << 16;

/// A code, given by its two polynomials. Each coded bit is the parity of the selected bits of the
/// seven-bit register. The newest bit is the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Convolutional {
    /// The polynomials of the first and the second coded bit.
    pub polynomials: [u8; 2],
    /// The pattern of transmitted coded bits.
    pub puncture: Puncture,
}

/// A puncturing pattern: the coded bits that are transmitted, repeated periodically. Fewer bits
/// give a higher rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Puncture {
    /// A bit for each coded bit of a period, the first in the lowest bit.
    kept: u32,
    period: u8,
}

impl Puncture {
    /// All bits are transmitted: rate ½.
    pub const NONE: Puncture = Puncture { kept: 1, period: 1 };
    /// Rate ⅔, as in DVB and the successors of Wi-Fi.
    pub const TWO_THIRDS: Puncture = Puncture { kept: 0b1011, period: 4 };
    /// Rate ¾.
    pub const THREE_QUARTERS: Puncture = Puncture { kept: 0b01_1011, period: 6 };
    /// Rate ⅚.
    pub const FIVE_SIXTHS: Puncture = Puncture { kept: 0b01_1001_1011, period: 10 };
    /// Rate ⅞.
    pub const SEVEN_EIGHTHS: Puncture = Puncture { kept: 0b01_1001_1010_1011, period: 14 };

    /// Makes a custom pattern of at most 32 coded bits, of which at least one is transmitted.
    pub fn new(pattern: &[bool]) -> Result<Puncture> {
        if pattern.is_empty() || pattern.len() > 32 || !pattern.contains(&true) {
            let got = format!("{} bits, {} sent", pattern.len(), pattern.iter().filter(|kept| **kept).count());
            return Err(Error::invalid("puncture", "1 to 32 coded bits, of which at least one is sent", got));
        }
        let kept = pattern.iter().enumerate().map(|(at, kept)| u32::from(*kept) << at).sum();
        Ok(Puncture { kept, period: pattern.len() as u8 })
    }

    /// Number of coded bits after which the pattern repeats.
    pub const fn period(self) -> usize {
        self.period as usize
    }

    /// Whether the coded bit with this index is transmitted.
    pub const fn is_sent(self, at: usize) -> bool {
        self.kept >> (at % self.period as usize) & 1 == 1
    }

    /// Number of transmitted bits among the first `coded` coded bits.
    pub const fn sent(self, coded: usize) -> usize {
        let (period, rest) = (self.period as usize, coded % self.period as usize);
        let of_rest = self.kept & ((1_u64 << rest) - 1) as u32;
        coded / period * self.kept.count_ones() as usize + of_rest.count_ones() as usize
    }
}

impl Default for Convolutional {
    /// 171 and 133 in octal, as in DVB. CCSDS inverts the second coded bit. Wi-Fi transmits 133
    /// first.
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
        // The decoder of a long tail-biting frame goes through the frame three times.
        let limit = if ending == Ending::TailBiting { FRAME_BITS_MAX / 3 } else { FRAME_BITS_MAX };
        match bits {
            1..TAIL_BITS if ending == Ending::TailBiting => {
                Err(Error::invalid("convolutional: bits of a frame that bites its tail", "0, or 6 and more", bits))
            }
            got if got > limit => Err(Error::OutOfBounds { what: "convolutional: bits of a frame", limit, got }),
            _ if !lossless::is_lossless(self, bits, ending) => {
                let expected = "coded bits that differ for all frames; send more of them, or choose another length";
                let got = format!("{self:?} of {bits} bits, {ending:?}, which loses bits");
                Err(Error::invalid("convolutional: code", expected, got))
            }
            _ if ending == Ending::TailBiting && bits > EXACT_TAIL_BITS_MAX && !lossless::forgets(self) => {
                let expected = format!("frames of at most {EXACT_TAIL_BITS_MAX} bits, or another code");
                let got = format!("{bits} bits of {self:?}, whose paths may never meet");
                Err(Error::invalid("convolutional: tail-biting code", expected, got))
            }
            _ => Ok(()),
        }
    }

    /// Checks a code for an endless stream.
    pub(super) fn check_stream(self) -> Result<()> {
        self.check(0, Ending::Open)?;
        match lossless::is_lossless_stream(self) {
            true => Ok(()),
            false => {
                let expected = "coded bits that differ for all streams; send more of them";
                Err(Error::invalid("convolutional: code", expected, format!("{self:?}, which loses bits")))
            }
        }
    }
}

/// The ending of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Ending {
    /// Six zeros bring the register back to its initial state.
    #[default]
    Terminated,
    /// The frame ends with its last bit. The decoder takes the most likely state.
    Open,
    /// The final state is the initial state, which is that of the last six bits. For a frame of at
    /// most [`EXACT_TAIL_BITS_MAX`] bits the decoder finds the most likely of all paths that end in
    /// their initial state; of equally likely paths, the one from the lowest state. For a longer
    /// frame it finds the most likely path through three repetitions of the frame, from any state
    /// to any state, and returns the middle repetition.
    TailBiting,
}

/// Encodes frames of bits, packed in bytes, the first bit highest: from `[…, ⌈bits/8⌉]` to
/// `[…, ⌈coded/8⌉]`, both u8. A terminated frame has `2 · (bits + 6)` coded bits, any other frame
/// `2 · bits`. Punctured bits are left out. The unused bits of the last byte are zero.
///
/// A code that maps two frames to the same coded bits is refused, for its length and ending, here
/// and by [`Viterbi`].
#[derive(Clone, Debug)]
pub struct ConvolutionalEncode {
    /// The code.
    pub code: Convolutional,
    /// The frames.
    pub input: Tensor,
    /// Number of bits in each frame.
    pub bits: usize,
    /// The ending of each frame.
    pub ending: Ending,
}

/// Decodes frames to their most likely bits with the Viterbi algorithm: from `[…, coded]`, a number
/// for each coded bit, to `[…, ⌈bits/8⌉]` of u8.
///
/// - f32: the log-likelihood ratio of 0 over 1, as from [`super::Demodulate`] and as for
///   [`super::LdpcDecode`]. It is quantised in steps of 1/[`LOGARITHM_STEPS`] (half a step is
///   rounded towards 1) up to ±[`LOGARITHM_MAX`]. 0 and NaN carry no information.
/// - u8: 0 for a certain 0 and 255 for a certain 1; 128 carries no information. It is quantised to
///   `⌊15·byte/256⌋` of 14 steps. The sign is the opposite of a log-likelihood ratio's: larger
///   values mean 1.
///
/// The input has no numbers for punctured bits. Of two equally likely paths the decoder takes the
/// one through the lower state, going backwards from the end.
#[derive(Clone, Debug)]
pub struct Viterbi {
    /// The code.
    pub code: Convolutional,
    /// The coded bits.
    pub input: Tensor,
    /// Number of bits in each frame.
    pub bits: usize,
    /// The ending of each frame.
    pub ending: Ending,
}

/// Checks the type of a decoder's soft bits.
pub(super) fn check_soft_bits(got: DType, what: &'static str) -> Result<()> {
    match got {
        DType::U8 | DType::F32 => Ok(()),
        got => Err(Error::DTypeUnsupported { what, expected: "f32 logarithms or u8", got }),
    }
}

/// Number of transmitted coded bits of a frame.
fn coded_bits(code: Convolutional, bits: usize, ending: Ending) -> usize {
    let bits = bits.min(FRAME_BITS_MAX);
    code.puncture.sent(match ending {
        Ending::Terminated => 2 * (bits + TAIL_BITS),
        Ending::Open | Ending::TailBiting => 2 * bits,
    })
}

impl ConvolutionalEncode {
    /// Encodes terminated frames of `bits` bits with the default code.
    pub fn new(input: &Tensor, bits: usize) -> ConvolutionalEncode {
        let (code, ending) = (Convolutional::default(), Ending::Terminated);
        ConvolutionalEncode { code, input: input.clone(), bits, ending }
    }

    /// Sets the code.
    pub fn code(mut self, code: Convolutional) -> ConvolutionalEncode {
        self.code = code;
        self
    }

    /// Sets the ending of the frames.
    pub fn ending(mut self, ending: Ending) -> ConvolutionalEncode {
        self.ending = ending;
        self
    }

    /// Number of transmitted coded bits of a frame.
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
    /// Decodes terminated frames of `bits` bits with the default code.
    pub fn new(input: &Tensor, bits: usize) -> Viterbi {
        Viterbi { code: Convolutional::default(), input: input.clone(), bits, ending: Ending::Terminated }
    }

    /// Sets the code.
    pub fn code(mut self, code: Convolutional) -> Viterbi {
        self.code = code;
        self
    }

    /// Sets the ending of the frames.
    pub fn ending(mut self, ending: Ending) -> Viterbi {
        self.ending = ending;
        self
    }

    /// Number of transmitted coded bits of a frame.
    pub fn coded_bits(&self) -> usize {
        coded_bits(self.code, self.bits, self.ending)
    }

    /// The output's shape.
    pub fn output_shape(&self) -> Result<Shape> {
        let last = check_row_len(&self.input, self.coded_bits(), "viterbi: input")?;
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

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(DType::U8, self.output_shape()?))
    }
}

impl Describe for Viterbi {
    fn name(&self) -> &'static str {
        "viterbi"
    }

    fn validate(&self) -> Result<()> {
        check_soft_bits(self.input.dtype(), "viterbi: input")?;
        self.code.check(self.bits, self.ending)?;
        self.output_shape().map(drop)
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(DType::U8, self.output_shape()?))
    }
}
