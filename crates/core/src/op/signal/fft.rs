//! Fft: the discrete Fourier transform of lines.

use super::axis::check_axis;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::Describe;
use crate::part::{PartMut, PartRef};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The discrete Fourier transform along the last axis, or that of [`Fft::axis`]: `X[k] = Σ x[j] · exp(-2πi·j·k/n)`, for
/// lines of any length, as numpy's `fft` and `rfft`. Nothing is divided; [`super::Ifft`] divides by `n`.
///
/// Complex numbers (c64) give as many. Real numbers (f32) give half of their spectrum, `n/2 + 1` complex numbers: the other
/// half is the mirrored conjugate. Lines of length zero give lines of length zero.
///
/// Sums are kept in f32, in an order that the device chooses. A line that has NaN or infinity in it comes out with NaN or
/// infinity in it; in which elements depends on the device. Other lines are not affected.
#[derive(Clone, Debug)]
pub struct Fft {
    /// The signals, of at least one dimension: c64 or f32.
    pub input: Tensor,
    /// The axis along which lines are transformed.
    pub axis: usize,
}

/// How many elements the half spectrum of `len` real numbers has.
pub const fn half_spectrum_len(len: usize) -> usize {
    if len == 0 { 0 } else { len / 2 + 1 }
}

/// Additions and multiplications of a fast algorithm along an axis, in units of the elements.
pub(super) fn transform_work(input: &Tensor, axis: usize) -> u64 {
    let len = input.shape().get(axis).copied().unwrap_or(0);
    (input.elements() as u64).saturating_mul(u64::from(len.max(2).ilog2()))
}

impl Fft {
    /// The transform along the last axis.
    pub fn new(input: &Tensor) -> Fft {
        Fft { input: input.clone(), axis: input.shape().rank().saturating_sub(1) }
    }

    /// Along this axis instead of the last.
    pub fn axis(mut self, axis: usize) -> Fft {
        self.axis = axis;
        self
    }

    /// The output's shape: the input's, with the axis cut to half the spectrum where the input is real.
    pub fn output_shape(&self) -> Result<Shape> {
        check_axis(self.input.shape(), self.axis, "fft: input", "fft: axis")?;
        match self.input.dtype() {
            DType::F32 => self.input.shape().with_dim(self.axis, half_spectrum_len(self.input.shape()[self.axis])),
            _ => Ok(*self.input.shape()),
        }
    }
}

impl Describe for Fft {
    fn name(&self) -> &'static str {
        "fft"
    }

    fn validate(&self) -> Result<()> {
        if !matches!(self.input.dtype(), DType::Complex64 | DType::F32) {
            return Err(Error::DTypeUnsupported { what: "fft", expected: "c64 or f32", got: self.input.dtype() });
        }
        self.output_shape().map(drop)
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.input).into());
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.input).into());
    }

    fn work(&self) -> u64 {
        transform_work(&self.input, self.axis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_signals_give_half_the_spectrum() {
        let shape = |dtype, dims: &[usize], axis| {
            Fft::new(&Tensor::zeros(dtype, dims).unwrap()).axis(axis).output_shape().unwrap().to_vec()
        };
        assert_eq!(shape(DType::Complex64, &[3, 8], 1), [3, 8]);
        assert_eq!(shape(DType::F32, &[3, 8], 1), [3, 5]);
        assert_eq!(shape(DType::F32, &[3, 8], 0), [2, 8]);
        assert_eq!(shape(DType::F32, &[1], 0), [1]);
        assert_eq!(shape(DType::F32, &[4, 0], 1), [4, 0]);
    }

    #[test]
    fn axes_and_types_are_checked() {
        let input = Tensor::zeros(DType::F32, [2, 3]).unwrap();
        assert!(matches!(Fft::new(&input).axis(2).validate(), Err(Error::OutOfBounds { limit: 1, got: 2, .. })));
        let scalar = Tensor::zeros(DType::F32, []).unwrap();
        assert!(matches!(Fft::new(&scalar).validate(), Err(Error::RankMismatch { .. })));
        let wide = Tensor::zeros(DType::F64, [2, 3]).unwrap();
        assert!(matches!(Fft::new(&wide).validate(), Err(Error::DTypeUnsupported { .. })));
    }
}
