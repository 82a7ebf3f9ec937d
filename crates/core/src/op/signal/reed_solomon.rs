//! RsEncode and RsDecode: Reed–Solomon codes over bytes.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, CostClass, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// A code with words of `data + parity` bytes, at most 255. It corrects up to `parity / 2` wrong
/// bytes, or up to `parity` lost bytes at known positions. The first byte of a word is the
/// coefficient of the highest power, and the parity comes last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReedSolomon {
    /// Number of data bytes in a word.
    pub data: usize,
    /// Number of parity bytes in a word: 1 to 64.
    pub parity: usize,
    /// The polynomial of the field with 256 elements. Its root must generate the field.
    pub polynomial: u16,
    /// The exponent of the generator's first root.
    pub first_root: usize,
    /// The difference between the exponents of successive roots. It has no common divisor with 255.
    pub root_step: usize,
}

impl ReedSolomon {
    /// The common code, as in QR codes: the field of `0x11d`, with roots from α⁰ on.
    pub const fn new(data: usize, parity: usize) -> ReedSolomon {
        ReedSolomon { data, parity, polynomial: 0x11d, first_root: 0, root_step: 1 }
    }

    /// The CCSDS code with 32 bytes of parity, in the conventional basis: 223 bytes of data, or
    /// fewer for a shortened code.
    pub const fn ccsds(data: usize) -> ReedSolomon {
        ReedSolomon { data, parity: 32, polynomial: 0x187, first_root: 112, root_step: 11 }
    }

    /// Number of bytes in a word.
    pub const fn word(&self) -> usize {
        self.data.saturating_add(self.parity)
    }

    /// Checks the numbers, and that the polynomial's root generates the field.
    pub fn check(&self) -> Result<()> {
        if self.data == 0 || self.parity == 0 || self.parity > 64 || self.word() > 255 {
            let expected = "data and parity of at least 1, parity of at most 64, words of at most 255";
            let got = format!("{} and {}", self.data, self.parity);
            return Err(Error::invalid("reed-solomon: bytes of a word", expected, got));
        }
        let divisible = [3, 5, 17].into_iter().any(|prime| self.root_step.is_multiple_of(prime));
        if self.first_root > 254 || self.root_step > 254 || divisible {
            let expected = "a first root and a step below 255, the step without 3, 5 and 17 as divisors";
            let got = format!("{} and {}", self.first_root, self.root_step);
            return Err(Error::invalid("reed-solomon: roots", expected, got));
        }
        if !generates(self.polynomial) {
            let (expected, got) = ("one of degree 8 whose root generates the field", format!("{:#x}", self.polynomial));
            return Err(Error::invalid("reed-solomon: polynomial", expected, got));
        }
        Ok(())
    }
}

/// Whether the powers of the polynomial's root are all 255 nonzero elements.
fn generates(polynomial: u16) -> bool {
    let (mut value, mut order) = (1_u16, 0);
    loop {
        value <<= 1;
        if value & 0x100 != 0 {
            value ^= polynomial;
        }
        order += 1;
        if value == 1 || value == 0 || value > 255 || order > 255 {
            return value == 1 && order == 255;
        }
    }
}

/// Appends parity to each row of data: from `[…, data]` to `[…, data + parity]`, all u8.
#[derive(Clone, Debug)]
pub struct RsEncode {
    /// The code.
    pub code: ReedSolomon,
    /// The data.
    pub input: Tensor,
}

/// Corrects words: from `[…, data + parity]` to the data of each word, `[…, data]`, and the number
/// of wrong bytes in the word, `[…]` as i32.
///
/// A word with more wrong bytes than the code can correct gives -1, and its data as received. A
/// word with very many wrong bytes may be close to another word of the code; no decoder can detect
/// this.
#[derive(Clone, Debug)]
pub struct RsDecode {
    /// The code.
    pub code: ReedSolomon,
    /// The words.
    pub input: Tensor,
    /// The positions in every word that are known to be lost, each once.
    pub erased: Vec<usize>,
}

impl RsEncode {
    /// Encodes each row.
    pub fn new(code: ReedSolomon, input: &Tensor) -> RsEncode {
        RsEncode { code, input: input.clone() }
    }

    /// The output's shape.
    pub fn output_shape(&self) -> Result<Shape> {
        let last = check_rows(&self.input, self.code.data, "rs_encode: input")?;
        self.input.shape().with_dim(last, self.code.word())
    }
}

impl RsDecode {
    /// Corrects each word.
    pub fn new(code: ReedSolomon, input: &Tensor) -> RsDecode {
        RsDecode { code, input: input.clone(), erased: Vec::new() }
    }

    /// Sets the positions of every word that are known to be lost.
    pub fn erased(mut self, erased: impl Into<Vec<usize>>) -> RsDecode {
        self.erased = erased.into();
        self
    }

    /// The shapes of the data and of the counts.
    pub fn output_shapes(&self) -> Result<(Shape, Shape)> {
        let last = check_rows(&self.input, self.code.word(), "rs_decode: input")?;
        Ok((self.input.shape().with_dim(last, self.code.data)?, Shape::new(&self.input.shape()[..last])?))
    }
}

/// Checks for rows of `len` bytes, and returns the last axis.
pub(super) fn check_rows(input: &Tensor, len: usize, what: &'static str) -> Result<usize> {
    if input.dtype() != DType::U8 {
        return Err(Error::DTypeMismatch { what, expected: DType::U8, got: input.dtype() });
    }
    check_row_len(input, len, what)
}

/// Checks for rows of `len` elements, and returns the last axis.
pub(super) fn check_row_len(input: &Tensor, len: usize, what: &'static str) -> Result<usize> {
    let Some(last) = input.shape().rank().checked_sub(1) else {
        return Err(Error::RankMismatch { what, expected: "at least 1".into(), got: 0 });
    };
    if input.shape()[last] != len {
        let expected = input.shape().with_dim(last, len)?.to_vec();
        return Err(Error::ShapeMismatch { what, expected, got: input.shape().to_vec() });
    }
    Ok(last)
}

impl Describe for RsEncode {
    fn name(&self) -> &'static str {
        "rs_encode"
    }

    fn validate(&self) -> Result<()> {
        self.code.check()?;
        self.output_shape().map(drop)
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(DType::U8, self.output_shape()?))
    }
}

impl Describe for RsDecode {
    fn name(&self) -> &'static str {
        "rs_decode"
    }

    fn validate(&self) -> Result<()> {
        self.code.check()?;
        if self.erased.len() > self.code.parity {
            let expected = format!("at most {}, as many as bytes of parity", self.code.parity);
            return Err(Error::invalid("rs_decode: erased places", expected, self.erased.len()));
        }
        let mut seen = [false; 255];
        for place in &self.erased {
            match seen.get_mut(*place).filter(|_| *place < self.code.word()) {
                Some(seen) if !*seen => *seen = true,
                Some(_) => return Err(Error::invalid("rs_decode: erased places", "each once", place)),
                None => {
                    let limit = self.code.word() - 1;
                    return Err(Error::OutOfBounds { what: "rs_decode: erased place", limit, got: *place });
                }
            }
        }
        self.output_shapes().map(drop)
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        let (data, counts) = self.output_shapes()?;
        Ok(AnswerTypes::Pair([(DType::U8, data), (DType::I32, counts)]))
    }

    fn cost_class(&self) -> CostClass {
        CostClass::numbered(self.code.parity as u64)
    }
}
