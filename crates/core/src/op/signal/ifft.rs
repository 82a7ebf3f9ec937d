//! Ifft: the inverse Fourier transform, from spectra to signals.

use super::axis::check_axis;
use super::fft::{check_pairs, half_spectrum_len, transform_work};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The inverse of [`super::Fft`] along the last axis, or along the axis of [`Ifft::axis`]:
/// `x[j] = 1/n · Σ X[k] · exp(2πi·j·k/n)`, as numpy's `ifft` and, with [`Ifft::real`], `irfft`.
///
/// Complex lines (c64) give complex lines of the same length. With [`Ifft::real`] the input is half
/// of the spectrum of the real output (f32). The imaginary parts of its first element, and of its
/// last for an even length, are taken as zero. NaN, infinity, rounding and empty lines are as for
/// [`super::Fft`]. So are complex numbers in f64: pairs along the last axis, which [`Ifft::real`]
/// removes from the output.
#[derive(Clone, Debug)]
pub struct Ifft {
    /// The spectra: c64 of at least one dimension, or f64 of at least two.
    pub input: Tensor,
    /// The axis of the lines.
    pub axis: usize,
    /// The length of the real signals. `None` if the output is complex.
    pub real_len: Option<usize>,
}

impl Ifft {
    /// The inverse transform along the last axis, from complex to complex numbers.
    pub fn new(input: &Tensor) -> Ifft {
        let behind = if input.dtype() == DType::F64 { 2 } else { 1 };
        Ifft { input: input.clone(), axis: input.shape().rank().saturating_sub(behind), real_len: None }
    }

    /// Transforms along this axis instead of the last.
    pub fn axis(mut self, axis: usize) -> Ifft {
        self.axis = axis;
        self
    }

    /// Takes the input as half the spectrum of `len` real numbers: `len/2 + 1` elements, which do
    /// not determine `len`.
    pub fn real(mut self, len: usize) -> Ifft {
        self.real_len = Some(len);
        self
    }

    /// The output's shape: the input's, with the length of the real signals along the axis if the
    /// output is real.
    pub fn output_shape(&self) -> Result<Shape> {
        let dims = self.input.shape();
        let signals = match self.input.dtype() {
            DType::F64 => {
                check_pairs(&self.input, self.axis, ["ifft: pairs", "ifft: axis"])?;
                Shape::new(&dims[..dims.rank() - 1])?
            }
            _ => {
                check_axis(dims, self.axis, "ifft: input", "ifft: axis")?;
                *dims
            }
        };
        match self.real_len {
            Some(len) => signals.with_dim(self.axis, len),
            None => Ok(*dims),
        }
    }

    /// The output's element type.
    pub fn output_dtype(&self) -> DType {
        match (self.input.dtype(), self.real_len) {
            (DType::F64, _) => DType::F64,
            (_, Some(_)) => DType::F32,
            (_, None) => DType::Complex64,
        }
    }
}

impl Describe for Ifft {
    fn name(&self) -> &'static str {
        "ifft"
    }

    fn validate(&self) -> Result<()> {
        if !matches!(self.input.dtype(), DType::Complex64 | DType::F64) {
            return Err(Error::DTypeUnsupported { what: "ifft", expected: "c64 or f64", got: self.input.dtype() });
        }
        self.output_shape()?;
        match self.real_len.map(half_spectrum_len) {
            Some(expected) if expected != self.input.shape()[self.axis] => {
                let expected = self.input.shape().with_dim(self.axis, expected)?.to_vec();
                Err(Error::ShapeMismatch { what: "ifft: half a spectrum", expected, got: self.input.shape().to_vec() })
            }
            _ => Ok(()),
        }
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.output_dtype(), self.output_shape()?))
    }

    fn work(&self) -> u64 {
        transform_work(&self.input, self.axis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_of_real_signals_is_checked() {
        let half = Tensor::zeros(DType::Complex64, [2, 5]).unwrap();
        for len in [8, 9] {
            let op = Ifft::new(&half).real(len);
            assert!(op.validate().is_ok());
            assert_eq!((op.output_shape().unwrap().to_vec(), op.output_dtype()), (vec![2, len], DType::F32));
        }
        for len in [0, 7, 10, usize::MAX] {
            assert!(Ifft::new(&half).real(len).validate().is_err(), "{len}");
        }
        let empty = Tensor::zeros(DType::Complex64, [2, 0]).unwrap();
        assert!(Ifft::new(&empty).real(0).validate().is_ok());
        assert!(Ifft::new(&empty).real(1).validate().is_err());
        let wide = Ifft::new(&Tensor::zeros(DType::F64, [3, 5, 2]).unwrap());
        assert_eq!((wide.axis, wide.output_shape().unwrap().to_vec()), (1, vec![3, 5, 2]));
        let real = wide.clone().real(9);
        assert_eq!((real.output_shape().unwrap().to_vec(), real.output_dtype()), (vec![3, 9], DType::F64));
        assert!(real.validate().is_ok());
        assert!(wide.real(7).validate().is_err());
    }

    #[test]
    fn axes_and_types_are_checked() {
        let input = Tensor::zeros(DType::Complex64, [2, 3]).unwrap();
        assert!(Ifft::new(&input).axis(0).validate().is_ok());
        assert!(matches!(Ifft::new(&input).axis(2).validate(), Err(Error::OutOfBounds { limit: 1, got: 2, .. })));
        let real = Tensor::zeros(DType::F32, [2, 3]).unwrap();
        assert!(matches!(Ifft::new(&real).validate(), Err(Error::DTypeUnsupported { .. })));
    }
}
