//! LayerNorm: normalises the last axes to mean zero and variance one, then scales and shifts them.

use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// `(x - mean) / sqrt(variance + epsilon) * weight + bias` over the last axis, or the last few axes
/// ([`LayerNorm::trailing_axes`]). With [`LayerNorm::rms`]:
/// `x / sqrt(mean of x² + epsilon) * weight + bias`.
///
/// Defined for f32, f16, bf16 and f64; 16-bit floats are computed in f32. The variance is the
/// biased one. Weight and bias have the input's type and the shape of the normalised axes. A NaN or
/// an infinity affects only its own row.
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// The input, of at least one dimension.
    pub input: Tensor,
    /// Factors for the normalised elements.
    pub weight: Option<Tensor>,
    /// Summands for the normalised elements.
    pub bias: Option<Tensor>,
    /// Number of trailing axes that are normalised together.
    pub axes: usize,
    /// Added to the variance. Finite and not negative.
    pub epsilon: f64,
    /// Whether the mean is not subtracted (RMS normalisation).
    pub is_rms: bool,
}

impl LayerNorm {
    /// The default epsilon.
    pub const EPSILON: f64 = 1e-5;

    /// Normalises the last axis, without weight and bias, with [`LayerNorm::EPSILON`].
    pub fn new(input: &Tensor) -> LayerNorm {
        LayerNorm {
            input: input.clone(),
            weight: None,
            bias: None,
            axes: 1,
            epsilon: LayerNorm::EPSILON,
            is_rms: false,
        }
    }

    /// Sets the factors.
    pub fn weight(mut self, weight: &Tensor) -> LayerNorm {
        self.weight = Some(weight.clone());
        self
    }

    /// Sets the summands.
    pub fn bias(mut self, bias: &Tensor) -> LayerNorm {
        self.bias = Some(bias.clone());
        self
    }

    /// Sets the number of trailing axes that are normalised together.
    pub fn trailing_axes(mut self, axes: usize) -> LayerNorm {
        self.axes = axes;
        self
    }

    /// Sets the summand of the variance.
    pub fn epsilon(mut self, epsilon: f64) -> LayerNorm {
        self.epsilon = epsilon;
        self
    }

    /// Leaves the mean in place: RMS normalisation.
    pub fn rms(mut self) -> LayerNorm {
        self.is_rms = true;
        self
    }

    /// Dimensions of the normalised axes. Fails if the input has fewer axes.
    pub fn row_dims(&self) -> Result<&[usize]> {
        let dims = self.input.shape().dims();
        let start = dims.len().checked_sub(self.axes).filter(|_| self.axes > 0);
        start.map(|start| &dims[start..]).ok_or_else(|| {
            let expected = format!("1 to {} (the input's dimensions)", dims.len());
            Error::invalid("layernorm: axes", expected, self.axes)
        })
    }

    /// The output's shape: the input's.
    pub fn output_shape(&self) -> Shape {
        *self.input.shape()
    }
}

impl Describe for LayerNorm {
    fn name(&self) -> &'static str {
        "layernorm"
    }

    fn validate(&self) -> Result<()> {
        let dtype = self.input.dtype();
        if !dtype.is_float() {
            let expected = "f32, f16, bf16 or f64";
            return Err(Error::DTypeUnsupported { what: "layernorm", expected, got: dtype });
        }
        if !(self.epsilon.is_finite() && self.epsilon >= 0.0) {
            return Err(Error::invalid("layernorm: epsilon", "a finite number, not negative", self.epsilon));
        }
        let row = self.row_dims()?;
        for (what, tensor) in [("layernorm: weight", &self.weight), ("layernorm: bias", &self.bias)] {
            let Some(tensor) = tensor else { continue };
            if tensor.dtype() != dtype {
                return Err(Error::DTypeMismatch { what, expected: dtype, got: tensor.dtype() });
            }
            if tensor.shape().dims() != row {
                return Err(Error::ShapeMismatch { what, expected: row.to_vec(), got: tensor.shape().to_vec() });
            }
        }
        Ok(())
    }

    crate::parts!(input, weight, bias);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.input.dtype(), self.output_shape()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;

    #[test]
    fn everything_is_checked() {
        let input = Tensor::zeros(DType::F32, [2, 3, 4]).unwrap();
        let row = Tensor::zeros(DType::F32, [4]).unwrap();
        let half = Tensor::zeros(DType::F16, [4]).unwrap();
        assert!(LayerNorm::new(&input).weight(&row).bias(&row).validate().is_ok());
        let op = LayerNorm::new(&input).trailing_axes(2);
        assert!(matches!(op.clone().weight(&row).validate(), Err(Error::ShapeMismatch { .. })));
        assert_eq!(op.row_dims().unwrap(), [3, 4]);
        assert!(matches!(LayerNorm::new(&input).bias(&half).validate(), Err(Error::DTypeMismatch { .. })));
        for axes in [0, 4, usize::MAX] {
            assert!(matches!(
                LayerNorm::new(&input).trailing_axes(axes).validate(),
                Err(Error::InvalidArgument { .. })
            ));
        }
        for epsilon in [f64::NAN, -1.0, f64::INFINITY] {
            assert!(matches!(LayerNorm::new(&input).epsilon(epsilon).validate(), Err(Error::InvalidArgument { .. })));
        }
        let mut seen = 0;
        LayerNorm::new(&input).weight(&row).bias(&row).for_each_part(&mut |_| seen += 1);
        assert_eq!(seen, 3);
    }
}
