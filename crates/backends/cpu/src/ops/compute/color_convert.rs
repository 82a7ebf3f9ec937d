//! ColorConvert: bytes in every format, floats in the interleaved formats.

use panoply_core::op::compute::ColorConvert;
use panoply_core::{DType, Error, Result, Value};

use crate::color::{Conversion, convert_f32, convert_u8};
use crate::context::Context;

pub(crate) fn run(op: &ColorConvert, context: &mut Context) -> Result<Value> {
    let ColorConvert { from, to, standard, range, .. } = *op;
    let (images, height, width) = op.sizes()?;
    let conversion = Conversion { from, to, standard, range, images, height, width };
    let shape = op.output_shape()?;
    match op.input.dtype() {
        DType::U8 => {
            let input = context.contiguous::<u8>(&op.input)?;
            let mut output = context.output::<u8>(shape)?;
            convert_u8(context.simd, &context.team, &conversion, &input, &mut output);
            output.into_tensor().map(Value::Tensor)
        }
        DType::F32 => {
            let input = context.contiguous::<f32>(&op.input)?;
            let mut output = context.output::<f32>(shape)?;
            convert_f32(context.simd, &context.team, &conversion, &input, &mut output);
            output.into_tensor().map(Value::Tensor)
        }
        got => Err(Error::DTypeUnsupported { what: "color convert", expected: "u8 or f32", got }),
    }
}
