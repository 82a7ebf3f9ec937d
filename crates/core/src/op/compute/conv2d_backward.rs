//! The two gradients of a convolution: with respect to its input and to its weights.

use super::conv_shape::{ConvOptions, ConvShape, check_floats, conv_builders, dims4};
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The gradient of a loss with respect to the input of a convolution, from the gradient with
/// respect to its output. For f32, f16, bf16 and f64, without bias and activation. Input elements
/// that no output reads get zero.
#[derive(Clone, Debug)]
pub struct Conv2dBackwardInput {
    /// The gradient with respect to the output, `batch × filters × height × width`.
    pub gradient: Tensor,
    /// The weights of the convolution.
    pub weights: Tensor,
    /// Height and width of the convolution's input. With a stride above one they do not follow from
    /// the output.
    pub input_size: [usize; 2],
    /// Stride, padding, dilation and groups of the convolution.
    pub options: ConvOptions,
}

impl Conv2dBackwardInput {
    /// The gradient for a convolution with stride one and without padding, of images of
    /// `input_size` (height, width).
    pub fn new(gradient: &Tensor, weights: &Tensor, input_size: [usize; 2]) -> Conv2dBackwardInput {
        Conv2dBackwardInput {
            gradient: gradient.clone(),
            weights: weights.clone(),
            input_size,
            options: ConvOptions::default(),
        }
    }

    conv_builders!();

    /// Checks and returns the sizes of the convolution.
    pub fn conv_shape(&self) -> Result<ConvShape> {
        let gradient = dims4("conv2d_backward_input gradient", &self.gradient)?;
        let weights = dims4("conv2d_backward_input weights", &self.weights)?;
        let overflow = || Error::invalid("conv2d groups", "a number of channels that fits memory", self.options.groups);
        let channels = weights[1].checked_mul(self.options.groups).ok_or_else(overflow)?;
        let input = [gradient[0], channels, self.input_size[0], self.input_size[1]];
        let shape = ConvShape::new(input, weights, &self.options)?;
        expect_gradient("conv2d_backward_input gradient", &shape, gradient)?;
        Ok(shape)
    }

    /// The output's shape: that of the convolution's input.
    pub fn output_shape(&self) -> Result<Shape> {
        Shape::new(self.conv_shape()?.input_dims())
    }
}

impl Describe for Conv2dBackwardInput {
    fn name(&self) -> &'static str {
        "conv2d_backward_input"
    }

    fn validate(&self) -> Result<()> {
        check_floats("conv2d_backward_input", &self.gradient, &[("conv2d_backward_input weights", &self.weights)])?;
        self.output_shape().map(drop)
    }

    crate::parts!(gradient, weights);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.gradient.dtype(), self.output_shape()?))
    }
}

/// The gradient of a loss with respect to the weights of a convolution, from the gradient with
/// respect to its output. For f32, f16, bf16 and f64. The order of summation is fixed: the same
/// input gives the same bits.
#[derive(Clone, Debug)]
pub struct Conv2dBackwardWeight {
    /// The convolution's input, `batch × channels × height × width`.
    pub input: Tensor,
    /// The gradient with respect to the output, `batch × filters × height × width`.
    pub gradient: Tensor,
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Stride, padding, dilation and groups of the convolution.
    pub options: ConvOptions,
}

impl Conv2dBackwardWeight {
    /// The gradient for a convolution with stride one and without padding, with a kernel of this
    /// height and width.
    pub fn new(input: &Tensor, gradient: &Tensor, kernel: [usize; 2]) -> Conv2dBackwardWeight {
        Conv2dBackwardWeight {
            input: input.clone(),
            gradient: gradient.clone(),
            kernel,
            options: ConvOptions::default(),
        }
    }

    conv_builders!();

    /// Checks and returns the sizes of the convolution.
    pub fn conv_shape(&self) -> Result<ConvShape> {
        let input = dims4("conv2d_backward_weight input", &self.input)?;
        let gradient = dims4("conv2d_backward_weight gradient", &self.gradient)?;
        let group_channels = input[1].checked_div(self.options.groups).unwrap_or(0);
        let weights = [gradient[1], group_channels, self.kernel[0], self.kernel[1]];
        let shape = ConvShape::new(input, weights, &self.options)?;
        expect_gradient("conv2d_backward_weight gradient", &shape, gradient)?;
        Ok(shape)
    }

    /// The output's shape: that of the weights.
    pub fn output_shape(&self) -> Result<Shape> {
        Shape::new(self.conv_shape()?.weight_dims())
    }
}

impl Describe for Conv2dBackwardWeight {
    fn name(&self) -> &'static str {
        "conv2d_backward_weight"
    }

    fn validate(&self) -> Result<()> {
        check_floats("conv2d_backward_weight", &self.input, &[("conv2d_backward_weight gradient", &self.gradient)])?;
        self.output_shape().map(drop)
    }

    crate::parts!(input, gradient);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.gradient.dtype(), self.output_shape()?))
    }
}

fn expect_gradient(what: &'static str, shape: &ConvShape, got: [usize; 4]) -> Result<()> {
    let expected = shape.output_dims();
    if got != expected {
        return Err(Error::ShapeMismatch { what, expected: expected.to_vec(), got: got.to_vec() });
    }
    Ok(())
}
