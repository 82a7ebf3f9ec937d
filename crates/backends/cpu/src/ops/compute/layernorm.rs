//! LayerNorm: maps the tensor's last axes to a kernel over contiguous rows.

use panoply_core::op::compute::LayerNorm;
use panoply_core::{DType, Error, Result, Tensor, Value, bf16, f16};

use crate::context::Context;
use crate::layernorm::{Norm, Normal, layer_norm};
use crate::ops::compute::search::contiguous;

pub(crate) fn run(op: &LayerNorm, context: &mut Context) -> Result<Value> {
    match op.input.dtype() {
        DType::F32 => normalise::<f32>(op, context),
        DType::F16 => normalise::<f16>(op, context),
        DType::BF16 => normalise::<bf16>(op, context),
        DType::F64 => normalise::<f64>(op, context),
        got => Err(Error::DTypeUnsupported { what: "layernorm", expected: "f32, f16, bf16 or f64", got }),
    }
}

fn normalise<T: Normal>(op: &LayerNorm, context: &mut Context) -> Result<Value> {
    let input = contiguous(&op.input, context)?;
    let mut parameters = |tensor: &Option<Tensor>| tensor.as_ref().map(|t| contiguous(t, context)).transpose();
    let (weight, bias) = (parameters(&op.weight)?, parameters(&op.bias)?);
    let norm = Norm {
        epsilon: op.epsilon,
        centred: !op.is_rms,
        weight: weight.as_ref().map(|tensor| tensor.as_slice::<T>()).transpose()?,
        bias: bias.as_ref().map(|tensor| tensor.as_slice::<T>()).transpose()?,
    };
    let len = op.row_dims()?.iter().product();
    let mut output = context.output::<T>(op.output_shape())?;
    layer_norm(context.simd, &context.team, input.as_slice::<T>()?, len, norm, &mut output);
    output.into_tensor().map(Value::Tensor)
}
