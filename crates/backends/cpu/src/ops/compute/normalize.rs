//! Normalize: supports every pair of element types, fused.

use panoply_core::op::compute::{ImageLayout, Normalize};
use panoply_core::{DType, Element, Error, Result, Value, bf16, f16};

use crate::context::Context;
use crate::normalize::{Affine, normalize};
use crate::pixel::Pixel;

pub(crate) fn run(op: &Normalize, context: &mut Context) -> Result<Value> {
    match op.input.dtype() {
        DType::U8 => from::<u8>(op, context),
        DType::F32 => from::<f32>(op, context),
        DType::F16 => from::<f16>(op, context),
        DType::BF16 => from::<bf16>(op, context),
        got => Err(Error::DTypeUnsupported { what: "normalize", expected: "u8, f32, f16 or bf16", got }),
    }
}

fn from<I: Element + Pixel>(op: &Normalize, context: &mut Context) -> Result<Value> {
    match op.output {
        DType::F32 => from_to::<I, f32>(op, context),
        DType::F16 => from_to::<I, f16>(op, context),
        DType::BF16 => from_to::<I, bf16>(op, context),
        got => Err(Error::DTypeUnsupported { what: "normalize: output", expected: "f32, f16 or bf16", got }),
    }
}

fn from_to<I: Element + Pixel, O: Element + Pixel>(op: &Normalize, context: &mut Context) -> Result<Value> {
    let axis = op.channel_axis()?;
    let inner = match op.layout {
        ImageLayout::Nchw => op.input.shape()[axis + 1..].iter().product(),
        ImageLayout::Nhwc => 1,
    };
    let affine = Affine::new(op.scale, &op.mean, &op.std);
    let input = context.contiguous::<I>(&op.input)?;
    let mut output = context.output::<O>(op.output_shape())?;
    normalize(context.simd, &context.team, &affine, inner, &input, &mut output);
    output.into_tensor().map(Value::Tensor)
}
