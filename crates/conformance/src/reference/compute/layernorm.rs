//! LayerNorm: mean and variance in f64, row by row.

use panoply_core::op::compute::LayerNorm;
use panoply_core::{Result, Tensor, Value};

use crate::values::{tensor_of, to_f64};

pub(super) fn run(op: &LayerNorm) -> Result<Value> {
    let len: usize = op.row_dims()?.iter().product();
    let parameters = |tensor: &Option<Tensor>, otherwise: f64| match tensor {
        Some(tensor) => to_f64(tensor),
        None => Ok(vec![otherwise; len]),
    };
    let (weight, bias) = (parameters(&op.weight, 1.0)?, parameters(&op.bias, 0.0)?);
    let mut numbers = to_f64(&op.input)?;
    for row in numbers.chunks_exact_mut(len.max(1)) {
        let mean = if op.is_rms { 0.0 } else { row.iter().sum::<f64>() / len as f64 };
        let variance = row.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / len as f64;
        for (value, (weight, bias)) in row.iter_mut().zip(weight.iter().zip(&bias)) {
            *value = (*value - mean) / (variance + op.epsilon).sqrt() * weight + bias;
        }
    }
    Ok(Value::Tensor(tensor_of(op.input.dtype(), op.input.shape(), &numbers)))
}
