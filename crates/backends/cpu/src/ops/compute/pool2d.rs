//! Pool2d: from the op to the kernels of [`crate::pool2d`].

use panoply_core::op::compute::Pool2d;
use panoply_core::{DType, Element, Error, Result, Value, bf16, f16};

use crate::context::Context;
use crate::conv::Stored;
use crate::pool2d::{Number, pool2d};

pub(crate) fn run(op: &Pool2d, context: &mut Context) -> Result<Value> {
    match op.input.dtype() {
        DType::F32 => pool::<f32>(op, context),
        DType::F64 => pool::<f64>(op, context),
        DType::F16 => pool::<f16>(op, context),
        DType::BF16 => pool::<bf16>(op, context),
        got => Err(Error::DTypeUnsupported { what: "pool2d", expected: "f32, f16, bf16 or f64", got }),
    }
}

fn pool<S: Element + Stored>(op: &Pool2d, context: &mut Context) -> Result<Value>
where
    S::Real: Number,
{
    let shape = op.pool_shape()?;
    let input = context.contiguous::<S>(&op.input)?;
    let mut output = context.output::<S>(op.output_shape()?)?;
    pool2d(context.simd, &context.team, &shape, op.kind, &input, &mut output);
    output.into_tensor().map(Value::Tensor)
}
