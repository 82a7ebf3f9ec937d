//! Resize: NCHW as planes of one channel, NHWC as planes of interleaved channels.

use panoply_core::op::compute::{Resize, ResizeMode};
use panoply_core::{DType, Element, Error, Result, Value, bf16, f16};

use crate::context::Context;
use crate::pixel::Pixel;
use crate::resize::{Sizes, area, bilinear, nearest};

pub(crate) fn run(op: &Resize, context: &mut Context) -> Result<Value> {
    match op.input.dtype() {
        DType::F32 => resize::<f32>(op, context),
        DType::F16 => resize::<f16>(op, context),
        DType::BF16 => resize::<bf16>(op, context),
        DType::U8 => resize::<u8>(op, context),
        got => Err(Error::DTypeUnsupported { what: "resize", expected: "f32, f16, bf16 or u8", got }),
    }
}

fn resize<T: Element + Pixel>(op: &Resize, context: &mut Context) -> Result<Value> {
    let (shape, axis) = (op.input.shape(), op.height_axis()?);
    let sizes = Sizes {
        planes: shape[..axis].iter().product(),
        channels: shape[axis + 2..].iter().product(),
        input: (shape[axis], shape[axis + 1]),
        output: (op.height, op.width),
    };
    let input = context.contiguous::<T>(&op.input)?;
    let mut output = context.output::<T>(op.output_shape()?)?;
    match op.mode {
        ResizeMode::Nearest => nearest(context.simd, &context.team, &sizes, &input, &mut output),
        ResizeMode::Bilinear => bilinear(context.simd, &context.team, &sizes, &input, &mut output),
        ResizeMode::Area => area(context.simd, &context.team, &sizes, &input, &mut output),
    }
    output.into_tensor().map(Value::Tensor)
}
