//! Conv2d and its gradients: sizes for one tiled kernel. Large batches are cut into groups of
//! images.

use panoply_core::expr::Expr;
use panoply_core::op::compute::{Activation, Conv2d, Conv2dBackwardInput, Conv2dBackwardWeight, ConvShape};
use panoply_core::{DType, Result, Shape, Tensor};
use panoply_kernels::wgsl::{Addend, ConvKernel, ConvPass, Epilogue, Kernel, Tile};

use super::columns::convolve;
use super::map::evaluate;
use super::{empty, fits_whole, no_f64, slabs_fit, wide_units};
use crate::context::Context;
use crate::driver::Driver;
use crate::operand::{Operand, is_seen};
use crate::pieces::{beyond, in_slabs, slabs_within};
use crate::profile::Profile;
use crate::tuning::{LARGE_TILES, SMALL_TILE};

/// Positions in a padded image are 32-bit integers in kernels.
const POSITION_MAX: usize = i32::MAX as usize / 2;
/// Number of large tiles that keep a device busy.
const LARGE_TILES_WANTED: usize = 96;

pub(crate) fn support(profile: &Profile, op: &Conv2d) -> Result<(), String> {
    no_f64(op.input.dtype(), "conv2d")?;
    let shape = counted(op.conv_shape())?;
    fits_whole(profile, "weights", &op.weights)?;
    if let Some(bias) = &op.bias {
        fits_whole(profile, "a bias", bias)?;
    }
    slabs_fit(profile, shape.batch, &[&op.input], (shape.output_dims().iter().product(), DType::F32))
}

pub(crate) fn input_support(profile: &Profile, op: &Conv2dBackwardInput) -> Result<(), String> {
    no_f64(op.weights.dtype(), "conv2d")?;
    let shape = counted(op.conv_shape())?;
    fits_whole(profile, "weights", &op.weights)?;
    slabs_fit(profile, shape.batch, &[&op.gradient], (shape.input_dims().iter().product(), DType::F32))
}

pub(crate) fn weight_support(profile: &Profile, op: &Conv2dBackwardWeight) -> Result<(), String> {
    no_f64(op.input.dtype(), "conv2d")?;
    let shape = counted(op.conv_shape())?;
    let (elements, size) = (shape.weight_dims().iter().product::<usize>(), DType::F32.size_bytes());
    let limit = profile.binding_bytes_max;
    if !is_seen(elements, size, limit) {
        return Err(format!("a gradient of weights of {} bytes; the adapter binds {limit}", elements * size));
    }
    slabs_fit(profile, shape.batch, &[&op.input, &op.gradient], (0, DType::F32))
}

/// The sizes, if kernels can count them.
fn counted(shape: Result<ConvShape>) -> Result<ConvShape, String> {
    let shape = shape.map_err(|error| error.to_string())?;
    for axis in 0..2 {
        let padded = shape.input[axis] + shape.padding[axis] + shape.padding[axis + 2];
        let reach = (shape.kernel[axis] - 1).saturating_mul(shape.dilation[axis]);
        if padded.max(reach).max(shape.stride[axis]) > POSITION_MAX + 4096 {
            return Err(format!("padded images of {padded} pixels a side; kernels count to {POSITION_MAX}"));
        }
    }
    Ok(shape)
}

pub(crate) fn forward<D: Driver>(op: &Conv2d, context: &mut Context<D>) -> Result<Tensor> {
    let shape = op.conv_shape()?;
    let (input, weights) = (context.input(&op.input)?, context.input(&op.weights)?);
    let bias = op.bias.as_ref().map(|bias| context.input(bias)).transpose()?;
    if let Some(made) = wide_units::convolve(&shape, [&input, &weights], bias.as_ref(), op.activation, context)? {
        return context.finish(made);
    }
    if let Some(made) = convolve(&shape, [&input, &weights], bias.as_ref(), op.activation, context)? {
        return context.finish(made);
    }
    let pass = ConvolutionPass { kind: ConvPass::Forward, shape, bias, activation: op.activation };
    pass.over_images(&weights, &input, &shape.output_dims(), context)
}

pub(crate) fn backward_input<D: Driver>(op: &Conv2dBackwardInput, context: &mut Context<D>) -> Result<Tensor> {
    let shape = op.conv_shape()?;
    let (gradient, weights) = (context.input(&op.gradient)?, context.input(&op.weights)?);
    let pass = ConvolutionPass { kind: ConvPass::BackwardInput, shape, bias: None, activation: Activation::None };
    pass.over_images(&weights, &gradient, &shape.input_dims(), context)
}

/// The gradient of the weights. If not all images are within reach, the gradients of groups of
/// images are added up.
pub(crate) fn backward_weight<D: Driver>(op: &Conv2dBackwardWeight, context: &mut Context<D>) -> Result<Tensor> {
    let shape = op.conv_shape()?;
    let (dtype, weights) = (op.input.dtype(), Shape::new(shape.weight_dims())?);
    if weights.elements() == 0 {
        return empty(dtype, weights);
    }
    let (input, gradient) = (context.input(&op.input)?, context.input(&op.gradient)?);
    let pass = ConvolutionPass { kind: ConvPass::BackwardWeight, shape, bias: None, activation: Activation::None };
    let limit = context.profile.binding_bytes_max;
    if input.is_within(limit) && gradient.is_within(limit) {
        let carriers = context.carriers(dtype, weights)?;
        pass.record(&gradient, &input, &carriers, context)?;
        return context.finish_as(carriers, dtype);
    }
    let [image, image_gradient] = [&input, &gradient].map(|operand| operand.elements() / shape.batch);
    let within = |slab: usize| slabs_within(&context.profile, slab, dtype.size_bytes());
    let most = within(image).min(within(image_gradient));
    if most == 0 {
        return Err(beyond("images", limit));
    }
    let sum = (Expr::input(0) + Expr::input(1)).finish()?;
    let mut so_far = None;
    for first in (0..shape.batch).step_by(most) {
        let batch = most.min(shape.batch - first);
        let some =
            |operand: &Operand<D>, slab: usize| operand.span(first * slab, batch * slab).map(|some| some.windowed());
        let (input, gradient) = (some(&input, image)?, some(&gradient, image_gradient)?);
        let part = context.carriers(dtype, weights)?;
        pass.of_images(batch).record(&gradient, &input, &part, context)?;
        so_far = Some(match so_far {
            None => part,
            Some(so_far) => {
                let (dtypes, both) = ([DType::F32; 2], vec![so_far, part]);
                evaluate(&sum, &dtypes, &[0, 1], both, DType::F32, weights, context)?
            }
        });
    }
    let carriers = so_far.ok_or_else(|| beyond("images", limit))?;
    context.finish_as(carriers, dtype)
}

/// One of the three passes over a convolution.
struct ConvolutionPass<D: Driver> {
    kind: ConvPass,
    shape: ConvShape,
    bias: Option<Operand<D>>,
    activation: Activation,
}

impl<D: Driver> ConvolutionPass<D> {
    /// The same pass over `batch` images.
    fn of_images(&self, batch: usize) -> ConvolutionPass<D> {
        let ConvolutionPass { kind, shape, bias, activation } = self;
        ConvolutionPass {
            kind: *kind,
            shape: ConvShape { batch, ..*shape },
            bias: bias.clone(),
            activation: *activation,
        }
    }

    /// Rows, columns and inner dimension of one group's product.
    fn sizes(&self) -> [usize; 3] {
        let shape = &self.shape;
        let ([height, width], taps) = (shape.output(), shape.taps());
        let (channels, filters) = (shape.group_channels(), shape.group_filters());
        match self.kind {
            ConvPass::Forward => [filters, shape.batch * height * width, channels * taps],
            ConvPass::BackwardInput => [channels, shape.batch * shape.input[0] * shape.input[1], filters * taps],
            ConvPass::BackwardWeight => [filters, channels * taps, shape.batch * height * width],
        }
    }

    /// Runs the pass from images to images, some at a time if not all are within reach.
    fn over_images(
        &self,
        weights: &Operand<D>,
        images: &Operand<D>,
        dims: &[usize; 4],
        context: &mut Context<D>,
    ) -> Result<Tensor> {
        let (dtype, shape) = (weights.dtype, Shape::new(dims)?);
        if shape.elements() == 0 {
            return empty(dtype, shape);
        }
        let carriers = context.carriers(dtype, shape)?;
        in_slabs(images, &carriers, self.shape.batch, context, &mut |images, output, slabs, context| {
            self.of_images(slabs.len()).record(weights, images, output, context)
        })?;
        context.finish_as(carriers, dtype)
    }

    fn record(&self, a: &Operand<D>, b: &Operand<D>, output: &Operand<D>, context: &mut Context<D>) -> Result<()> {
        let dtype = a.dtype;
        let [m, n, _] = self.sizes();
        let large = LARGE_TILES[0];
        let tiles = self.shape.groups * m.div_ceil(large.m()) * n.div_ceil(large.n());
        let tile = if m > 64 && tiles >= LARGE_TILES_WANTED { large } else { SMALL_TILE };
        let tile = Tile { unrolled: !context.profile.is_software, ..tile };
        let bias = if self.bias.is_some() { Addend::PerRow } else { Addend::None };
        let epilogue =
            Epilogue { bias, addend_dtype: dtype, activation: self.activation, ..Epilogue::none(DType::F32) };
        let kernel = ConvKernel { dtype, pass: self.kind, epilogue, tile };
        let reads: Vec<&Operand<D>> = [a, b].into_iter().chain(&self.bias).collect();
        let groups = (self.shape.groups * m.div_ceil(tile.m()) * n.div_ceil(tile.n())) as u64;
        context.run(&Kernel::Conv(kernel), &[output], &reads, &self.params(a, b, tile), groups)
    }

    fn params(&self, a: &Operand<D>, b: &Operand<D>, tile: Tile) -> Vec<u32> {
        let [m, n, k] = self.sizes();
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
