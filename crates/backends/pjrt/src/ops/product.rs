//! MatMul: the product, its factors and addends, and the activation.

use panoply_core::op::compute::{MatMul, Precision};
use panoply_core::{DType, Result};

use super::Emit;
use super::maps::{activate, stretched};
use crate::hlo::{DotAxes, Element, Value, carrier};

pub(super) fn matmul(emit: &mut Emit, op: &MatMul) -> Result<Value> {
    let shape = op.matmul_shape()?;
    let (dims, rank) = (op.output_shape()?.to_vec(), shape.batch.rank() + 2);
    let sums = carrier(op.output_dtype());
    let (a_axis, b_axis) = (if op.transpose_a { 2 } else { 1 }, if op.transpose_b { 1 } else { 2 });
    let (a, b) = (emit.tensor(&op.a)?, emit.tensor(&op.b)?);
    let precision = precision_of(op.a.dtype(), op.precision);
    let product = if b.rank() == 2 && !op.transpose_a {
        // All batches use the same second matrix, so their rows form one product.
        let axes = DotAxes { batch: &[], a: a.rank() - 1, b: 2 - b_axis };
        emit.writer.dot(&a, &b, &axes, sums.into(), precision)
    } else {
        let (a, b) = (whole(emit, &a, &shape.batch), whole(emit, &b, &shape.batch));
        let batch: Vec<usize> = (0..shape.batch.rank()).collect();
        let axes = DotAxes { batch: &batch, a: rank - a_axis, b: rank - b_axis };
        emit.writer.dot(&a, &b, &axes, sums.into(), precision)
    };
    let mut value = product;
    if op.alpha != 1.0 {
        let alpha = emit.writer.constant(factor(op.alpha, sums), sums.into(), &dims);
        value = emit.writer.like("multiply", &[&value, &alpha]);
    }
    if let Some(added) = addends(emit, op, &dims)? {
        value = emit.writer.like("add", &[&value, &added]);
    }
    activate(&mut emit.writer, op.activation, &value)
}

/// `beta · c + bias`.
fn addends(emit: &mut Emit, op: &MatMul, dims: &[usize]) -> Result<Option<Value>> {
    let mut sum: Option<Value> = None;
    if let Some(c) = &op.c {
        let c = stretched(emit, c, dims)?;
        let beta = emit.writer.constant(factor(op.beta, carrier(op.output_dtype())), c.element, dims);
        sum = Some(emit.writer.like("multiply", &[&c, &beta]));
    }
    if let Some(bias) = &op.bias {
        let bias = stretched(emit, bias, dims)?;
        sum = Some(match sum {
            Some(sum) => emit.writer.like("add", &[&sum, &bias]),
            None => bias,
        });
    }
    Ok(sum)
}

/// Converts a factor to the type of the sums. Integers wrap.
fn factor(number: f32, sums: DType) -> f64 {
    match sums {
        DType::U32 => f64::from(number as i64 as u32),
        DType::I32 => f64::from(number as i64 as i32),
        _ => f64::from(number),
    }
}

/// Broadcasts an operand to all batch axes.
fn whole(emit: &mut Emit, operand: &Value, batch: &[usize]) -> Value {
    let dims = [batch, &operand.dims[operand.rank() - 2..]].concat();
    emit.writer.stretch(operand, &dims)
}

/// The required precision of products. A TPU computes f32 products less precisely by default.
pub(super) fn precision_of(dtype: DType, precision: Precision) -> &'static str {
    match (dtype, precision) {
        (DType::F16 | DType::BF16, _) => "DEFAULT",
        (DType::F32, Precision::Tf32) => "HIGH",
        _ => "HIGHEST",
    }
}

/// A product of values in their computation types, inside another op.
pub(super) fn inner_product(emit: &mut Emit, a: &Value, b: &Value, axes: &DotAxes<'_>) -> Value {
    let (precision, sums) = match a.element {
        Element::Of(dtype) => (precision_of(dtype, Precision::Full), carrier(dtype).into()),
        Element::Bool => ("HIGHEST", Element::F32),
    };
    emit.writer.dot(a, b, axes, sums, precision)
}
