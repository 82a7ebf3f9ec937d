//! TopK: maps the tensor's axis to lanes of a contiguous slice.

use panoply_core::op::compute::TopK;
use panoply_core::{DType, Error, Result, Value, bf16, f16};

use crate::context::Context;
use crate::ops::compute::search::contiguous;
use crate::topk::order::RankedElement;
use crate::topk::{Lanes, top_k};

pub(crate) fn run(op: &TopK, context: &mut Context) -> Result<Value> {
    match op.input.dtype() {
        DType::F32 => choose::<f32>(op, context),
        DType::F16 => choose::<f16>(op, context),
        DType::BF16 => choose::<bf16>(op, context),
        DType::F64 => choose::<f64>(op, context),
        DType::I32 => choose::<i32>(op, context),
        DType::U32 => choose::<u32>(op, context),
        DType::I8 => choose::<i8>(op, context),
        DType::U8 => choose::<u8>(op, context),
        got @ DType::Complex64 => Err(Error::DTypeUnsupported { what: "topk", expected: "a type with an order", got }),
    }
}

fn choose<T: RankedElement>(op: &TopK, context: &mut Context) -> Result<Value> {
    let shape = op.output_shape()?;
    let dims = op.input.shape().dims();
    let lanes = Lanes {
        outer: dims[..op.axis].iter().product(),
        len: dims[op.axis],
        inner: dims[op.axis + 1..].iter().product(),
    };
    let input = contiguous(&op.input, context)?;
    let mut values = context.output::<T>(shape)?;
    let mut indices = context.output::<u32>(shape)?;
    top_k(&context.team, context.simd, input.as_slice::<T>()?, lanes, op.k, op.largest, &mut values, &mut indices);
    Ok(Value::Pair(values.into_tensor()?, indices.into_tensor()?))
}
