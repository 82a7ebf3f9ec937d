//! ErasureEncode and ErasureRebuild: shards of which any may be lost.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::Describe;
use crate::part::{PartMut, PartRef};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The most shards of one code.
pub const SHARDS_MAX: usize = 256;

/// Makes parity of shards: from `[data, bytes]` to `[parity, bytes]`, all u8. Any `data` of all of them give the others back.
///
/// The code is that of a Cauchy matrix over the field of `0x11d`: shard `i` of the parity is `Σ data[j] / ((data + i) xor j)`.
#[derive(Clone, Debug)]
pub struct ErasureEncode {
    /// The shards of data.
    pub input: Tensor,
    /// How many shards of parity.
    pub parity: usize,
}

/// Makes lost shards again: from `[data + parity, bytes]` to `[missing, bytes]`. What the input has in the place of a missing shard does not count.
#[derive(Clone, Debug)]
pub struct ErasureRebuild {
    /// Every shard in its place, data first.
    pub input: Tensor,
    /// How many of them are data.
    pub data: usize,
    /// The numbers of those that are missing, each once, at most as many as there is parity.
    pub missing: Vec<usize>,
}

impl ErasureEncode {
    /// Makes so many shards of parity.
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
    /// Makes the missing shards again, of which `data` in all are data.
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

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.input).into());
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.input).into());
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

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.input).into());
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.input).into());
    }

    fn work(&self) -> u64 {
        (self.input.elements() as u64).saturating_mul(self.missing.len().max(1) as u64)
    }
}
