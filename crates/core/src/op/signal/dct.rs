//! Dct: cosine transforms of real lines.

use super::checks::{line_len, real_only};
use super::fft::transform_work;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, CostClass, Describe};
use crate::tensor::Tensor;

/// The kind of cosine transform, with the number that SciPy's `dct` uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DctKind {
    /// `x[0] + (-1)ᵏ·x[n-1] + 2·Σ x[j]·cos(π·j·k/(n-1))`. Lines must have at least two samples.
    One,
    /// `2·Σ x[j]·cos(π·k·(2j+1)/2n)`.
    Two,
    /// `x[0] + 2·Σ x[j]·cos(π·j·(2k+1)/2n)`: the inverse of [`DctKind::Two`], times `2n`.
    Three,
    /// `2·Σ x[j]·cos(π·(2k+1)·(2j+1)/4n)`.
    Four,
}

/// The cosine transform of lines of f32 along the last axis. The output has the input's shape.
///
/// With [`Dct::orthonormal`] the transform is orthogonal: kinds two and three are inverse to each
/// other, and kinds one and four to themselves. NaN, infinity and rounding are as for
/// [`super::Fft`].
#[derive(Clone, Debug)]
pub struct Dct {
    /// The signals.
    pub input: Tensor,
    /// The kind of transform.
    pub kind: DctKind,
    /// Whether the transform is orthonormal.
    pub orthonormal: bool,
}

impl Dct {
    /// The transform of this kind.
    pub fn new(kind: DctKind, input: &Tensor) -> Dct {
        Dct { input: input.clone(), kind, orthonormal: false }
    }

    /// Scales the transform to be orthonormal.
    pub fn orthonormal(mut self) -> Dct {
        self.orthonormal = true;
        self
    }
}

impl Describe for Dct {
    fn name(&self) -> &'static str {
        "dct"
    }

    fn validate(&self) -> Result<()> {
        real_only(&self.input, "dct: input")?;
        match (self.kind, line_len(&self.input, "dct: input")?) {
            (DctKind::One, 1) => Err(Error::invalid("dct: samples of a line of the first kind", "0, or 2 and more", 1)),
            _ => Ok(()),
        }
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(DType::F32, *self.input.shape()))
    }

    fn work(&self) -> u64 {
        transform_work(&self.input, self.input.shape().rank().saturating_sub(1))
    }

    fn cost_class(&self) -> CostClass {
        CostClass::numbered(self.kind as u64)
    }
}
