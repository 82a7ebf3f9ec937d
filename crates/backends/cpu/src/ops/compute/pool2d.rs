//! Pool2d: maps the op to the kernels of [`crate::pool2d`].

use panoply_core::op::compute::Pool2d;
use panoply_core::{DType, Element, Error, Result, Shape, Value, bf16, f16};
use panoply_graph::fuse::images::{CHANNELS_LAST, is_channels_last};

use crate::context::Context;
use crate::conv::ConvElement;
use crate::pool2d::{WindowNumber, pool2d, pool2d_pixels};

pub(crate) fn run(op: &Pool2d, context: &mut Context) -> Result<Value> {
    match op.input.dtype() {
        DType::F32 => match takes_pixels(op, context)? {
            true => pool_pixels(op, context),
            false => pool::<f32>(op, context),
        },
        DType::F64 => pool::<f64>(op, context),
        DType::F16 => pool::<f16>(op, context),
        DType::BF16 => pool::<bf16>(op, context),
        got => Err(Error::DTypeUnsupported { what: "pool2d", expected: "f32, f16, bf16 or f64", got }),
    }
}

fn pool<S: Element + ConvElement>(op: &Pool2d, context: &mut Context) -> Result<Value>
where
    S::Real: WindowNumber,
{
    let shape = op.pool_shape()?;
    let input = context.contiguous::<S>(&op.input)?;
    let mut output = context.output::<S>(op.output_shape()?)?;
    pool2d(context.simd, &context.team, &shape, op.kind, &input, &mut output);
    output.into_tensor().map(Value::Tensor)
}

/// Whether the output is to be channels-last. With an output of one pixel both layouts are equal,
/// so the input decides.
fn takes_pixels(op: &Pool2d, context: &Context) -> Result<bool> {
    let is_pixel = || op.pool_shape().map(|shape| shape.output() == [1, 1]);
    let lies = is_channels_last(&op.input) && !op.input.is_contiguous();
    Ok(context.order == Some(CHANNELS_LAST) || (lies && is_pixel()?))
}

/// Pools with a channels-last output; the input may have any layout.
fn pool_pixels(op: &Pool2d, context: &mut Context) -> Result<Value> {
    let (shape, made) = (op.pool_shape()?, op.output_shape()?);
    let made = match context.order {
        Some(order) => Shape::new(order.map(|axis| made[axis]))?,
        None => made,
    };
    let turned = op.input.permute(&CHANNELS_LAST)?;
    let input = context.contiguous::<f32>(&turned)?;
    let mut output = context.output::<f32>(made)?;
    pool2d_pixels(context.simd, &context.team, &shape, op.kind, &input, &mut output);
    output.into_tensor().map(Value::Tensor)
}
