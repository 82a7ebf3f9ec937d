//! Conv2d: two-dimensional convolution of images, with bias and activation.

use super::activation::Activation;
use super::conv_shape::{ConvOptions, ConvShape, check_floats, conv_builders, dims4};
use crate::error::{Error, Result};
use crate::op::Describe;
use crate::part::{PartMut, PartRef};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Convolves images (`batch × channels × height × width`) with weights (`filters × channels / groups × height × width`),
/// for f32, f16, bf16 and f64. What neural networks call a convolution: the kernel is not mirrored.
///
/// `output[n][f] = activation(bias[f] + Σ input[n][c] ⋆ weights[f][c])`. f16 and bf16 are summed in f32 and rounded once,
/// after the activation. Padding counts as zeros; where an infinite or NaN weight meets padding the output may be NaN.
#[derive(Clone, Debug)]
pub struct Conv2d {
    /// The images.
    pub input: Tensor,
    /// The weights.
    pub weights: Tensor,
    /// One number for each filter, added to its sums.
    pub bias: Option<Tensor>,
    /// Applied to the sums.
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

    /// The sizes of the convolution, checked.
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

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.input).into());
        visit((&self.weights).into());
        self.bias.iter().for_each(|tensor| visit(tensor.into()));
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.input).into());
        visit((&mut self.weights).into());
        self.bias.iter_mut().for_each(|tensor| visit(tensor.into()));
    }

    /// Multiplications.
    fn work(&self) -> u64 {
        let taps = self.weights.shape().iter().skip(1).product::<usize>();
        let outputs = self.output_shape().map_or(0, |shape| shape.elements());
        (outputs as u64).saturating_mul(taps as u64)
    }
}
