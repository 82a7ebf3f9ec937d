//! Conv2d and its gradients: sizes for one tiled kernel.

use panoply_core::op::compute::{Activation, Conv2d, Conv2dBackwardInput, Conv2dBackwardWeight, ConvShape};
use panoply_core::{DType, Result, Shape, Tensor};
use panoply_kernels::wgsl::{Addend, ConvKernel, ConvPass, Epilogue, Kernel, Tile};

use super::empty;
use crate::context::Context;
use crate::operand::Operand;
use crate::tuning::{LARGE_TILES, SMALL_TILE};

/// Positions in a padded image are 32-bit integers in kernels.
const POSITION_MAX: usize = i32::MAX as usize / 2;
/// Large tiles from which on a device is busy with them.
const LARGE_TILES_WANTED: usize = 96;

pub(crate) fn support(shape: Result<ConvShape>) -> Result<(), String> {
    let shape = shape.map_err(|error| error.to_string())?;
    for axis in 0..2 {
        let padded = shape.input[axis] + shape.padding[axis] + shape.padding[axis + 2];
        let reach = (shape.kernel[axis] - 1).saturating_mul(shape.dilation[axis]);
        if padded.max(reach).max(shape.stride[axis]) > POSITION_MAX + 4096 {
            return Err(format!("padded images of {padded} pixels a side; kernels count to {POSITION_MAX}"));
        }
    }
    Ok(())
}

pub(crate) fn forward(op: &Conv2d, context: &mut Context) -> Result<Tensor> {
    let shape = op.conv_shape()?;
    let (input, weights) = (context.input(&op.input)?, context.input(&op.weights)?);
    let bias = op.bias.as_ref().map(|bias| context.input(bias)).transpose()?;
    let [height, width] = shape.output();
    let sizes = [shape.group_filters(), shape.batch * height * width, shape.group_channels() * shape.taps()];
    let pass = Pass { kind: ConvPass::Forward, shape, sizes, bias, activation: op.activation };
    pass.run(&weights, &input, &shape.output_dims(), context)
}

pub(crate) fn backward_input(op: &Conv2dBackwardInput, context: &mut Context) -> Result<Tensor> {
    let shape = op.conv_shape()?;
    let (gradient, weights) = (context.input(&op.gradient)?, context.input(&op.weights)?);
    let pixels = shape.batch * shape.input[0] * shape.input[1];
    let sizes = [shape.group_channels(), pixels, shape.group_filters() * shape.taps()];
    let pass = Pass { kind: ConvPass::BackwardInput, shape, sizes, bias: None, activation: Activation::None };
    pass.run(&weights, &gradient, &shape.input_dims(), context)
}

pub(crate) fn backward_weight(op: &Conv2dBackwardWeight, context: &mut Context) -> Result<Tensor> {
    let shape = op.conv_shape()?;
    let (input, gradient) = (context.input(&op.input)?, context.input(&op.gradient)?);
    let [height, width] = shape.output();
    let sizes = [shape.group_filters(), shape.group_channels() * shape.taps(), shape.batch * height * width];
    let pass = Pass { kind: ConvPass::BackwardWeight, shape, sizes, bias: None, activation: Activation::None };
    pass.run(&gradient, &input, &shape.weight_dims(), context)
}

/// One of the three passes over a convolution.
struct Pass {
    kind: ConvPass,
    shape: ConvShape,
    /// Rows, columns and inner dimension of one group's product.
    sizes: [usize; 3],
    bias: Option<Operand>,
    activation: Activation,
}

impl Pass {
    fn run(&self, a: &Operand, b: &Operand, dims: &[usize; 4], context: &mut Context) -> Result<Tensor> {
        let (dtype, output_shape) = (a.dtype, Shape::new(dims)?);
        if output_shape.elements() == 0 {
            return empty(dtype, output_shape);
        }
        let [m, n, _] = self.sizes;
        let large = LARGE_TILES[0];
        let tiles = self.shape.groups * m.div_ceil(large.m()) * n.div_ceil(large.n());
        let tile = if m > 64 && tiles >= LARGE_TILES_WANTED { large } else { SMALL_TILE };
        let tile = Tile { unrolled: !context.profile.is_software, ..tile };
        let bias = if self.bias.is_some() { Addend::PerRow } else { Addend::None };
        let epilogue =
            Epilogue { bias, addend_dtype: dtype, activation: self.activation, ..Epilogue::none(DType::F32) };
        let kernel = ConvKernel { dtype, pass: self.kind, epilogue, tile };
        let carriers = context.carriers(dtype, output_shape)?;
        let reads: Vec<&Operand> = [a, b].into_iter().chain(&self.bias).collect();
        let groups = (self.shape.groups * m.div_ceil(tile.m()) * n.div_ceil(tile.n())) as u64;
        context.run(&Kernel::Conv(kernel), &[&carriers], &reads, &self.params(a, b, tile), groups)?;
        context.finish_as(carriers, dtype)
    }

    fn params(&self, a: &Operand, b: &Operand, tile: Tile) -> Vec<u32> {
        let [m, n, k] = self.sizes;
        let shape = &self.shape;
        let [height, width] = shape.output();
        let sizes = [m, n, k, m.div_ceil(tile.m()), n.div_ceil(tile.n()), shape.groups, a.offset, b.offset];
        let bias = [self.bias.as_ref().map_or(0, |bias| bias.offset), 1];
        let rest = [
            shape.group_channels(),
            shape.group_filters(),
            shape.channels,
            shape.filters,
            shape.input[0],
            shape.input[1],
            shape.kernel[0],
            shape.kernel[1],
            height,
            width,
            shape.stride[0],
            shape.stride[1],
            shape.dilation[0],
            shape.dilation[1],
            shape.padding[0],
            shape.padding[1],
            0,
            0,
        ];
        sizes.into_iter().chain(bias).chain(rest).map(|size| size as u32).collect()
    }
}
