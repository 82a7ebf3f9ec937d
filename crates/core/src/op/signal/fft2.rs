//! Fft2: Fourier transforms of planes.

use super::checks::real_or_complex;
use super::fft::half_spectrum_len;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The transform of planes, the last two axes, as numpy's `fft2`, `rfft2` and `ifft2`:
/// [`super::Fft`] along the last axis and then along the last but one. Real planes (f32) give half
/// of the spectrum along the last axis. The inverse maps complex planes to complex planes, and
/// divides by the number of elements of a plane. NaN, infinity, rounding and empty planes are as
/// for [`super::Fft`].
#[derive(Clone, Debug)]
pub struct Fft2 {
    /// The planes, of at least two dimensions: c64 or f32.
    pub input: Tensor,
    /// Whether the transform is the inverse, from spectra to planes.
    pub inverse: bool,
}

impl Fft2 {
    /// The transform from planes to spectra.
    pub fn new(input: &Tensor) -> Fft2 {
        Fft2 { input: input.clone(), inverse: false }
    }

    /// The inverse transform from spectra to planes.
    pub fn inverse(input: &Tensor) -> Fft2 {
        Fft2 { input: input.clone(), inverse: true }
    }

    /// The output's shape.
    pub fn output_shape(&self) -> Result<Shape> {
        let dims = self.input.shape();
        if dims.rank() < 2 {
            return Err(Error::RankMismatch { what: "fft2: input", expected: "at least 2".into(), got: dims.rank() });
        }
        let last = dims.rank() - 1;
        match self.input.dtype() {
            DType::F32 => dims.with_dim(last, half_spectrum_len(dims[last])),
            _ => Ok(*dims),
        }
    }
}

impl Describe for Fft2 {
    fn name(&self) -> &'static str {
        if self.inverse { "ifft2" } else { "fft2" }
    }

    fn validate(&self) -> Result<()> {
        real_or_complex(&self.input, "fft2: input")?;
        if self.inverse && self.input.dtype() != DType::Complex64 {
            return Err(Error::DTypeUnsupported { what: "fft2: spectra", expected: "c64", got: self.input.dtype() });
        }
        self.output_shape().map(drop)
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(DType::Complex64, self.output_shape()?))
    }

    fn work(&self) -> u64 {
        let plane: usize = self.input.shape().iter().rev().take(2).product();
        (self.input.elements() as u64).saturating_mul(u64::from(plane.max(2).ilog2()))
    }
}
