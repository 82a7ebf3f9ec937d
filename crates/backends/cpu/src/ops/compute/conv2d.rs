//! Conv2d and its gradients: from ops to the kernels of [`crate::conv`].

use panoply_core::op::compute::{Activation, Conv2d, Conv2dBackwardInput, Conv2dBackwardWeight};
use panoply_core::{DType, Element, Error, Result, Shape, Tensor, Value, bf16, f16};
use panoply_graph::Tail;
use panoply_graph::fuse::images::CHANNELS_LAST;

use crate::context::Context;
use crate::conv::channels_last::{self, Pixels};
use crate::conv::{Activate, ConvShape, Epilogue, Stored, activate, backward_input, backward_weight, forward_kept};
use crate::gemm::Accumulator;
use crate::map::Ranged;
use crate::ops::Filters;

/// So many channels are read where they lie, however far from each other.
const SCATTERED_CHANNELS_MAX: usize = 4;

pub(crate) fn run(op: &Conv2d, context: &mut Context) -> Result<Value> {
    match op.input.dtype() {
        DType::F32 if is_channels_last(context) => run_channels_last(op, None, context),
        DType::F32 => run_forward::<f32>(op, None, context),
        DType::F64 => run_forward::<f64>(op, None, context),
        DType::F16 => run_forward::<f16>(op, None, context),
        DType::BF16 => run_forward::<bf16>(op, None, context),
        got => Err(unsupported("conv2d", got)),
    }
}

/// A convolution of f32, and what a graph does to its output.
pub(crate) fn run_with(op: &Conv2d, tail: &Tail, context: &mut Context) -> Result<Value> {
    let inputs = std::iter::once(DType::F32).chain(tail.more.iter().map(Tensor::dtype));
    let plan = context.map_plans.get(&tail.program, inputs, context.simd)?;
    let ordered = is_channels_last(context);
    let shape = if ordered { lying_last(op)? } else { op.output_shape()? };
    let behind = Ranged::new(&plan, Some(size_of::<f32>()), &tail.more, shape)?;
    let apply = |first: usize, sums: &mut [f32]| behind.apply(first, sums);
    match ordered {
        true => run_channels_last(op, Some(&apply), context),
        false => run_forward::<f32>(op, Some(&apply), context),
    }
}

/// Whether the output is to lie with its channels last.
fn is_channels_last(context: &Context) -> bool {
    context.order == Some(CHANNELS_LAST)
}

/// The output's shape as it lies with its channels last.
fn lying_last(op: &Conv2d) -> Result<Shape> {
    let shape = op.output_shape()?;
    Shape::new(CHANNELS_LAST.map(|axis| shape[axis]))
}

pub(crate) fn run_backward_input(op: &Conv2dBackwardInput, context: &mut Context) -> Result<Value> {
    match op.gradient.dtype() {
        DType::F32 => input_gradient::<f32>(op, context),
        DType::F64 => input_gradient::<f64>(op, context),
        DType::F16 => input_gradient::<f16>(op, context),
        DType::BF16 => input_gradient::<bf16>(op, context),
        got => Err(unsupported("conv2d_backward_input", got)),
    }
}

pub(crate) fn run_backward_weight(op: &Conv2dBackwardWeight, context: &mut Context) -> Result<Value> {
    match op.input.dtype() {
        DType::F32 => weight_gradient::<f32>(op, context),
        DType::F64 => weight_gradient::<f64>(op, context),
        DType::F16 => weight_gradient::<f16>(op, context),
        DType::BF16 => weight_gradient::<bf16>(op, context),
        got => Err(unsupported("conv2d_backward_weight", got)),
    }
}

/// A convolution of f32 whose output lies with its channels last. Images are read where they lie, where their channels lie side by side or
/// are few.
fn run_channels_last(op: &Conv2d, behind: Option<Activate<'_, f32>>, context: &mut Context) -> Result<Value> {
    let shape = op.conv_shape()?;
    if !channels_last::takes(&shape) {
        return Err(Error::invalid("conv2d with its channels last", "one group, or as many as channels", shape.groups));
    }
    let dims = shape.input_dims();
    let mut strides = [0_usize; 4];
    let lies = strides
        .iter_mut()
        .zip(op.input.strides().iter())
        .all(|(own, stride)| usize::try_from(*stride).map(|stride| *own = stride).is_ok());
    let turned = op.input.permute(&CHANNELS_LAST)?;
    let copied;
    let input = if lies && (strides[1] == 1 || dims[1] <= SCATTERED_CHANNELS_MAX) {
        Pixels::new(&op.input.host_elements::<f32>()?[op.input.offset()..], dims, strides)
    } else {
        copied = context.contiguous::<f32>(&turned)?;
        Pixels::dense(&copied, dims)
    };
    let input = input.ok_or_else(|| Error::invalid("conv2d input", "a view that lies inside its buffer", "another"))?;
    let weights = context.contiguous::<f32>(&op.weights)?;
    let bias = op.bias.as_ref().map(|bias| context.contiguous::<f32>(bias)).transpose()?;
    let mut output = context.output::<f32>(lying_last(op)?)?;
    let level = context.simd;
    let activate = |first: usize, sums: &mut [f32]| {
        if op.activation != Activation::None {
            activate(level, sums, op.activation);
        }
        behind.iter().for_each(|behind| behind(first, sums));
    };
    let is_plain = op.activation == Activation::None && behind.is_none();
    let epilogue = Epilogue { bias: bias.as_deref(), activate: if is_plain { None } else { Some(&activate) } };
    let Context { team, simd, conv, weights: kept, .. } = context;
    let kept = constant_filters(&op.weights, &shape).and_then(|filters| kept.filters(filters));
    channels_last::forward(*simd, team, conv, &shape, (input, &weights), kept, &epilogue, &mut output);
    output.into_tensor().map(Value::Tensor)
}

fn run_forward<S: Element + Stored>(
    op: &Conv2d,
    behind: Option<Activate<'_, S::Real>>,
    context: &mut Context,
) -> Result<Value>
where
    S::Real: Accumulator,
{
    let shape = op.conv_shape()?;
    let input = context.contiguous::<S>(&op.input)?;
    let weights = context.contiguous::<S>(&op.weights)?;
    let bias = op.bias.as_ref().map(|bias| context.contiguous::<S>(bias)).transpose()?;
    let mut output = context.output::<S>(op.output_shape()?)?;
    let level = context.simd;
    let activate = |first: usize, sums: &mut [S::Real]| {
        if op.activation != Activation::None {
            activate(level, sums, op.activation);
        }
        behind.iter().for_each(|behind| behind(first, sums));
    };
    let is_plain = op.activation == Activation::None && behind.is_none();
    let epilogue = Epilogue { bias: bias.as_deref(), activate: if is_plain { None } else { Some(&activate) } };
    let Context { team, simd, conv, weights: kept, .. } = context;
    let kept = constant_filters(&op.weights, &shape).and_then(|filters| kept.filters(filters));
    forward_kept(*simd, team, conv, &shape, (&input, &weights), kept, &epilogue, &mut output);
    output.into_tensor().map(Value::Tensor)
}

/// Where weights are, if they lie one after the other.
fn constant_filters(weights: &Tensor, shape: &ConvShape) -> Option<Filters> {
    let start = weights.host_bytes().ok().filter(|_| weights.is_contiguous())?.as_ptr() as usize;
    let (dims, groups) = (shape.weight_dims(), shape.groups);
    Some(Filters { start, offset: weights.offset(), dtype: weights.dtype(), dims, groups })
}

fn input_gradient<S: Element + Stored>(op: &Conv2dBackwardInput, context: &mut Context) -> Result<Value> {
    let shape = op.conv_shape()?;
    let gradient = context.contiguous::<S>(&op.gradient)?;
    let weights = context.contiguous::<S>(&op.weights)?;
    let mut output = context.output::<S>(op.output_shape()?)?;
    let Context { team, simd, conv, .. } = context;
    backward_input(*simd, team, conv, &shape, (&gradient, &weights), &mut output);
    output.into_tensor().map(Value::Tensor)
}

fn weight_gradient<S: Element + Stored>(op: &Conv2dBackwardWeight, context: &mut Context) -> Result<Value> {
    let shape = op.conv_shape()?;
    let input = context.contiguous::<S>(&op.input)?;
    let gradient = context.contiguous::<S>(&op.gradient)?;
    let mut output = context.output::<S>(op.output_shape()?)?;
    let Context { team, simd, conv, .. } = context;
    backward_weight(*simd, team, conv, &shape, (&input, &gradient), &mut output);
    output.into_tensor().map(Value::Tensor)
}

fn unsupported(what: &'static str, got: DType) -> Error {
    Error::DTypeUnsupported { what, expected: "f32, f16, bf16 or f64", got }
}
