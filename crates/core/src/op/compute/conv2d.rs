//! Conv2d: two-dimensional convolution of images, with bias and activation.

use super::activation::Activation;
use super::conv_shape::{ConvOptions, ConvShape, check_floats, conv_builders, dims4};
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Convolves images (`batch × channels × height × width`) with weights
/// (`filters × channels / groups × height × width`), for f32, f16, bf16 and f64. As in neural
/// networks, the kernel is not mirrored.
///
/// `output[n][f] = activation(bias[f] + Σ input[n][c] ⋆ weights[f][c])`. f16 and bf16 are summed in
/// f32 and rounded once, after the activation. Padding consists of zeros that are multiplied like
/// any number: an infinite or NaN weight on padding gives NaN. An infinity or NaN in an image
/// affects the outputs that read it. A graph of f32 with constant weights may use Winograd's
/// method; then neighbouring outputs within tiles of four by four may be affected as well.
#[derive(Clone, Debug)]
pub struct Conv2d {
    /// The images.
    pub input: Tensor,
    /// The weights.
    pub weights: Tensor,
    /// One summand for each filter.
    pub bias: Option<Tensor>,
    /// The function applied to the sums.
    pub activation: Activation,
    /// Stride, padding, dilation and groups.
    pub options: ConvOptions,
}

impl Conv2d {
    /// A convolution with stride one, without padding, bias and activation.
    pub fn new(input: &Tensor, weights: &Tensor) -> Conv2d {
        Conv2d {
            input: input.clone(),
            weights: weights.clone(),
            bias: None,
            activation: Activation::None,
            options: ConvOptions::default(),
        }
    }

    conv_builders!();

    /// Adds one number for each filter.
    pub fn bias(mut self, bias: &Tensor) -> Self {
        self.bias = Some(bias.clone());
        self
    }

    /// Applies a function to the sums.
    pub fn activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// Checks and returns the sizes of the convolution.
    pub fn conv_shape(&self) -> Result<ConvShape> {
        let input = dims4("conv2d input", &self.input)?;
        let weights = dims4("conv2d weights", &self.weights)?;
        ConvShape::new(input, weights, &self.options)
    }

    /// The output's shape: `batch × filters × height × width`.
    pub fn output_shape(&self) -> Result<Shape> {
        Shape::new(self.conv_shape()?.output_dims())
    }
}

impl Describe for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn validate(&self) -> Result<()> {
        check_floats("conv2d", &self.input, &[("conv2d weights", &self.weights)])?;
        let shape = self.conv_shape()?;
        if let Some(bias) = &self.bias {
            check_floats("conv2d", &self.input, &[("conv2d bias", bias)])?;
            if bias.shape().dims() != [shape.filters] {
                let (expected, got) = (vec![shape.filters], bias.shape().to_vec());
                return Err(Error::ShapeMismatch { what: "conv2d bias", expected, got });
            }
        }
        Ok(())
    }

    crate::parts!(input, weights, bias);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.input.dtype(), self.output_shape()?))
    }

    /// Number of multiplications.
    fn work(&self) -> u64 {
        let taps = self.weights.shape().iter().skip(1).product::<usize>();
        let outputs = self.output_shape().map_or(0, |shape| shape.elements());
        (outputs as u64).saturating_mul(taps as u64)
    }
}
