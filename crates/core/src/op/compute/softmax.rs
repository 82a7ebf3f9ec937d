//! Softmax: exponentials that add up to one along an axis, or their logarithms.

use super::axis::check_axis;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// `exp(x) / sum of exp(x)` along the last axis, or along the axis of [`Softmax::axis`]. With
/// [`Softmax::log`], the logarithm of that.
///
/// Defined for f32, f16, bf16 and f64; 16-bit floats are computed in f32. The largest element is
/// subtracted first, so that nothing overflows. A line that contains NaN or +∞, or only -∞, gives
/// NaN everywhere.
#[derive(Clone, Debug)]
pub struct Softmax {
    /// The input, of at least one dimension.
    pub input: Tensor,
    /// The axis along which the output adds up to one.
    pub axis: usize,
    /// Whether the output is the logarithm of the softmax.
    pub is_log: bool,
}

impl Softmax {
    /// Softmax along the last axis.
    pub fn new(input: &Tensor) -> Softmax {
        Softmax { input: input.clone(), axis: input.shape().rank().saturating_sub(1), is_log: false }
    }

    /// Normalises along this axis instead of the last.
    pub fn axis(mut self, axis: usize) -> Softmax {
        self.axis = axis;
        self
    }

    /// Returns the logarithm, which is exact even if the softmax itself would be zero.
    pub fn log(mut self) -> Softmax {
        self.is_log = true;
        self
    }

    /// The output's shape: the input's.
    pub fn output_shape(&self) -> Shape {
        *self.input.shape()
    }
}

impl Describe for Softmax {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn validate(&self) -> Result<()> {
        if !self.input.dtype().is_float() {
            let expected = "f32, f16, bf16 or f64";
            return Err(Error::DTypeUnsupported { what: "softmax", expected, got: self.input.dtype() });
        }
        check_axis(self.input.shape(), self.axis, "softmax: input", "softmax: axis")
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.input.dtype(), self.output_shape()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    #[test]
    fn axes_and_types_are_checked() {
        let input = Tensor::zeros(DType::F64, [2, 0]).unwrap();
        assert!(Softmax::new(&input).axis(0).log().validate().is_ok());
        let error = Softmax::new(&input).axis(2).validate().unwrap_err();
        assert_eq!(error, Error::OutOfBounds { what: "softmax: axis", limit: 1, got: 2 });
        let integers = Tensor::zeros(DType::I32, [2]).unwrap();
        assert!(matches!(Softmax::new(&integers).validate(), Err(Error::DTypeUnsupported { .. })));
        let scalar = Tensor::zeros(DType::F32, []).unwrap();
        assert!(matches!(Softmax::new(&scalar).validate(), Err(Error::RankMismatch { .. })));
    }
}
