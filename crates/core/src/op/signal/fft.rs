//! Fft: the discrete Fourier transform of lines.

use super::axis::check_axis;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The discrete Fourier transform along the last axis, or along the axis of [`Fft::axis`]:
/// `X[k] = Σ x[j] · exp(-2πi·j·k/n)`, for lines of any length, as numpy's `fft` and `rfft`. The
/// result is not scaled; [`super::Ifft`] divides by `n`.
///
/// Complex lines (c64) give complex lines of the same length. Real lines (f32) give half of their
/// spectrum, `n/2 + 1` complex numbers. The other half is the mirrored conjugate. Lines of length
/// zero give lines of length zero.
///
/// In f64 a complex number is a pair along one more axis, the last, of length 2. Real lines (f64)
/// give `[…, n/2 + 1, 2]`. Complex lines, which [`Fft::of_pairs`] takes, give `[…, n, 2]`.
/// [`Fft::axis`] does not count the axis of pairs.
///
/// Sums are kept in f32, those of f64 in f64, in an order that the device chooses. A line that
/// contains NaN or infinity gives a line that contains NaN or infinity. The affected elements
/// depend on the device. Other lines are not affected.
#[derive(Clone, Debug)]
pub struct Fft {
    /// The signals, of at least one dimension: c64, f32 or f64.
    pub input: Tensor,
    /// The axis of the lines.
    pub axis: usize,
    /// Whether the last axis of f64 holds the real and imaginary parts of complex numbers.
    pub pairs: bool,
}

/// Number of elements of the half spectrum of `len` real numbers.
pub const fn half_spectrum_len(len: usize) -> usize {
    if len == 0 { 0 } else { len / 2 + 1 }
}

/// Cost of a fast transform along an axis: the elements times the logarithm of the length.
pub(super) fn transform_work(input: &Tensor, axis: usize) -> u64 {
    let len = input.shape().get(axis).copied().unwrap_or(0);
    (input.elements() as u64).saturating_mul(u64::from(len.max(2).ilog2()))
}

impl Fft {
    /// The transform along the last axis.
    pub fn new(input: &Tensor) -> Fft {
        Fft { input: input.clone(), axis: input.shape().rank().saturating_sub(1), pairs: false }
    }

    /// The transform of complex numbers in f64, `[…, n, 2]`, along the last axis but one.
    pub fn of_pairs(input: &Tensor) -> Fft {
        Fft { input: input.clone(), axis: input.shape().rank().saturating_sub(2), pairs: true }
    }

    /// Transforms along this axis instead of the last.
    pub fn axis(mut self, axis: usize) -> Fft {
        self.axis = axis;
        self
    }

    /// The output's shape: the input's, with the axis cut to half the spectrum if the input is
    /// real, and with an axis of pairs for f64.
    pub fn output_shape(&self) -> Result<Shape> {
        if self.pairs {
            check_pairs(&self.input, self.axis, ["fft: pairs", "fft: axis"])?;
            return Ok(*self.input.shape());
        }
        check_axis(self.input.shape(), self.axis, "fft: input", "fft: axis")?;
        let halved = || self.input.shape().with_dim(self.axis, half_spectrum_len(self.input.shape()[self.axis]));
        match self.input.dtype() {
            DType::F32 => halved(),
            DType::F64 => halved()?.joined(&[2]),
            _ => Ok(*self.input.shape()),
        }
    }

    /// The output's element type.
    pub fn output_dtype(&self) -> DType {
        if self.input.dtype() == DType::F64 { DType::F64 } else { DType::Complex64 }
    }
}

/// Checks complex numbers in f64 and the axis of their transform. `what` names both.
pub(super) fn check_pairs(input: &Tensor, axis: usize, what: [&'static str; 2]) -> Result<()> {
    let dims = input.shape();
    if input.dtype() != DType::F64 {
        return Err(Error::DTypeMismatch { what: what[0], expected: DType::F64, got: input.dtype() });
    }
    if dims.rank() < 2 {
        return Err(Error::RankMismatch { what: what[0], expected: "at least 2".into(), got: dims.rank() });
    }
    if dims[dims.rank() - 1] != 2 {
        let expected = dims.with_dim(dims.rank() - 1, 2)?.to_vec();
        return Err(Error::ShapeMismatch { what: what[0], expected, got: dims.to_vec() });
    }
    match axis < dims.rank() - 1 {
        true => Ok(()),
        false => Err(Error::OutOfBounds { what: what[1], limit: dims.rank() - 2, got: axis }),
    }
}

impl Describe for Fft {
    fn name(&self) -> &'static str {
        "fft"
    }

    fn validate(&self) -> Result<()> {
        if !matches!(self.input.dtype(), DType::Complex64 | DType::F32 | DType::F64) {
            return Err(Error::DTypeUnsupported { what: "fft", expected: "c64, f32 or f64", got: self.input.dtype() });
        }
        self.output_shape().map(drop)
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
        let whole = Tensor::zeros(DType::I32, [2, 3]).unwrap();
        assert!(matches!(Fft::new(&whole).validate(), Err(Error::DTypeUnsupported { .. })));
    }

    #[test]
    fn complex_numbers_in_f64_are_pairs() {
        let (real, pairs) = (Tensor::zeros(DType::F64, [3, 8]).unwrap(), Tensor::zeros(DType::F64, [3, 8, 2]).unwrap());
        assert_eq!(Fft::new(&real).output_shape().unwrap().to_vec(), [3, 5, 2]);
        assert_eq!(Fft::new(&real).axis(0).output_shape().unwrap().to_vec(), [2, 8, 2]);
        let op = Fft::of_pairs(&pairs);
        assert_eq!((op.axis, op.output_shape().unwrap().to_vec(), op.output_dtype()), (1, vec![3, 8, 2], DType::F64));
        assert!(matches!(Fft::of_pairs(&pairs).axis(2).validate(), Err(Error::OutOfBounds { limit: 1, got: 2, .. })));
        assert!(matches!(Fft::of_pairs(&real).validate(), Err(Error::ShapeMismatch { .. })));
        let narrow = Tensor::zeros(DType::F32, [3, 2]).unwrap();
        assert!(matches!(Fft::of_pairs(&narrow).validate(), Err(Error::DTypeMismatch { .. })));
    }
}
