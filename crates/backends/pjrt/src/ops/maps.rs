//! Map: an elementwise expression.

use panoply_core::op::compute::{Activation, Map};
use panoply_core::{DType, Error, Result, Tensor, expr::Expr};

use super::Emit;
use crate::hlo::{self, Value, Writer};

pub(super) fn map(emit: &mut Emit, op: &Map) -> Result<Value> {
    let dims = op.output_shape()?.to_vec();
    let dtypes: Vec<DType> = op.inputs().map(Tensor::dtype).collect();
    let inputs = op.inputs().map(|input| stretched(emit, input, &dims)).collect::<Result<Vec<Value>>>()?;
    hlo::expression(&mut emit.writer, op.program()?, &dtypes, &inputs, &dims)
}

/// A tensor in its computation type, broadcast to `dims`.
pub(super) fn stretched(emit: &mut Emit, tensor: &Tensor, dims: &[usize]) -> Result<Value> {
    let value = emit.number(tensor)?;
    Ok(emit.writer.stretch(&value, dims))
}

/// Applies an activation to a value in its computation type.
pub(super) fn activate(writer: &mut Writer, activation: Activation, value: &Value) -> Result<Value> {
    let hlo::Element::Of(dtype) = value.element else {
        return Err(Error::invalid("an activation", "numbers", "truths"));
    };
    let program = activation.apply(Expr::input(0)).finish()?;
    hlo::expression(writer, &program, &[dtype], std::slice::from_ref(value), &value.dims)
}
