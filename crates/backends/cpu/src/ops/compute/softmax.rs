//! Softmax: maps the tensor's axis to a kernel over contiguous slices.

use panoply_core::op::compute::Softmax;
use panoply_core::{DType, Error, Result, Value, bf16, f16};

use crate::context::Context;
use crate::extents::Extents;
use crate::ops::compute::search::contiguous;
use crate::softmax::{Soft, softmax};

pub(crate) fn run(op: &Softmax, context: &mut Context) -> Result<Value> {
    match op.input.dtype() {
        DType::F32 => soften::<f32>(op, context),
        DType::F16 => soften::<f16>(op, context),
        DType::BF16 => soften::<bf16>(op, context),
        DType::F64 => soften::<f64>(op, context),
        got => Err(Error::DTypeUnsupported { what: "softmax", expected: "f32, f16, bf16 or f64", got }),
    }
}

fn soften<T: Soft>(op: &Softmax, context: &mut Context) -> Result<Value> {
    let input = contiguous(&op.input, context)?;
    let extents = Extents::around(op.input.shape(), op.axis);
    let mut output = context.output::<T>(op.output_shape())?;
    softmax(context.simd, &context.team, input.as_slice::<T>()?, extents, op.is_log, &mut output);
    output.into_tensor().map(Value::Tensor)
}
