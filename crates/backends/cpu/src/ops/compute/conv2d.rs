//! Conv2d and its gradients: maps ops to the kernels of [`crate::conv`].

use std::borrow::Cow;

use panoply_core::op::compute::{Activation, Conv2d, Conv2dBackwardInput, Conv2dBackwardWeight, ConvOptions};
use panoply_core::{DType, Element, Error, Result, Shape, Tensor, Value, bf16, f16};
use panoply_graph::Tail;
use panoply_graph::fuse::images::CHANNELS_LAST;

use crate::context::Context;
use crate::conv::channels_last::{self, Pixels};
use crate::conv::{
    Activate, ConvElement, ConvShape, ConvWorkspace, Epilogue, PackedWeights, activate, backward_input,
    backward_weight, forward_kept,
};
use crate::gemm::Accumulator;
use crate::map::{PlanCache, RangedMap};
use crate::simd::Simd;
use crate::states::OpState;
use crate::team::Team;
use crate::weights::{Filters, Weights};

/// Maximum number of channels that are read in place even if they are not contiguous.
const SCATTERED_CHANNELS_MAX: usize = 4;

impl OpState for ConvWorkspace {}

pub(crate) fn run(op: &Conv2d, context: &mut Context) -> Result<Value> {
    let op = &*with_products(op)?;
    match op.input.dtype() {
        DType::F32 if is_channels_last(context) => run_channels_last(op, None, context),
        DType::F32 => run_forward::<f32>(op, None, context),
        DType::F64 => run_forward::<f64>(op, None, context),
        DType::F16 => run_forward::<f16>(op, None, context),
        DType::BF16 => run_forward::<bf16>(op, None, context),
        got => Err(unsupported("conv2d", got)),
    }
}

/// Runs a convolution of f32 followed by the graph's tail, which is applied to its output.
pub(crate) fn run_with(op: &Conv2d, tail: &Tail, context: &mut Context) -> Result<Value> {
    let op = &*with_products(op)?;
    let inputs = std::iter::once(DType::F32).chain(tail.more.iter().map(Tensor::dtype));
    let plan = context.states.get::<PlanCache>().get(&tail.program, inputs, context.simd)?;
    let ordered = is_channels_last(context);
    let shape = if ordered { lying_last(op)? } else { op.output_shape()? };
    let behind = RangedMap::new(&plan, Some(size_of::<f32>()), &tail.more, shape)?;
    let apply = |first: usize, sums: &mut [f32]| behind.apply(first, sums);
    match ordered {
        true => run_channels_last(op, Some(&apply), context),
        false => run_forward::<f32>(op, Some(&apply), context),
    }
}

/// The op, or an equivalent op if there is nothing to multiply. All sums are then zero, regardless
/// of the kernel's size, so one channel of zeros and one tap suffice.
fn with_products(op: &Conv2d) -> Result<Cow<'_, Conv2d>> {
    if op.input.elements() > 0 && op.weights.elements() > 0 {
        return Ok(Cow::Borrowed(op));
    }
    let [batch, filters, height, width] = op.conv_shape()?.output_dims();
    if filters == 0 {
        return Ok(Cow::Borrowed(op));
    }
    let mut op = op.clone();
    op.input = Tensor::zeros(op.input.dtype(), [batch, 1, height, width])?;
    op.weights = Tensor::zeros(op.weights.dtype(), [filters, 1, 1, 1])?;
    op.options = ConvOptions::default();
    Ok(Cow::Owned(op))
}

/// Whether the output is to be stored channels-last.
fn is_channels_last(context: &Context) -> bool {
    context.order == Some(CHANNELS_LAST)
}

/// The output's shape in channels-last order.
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

/// Runs a convolution of f32 with a channels-last output. Images are read in place if their
/// channels are contiguous or few.
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
    let (turned, copied);
    let input = if lies && (strides[1] == 1 || dims[1] <= SCATTERED_CHANNELS_MAX) {
        Pixels::new(&op.input.host_elements::<f32>()?[op.input.offset()..], dims, strides)
    } else {
        turned = op.input.permute(&CHANNELS_LAST)?;
        copied = context.contiguous::<f32>(&turned)?;
        Pixels::dense(&copied, dims)
    };
    let input = input.ok_or_else(|| Error::invalid("conv2d input", "a view that lies inside its buffer", "another"))?;
    run_into(op, behind, lying_last(op)?, context, |engine, weights, kept, epilogue, output| {
        let Engine { simd, team, conv } = engine;
        channels_last::forward(simd, team, conv, &shape, (input, weights), kept, epilogue, output);
    })
}

fn run_forward<S: Element + ConvElement>(
    op: &Conv2d,
    behind: Option<Activate<'_, S::Real>>,
    context: &mut Context,
) -> Result<Value>
where
    S::Real: Accumulator,
{
    let shape = op.conv_shape()?;
    let input = context.contiguous::<S>(&op.input)?;
    run_into(op, behind, op.output_shape()?, context, |engine, weights, kept, epilogue, output| {
        let Engine { simd, team, conv } = engine;
        forward_kept(simd, team, conv, &shape, (&input, weights), kept, epilogue, output);
    })
}

/// The resources of a convolution.
struct Engine<'a> {
    simd: Simd,
    team: &'a Team,
    conv: &'a mut ConvWorkspace,
}

/// Runs `forward` with the op's weights, their packed forms, the epilogue, and an output of this
/// shape.
fn run_into<S: Element + ConvElement>(
    op: &Conv2d,
    behind: Option<Activate<'_, S::Real>>,
    shape: Shape,
    context: &mut Context,
    forward: impl FnOnce(Engine<'_>, &[S], Option<&mut PackedWeights>, &Epilogue<'_, S>, &mut [S]),
) -> Result<Value>
where
    S::Real: Accumulator,
{
    let weights = context.contiguous::<S>(&op.weights)?;
    let bias = op.bias.as_ref().map(|bias| context.contiguous::<S>(bias)).transpose()?;
    let mut output = context.output::<S>(shape)?;
    let level = context.simd;
    let activate = |first: usize, sums: &mut [S::Real]| {
        if op.activation != Activation::None {
            activate(level, sums, op.activation);
        }
        behind.iter().for_each(|behind| behind(first, sums));
    };
    let is_plain = op.activation == Activation::None && behind.is_none();
    let epilogue = Epilogue { bias: bias.as_deref(), activate: if is_plain { None } else { Some(&activate) } };
    let filters = constant_filters(&op.weights, &op.conv_shape()?);
    let Context { team, simd, states, .. } = context;
    let (kept, conv) = states.pair::<Weights, ConvWorkspace>();
    let kept = filters.and_then(|filters| kept.filters(filters));
    forward(Engine { simd: *simd, team, conv }, &weights, kept, &epilogue, &mut output);
    output.into_tensor().map(Value::Tensor)
}

/// The identity of weights, if they are contiguous.
fn constant_filters(weights: &Tensor, shape: &ConvShape) -> Option<Filters> {
    let start = weights.host_bytes().ok().filter(|_| weights.is_contiguous())?.as_ptr() as usize;
    let (dims, groups) = (shape.weight_dims(), shape.groups);
    Some(Filters { start, offset: weights.offset(), dtype: weights.dtype(), dims, groups })
}

fn input_gradient<S: Element + ConvElement>(op: &Conv2dBackwardInput, context: &mut Context) -> Result<Value> {
    let shape = op.conv_shape()?;
    let gradient = context.contiguous::<S>(&op.gradient)?;
    let weights = context.contiguous::<S>(&op.weights)?;
    let mut output = context.output::<S>(op.output_shape()?)?;
    let Context { team, simd, states, .. } = context;
    let conv = states.get::<ConvWorkspace>();
    backward_input(*simd, team, conv, &shape, (&gradient, &weights), &mut output);
    output.into_tensor().map(Value::Tensor)
}

fn weight_gradient<S: Element + ConvElement>(op: &Conv2dBackwardWeight, context: &mut Context) -> Result<Value> {
    let shape = op.conv_shape()?;
    let input = context.contiguous::<S>(&op.input)?;
    let gradient = context.contiguous::<S>(&op.gradient)?;
    let mut output = context.output::<S>(op.output_shape()?)?;
    let Context { team, simd, states, .. } = context;
    let conv = states.get::<ConvWorkspace>();
    backward_weight(*simd, team, conv, &shape, (&input, &gradient), &mut output);
    output.into_tensor().map(Value::Tensor)
}

fn unsupported(what: &'static str, got: DType) -> Error {
    Error::DTypeUnsupported { what, expected: "f32, f16, bf16 or f64", got }
}
