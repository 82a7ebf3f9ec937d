//! Interleave and Scramble: reordered bits and symbols, and bits that look like noise.

use std::sync::Arc;

use super::checks::{line_len, of_type};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::tensor::Tensor;

/// The most elements of an interleaver.
pub const INTERLEAVED_MAX: usize = 1 << 24;

/// A reordering of a frame's elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Interleaver {
    /// The elements are written into a table row by row and read column by column.
    Block {
        /// Rows of the table.
        rows: usize,
        /// Columns of the table.
        columns: usize,
    },
    /// A custom order: the source index of each element. Made by [`Interleaver::custom`].
    Custom(Arc<[u32]>),
}

impl Interleaver {
    /// Makes a custom order, which contains every number below its length once.
    pub fn custom(order: &[u32]) -> Result<Interleaver> {
        let interleaver = Interleaver::Custom(order.into());
        interleaver.check()?;
        Ok(interleaver)
    }

    /// Number of elements in a frame.
    pub fn frame(&self) -> usize {
        match self {
            Interleaver::Block { rows, columns } => rows.saturating_mul(*columns),
            Interleaver::Custom(order) => order.len(),
        }
    }

    /// The source index of the element at index `place`.
    pub fn source(&self, place: usize) -> usize {
        match self {
            Interleaver::Block { rows, columns } => place % rows * columns + place / rows,
            Interleaver::Custom(order) => order[place] as usize,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        let len = self.frame();
        if len == 0 || len > INTERLEAVED_MAX {
            return Err(Error::invalid("interleaver: elements", format!("1 to {INTERLEAVED_MAX}"), len));
        }
        let Interleaver::Custom(order) = self else { return Ok(()) };
        let mut seen = vec![false; len];
        for place in order.iter() {
            match seen.get_mut(*place as usize) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err(Error::invalid("interleaver: order", format!("each number below {len} once"), place)),
            }
        }
        Ok(())
    }
}

/// Reorders the elements of frames along the last axis, for every element type. A line consists of
/// whole frames. [`Interleave::inverse`] undoes the order.
#[derive(Clone, Debug)]
pub struct Interleave {
    /// The order.
    pub interleaver: Interleaver,
    /// The frames.
    pub input: Tensor,
    /// Whether the reordering is undone.
    pub inverse: bool,
}

impl Interleave {
    /// Reorders frames.
    pub fn new(interleaver: Interleaver, input: &Tensor) -> Interleave {
        Interleave { interleaver, input: input.clone(), inverse: false }
    }

    /// Undoes this order.
    pub fn inverse(interleaver: Interleaver, input: &Tensor) -> Interleave {
        Interleave { inverse: true, ..Interleave::new(interleaver, input) }
    }
}

/// A shift register that makes bits look like noise. Bit `k - 1` of a polynomial stands for `xᵏ`.
/// The register's newest bit is its lowest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scrambler {
    /// The register runs independently of the data from its seed, and its feedback is added to the
    /// bits. Scrambling twice gives the original bits.
    Additive {
        /// The feedback bits of the register.
        polynomial: u64,
        /// The initial register.
        seed: u64,
    },
    /// The register holds the scrambled bits, so that a receiver synchronises itself.
    SelfSynchronizing {
        /// The register bits that are added.
        polynomial: u64,
        /// The initial register.
        seed: u64,
    },
}

impl Scrambler {
    /// The scrambler of Wi-Fi, `x⁷ + x⁴ + 1`, with this seed of seven bits.
    pub const fn wifi(seed: u64) -> Scrambler {
        Scrambler::Additive { polynomial: 0b100_1000, seed }
    }

    /// The scrambler of DVB, `x¹⁵ + x¹⁴ + 1`, with its seed.
    pub const DVB: Scrambler = Scrambler::Additive { polynomial: 0b110_0000_0000_0000, seed: 0b000_0000_1010_1001 };

    /// The scrambler of ITU-T V.34 callers, `x²³ + x¹⁸ + 1`, which synchronises itself.
    pub const V34: Scrambler = Scrambler::SelfSynchronizing { polynomial: 1 << 22 | 1 << 17, seed: 0 };

    /// The polynomial and the seed.
    pub const fn register(self) -> (u64, u64) {
        match self {
            Scrambler::Additive { polynomial, seed } | Scrambler::SelfSynchronizing { polynomial, seed } => {
                (polynomial, seed)
            }
        }
    }

    pub(super) fn check(self) -> Result<()> {
        let (polynomial, seed) = self.register();
        if polynomial == 0 {
            return Err(Error::invalid("scrambler: polynomial", "at least one bit", "0"));
        }
        if matches!(self, Scrambler::Additive { .. }) && seed == 0 {
            return Err(Error::invalid("scrambler: seed of a register that runs by itself", "at least one bit", "0"));
        }
        Ok(())
    }
}

/// Makes bits look like noise, line by line along the last axis. Each line begins with the seed.
/// Bits are packed in bytes (u8), the first bit highest.
#[derive(Clone, Debug)]
pub struct Scramble {
    /// The register.
    pub scrambler: Scrambler,
    /// The bits.
    pub input: Tensor,
    /// Whether scrambling is undone.
    pub inverse: bool,
}

impl Scramble {
    /// Scrambles bits.
    pub fn new(scrambler: Scrambler, input: &Tensor) -> Scramble {
        Scramble { scrambler, input: input.clone(), inverse: false }
    }

    /// Undoes scrambling.
    pub fn inverse(scrambler: Scrambler, input: &Tensor) -> Scramble {
        Scramble { inverse: true, ..Scramble::new(scrambler, input) }
    }
}

impl Describe for Interleave {
    fn name(&self) -> &'static str {
        "interleave"
    }

    fn validate(&self) -> Result<()> {
        self.interleaver.check()?;
        let (len, frame) = (line_len(&self.input, "interleave: input")?, self.interleaver.frame());
        match len.is_multiple_of(frame) {
            true => Ok(()),
            false => Err(Error::invalid("interleave: elements of a line", format!("a multiple of {frame}"), len)),
        }
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.input.dtype(), *self.input.shape()))
    }
}

impl Describe for Scramble {
    fn name(&self) -> &'static str {
        "scramble"
    }

    fn validate(&self) -> Result<()> {
        self.scrambler.check()?;
        of_type(&self.input, DType::U8, "scramble: input")?;
        line_len(&self.input, "scramble: input").map(drop)
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(DType::U8, *self.input.shape()))
    }
}
