//! ErasureEncode and ErasureRebuild: an erasure code over shards.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The most shards of one code.
pub const SHARDS_MAX: usize = 256;

/// Computes parity shards: from `[data, bytes]` to `[parity, bytes]`, all u8. Any `data` of all
/// shards suffice to rebuild the others.
///
/// The code uses a Cauchy matrix over the field of `0x11d`: parity shard `i` is
/// `Σ data[j] / ((data + i) xor j)`.
#[derive(Clone, Debug)]
pub struct ErasureEncode {
    /// The data shards.
    pub input: Tensor,
    /// Number of parity shards.
    pub parity: usize,
}

/// Rebuilds lost shards: from `[data + parity, bytes]` to `[missing, bytes]`. The contents of
/// missing shards in the input are ignored.
#[derive(Clone, Debug)]
pub struct ErasureRebuild {
    /// All shards in order, data first.
    pub input: Tensor,
    /// Number of data shards.
    pub data: usize,
    /// The indices of the missing shards, each once, at most as many as there are parity shards.
    pub missing: Vec<usize>,
}

impl ErasureEncode {
    /// Computes `parity` parity shards.
    pub fn new(input: &Tensor, parity: usize) -> ErasureEncode {
        ErasureEncode { input: input.clone(), parity }
    }

    /// The output's shape.
    pub fn output_shape(&self) -> Result<Shape> {
        check_shards(&self.input, "erasure_encode: input")?;
        self.input.shape().with_dim(0, self.parity)
    }
}

impl ErasureRebuild {
    /// Rebuilds the missing shards of a code with `data` data shards.
    pub fn new(input: &Tensor, data: usize, missing: impl Into<Vec<usize>>) -> ErasureRebuild {
        ErasureRebuild { input: input.clone(), data, missing: missing.into() }
    }

    /// The output's shape.
    pub fn output_shape(&self) -> Result<Shape> {
        check_shards(&self.input, "erasure_rebuild: input")?;
        self.input.shape().with_dim(0, self.missing.len())
    }
}

fn check_shards(input: &Tensor, what: &'static str) -> Result<()> {
    if input.dtype() != DType::U8 {
        return Err(Error::DTypeMismatch { what, expected: DType::U8, got: input.dtype() });
    }
    match input.shape().rank() {
        2 => Ok(()),
        got => Err(Error::RankMismatch { what, expected: "2".into(), got }),
    }
}

impl Describe for ErasureEncode {
    fn name(&self) -> &'static str {
        "erasure_encode"
    }

    fn validate(&self) -> Result<()> {
        self.output_shape()?;
        let data = self.input.shape()[0];
        if data == 0 || data.saturating_add(self.parity) > SHARDS_MAX {
            let expected = format!("data of at least 1, {SHARDS_MAX} in all at most");
            return Err(Error::invalid("erasure_encode: shards", expected, format!("{data} + {}", self.parity)));
        }
        Ok(())
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(DType::U8, self.output_shape()?))
    }

    fn work(&self) -> u64 {
        (self.input.elements() as u64).saturating_mul(self.parity.max(1) as u64)
    }
}

impl Describe for ErasureRebuild {
    fn name(&self) -> &'static str {
        "erasure_rebuild"
    }

    fn validate(&self) -> Result<()> {
        self.output_shape()?;
        let total = self.input.shape()[0];
        if self.data == 0 || self.data > total || total > SHARDS_MAX {
            let expected = format!("data of at least 1 and at most all, {SHARDS_MAX} in all at most");
            return Err(Error::invalid("erasure_rebuild: shards", expected, format!("{} of {total}", self.data)));
        }
        if let Some(got) = self.missing.iter().find(|shard| **shard >= total) {
            return Err(Error::OutOfBounds { what: "erasure_rebuild: missing shard", limit: total - 1, got: *got });
        }
        let mut distinct = self.missing.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() != self.missing.len() || distinct.len() > total - self.data {
            let expected = format!("at most {}, each once", total - self.data);
            return Err(Error::invalid("erasure_rebuild: missing shards", expected, format!("{:?}", self.missing)));
        }
        Ok(())
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(DType::U8, self.output_shape()?))
    }

    fn work(&self) -> u64 {
        (self.input.elements() as u64).saturating_mul(self.missing.len().max(1) as u64)
    }
}
