//! Transpose: copies a view's elements to contiguous memory.

use panoply_core::op::compute::Transpose;
use panoply_core::{Result, Value};

use crate::context::Context;

pub(crate) fn run(op: &Transpose, context: &mut Context) -> Result<Value> {
    let turned = op.view()?;
    let view = context.view(&turned)?;
    let output = context.output(turned.dtype(), *turned.shape())?;
    context.copy_view(output.address, &view, turned.dtype(), turned.elements())?;
    Ok(Value::Tensor(output.into_tensor()))
}
