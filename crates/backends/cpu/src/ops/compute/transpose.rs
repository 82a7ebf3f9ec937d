//! Transpose: writes a strided view contiguously.

use panoply_core::op::compute::Transpose;
use panoply_core::{Result, Tensor, Value};

use crate::context::Context;

pub(crate) fn run(op: &Transpose, context: &mut Context) -> Result<Value> {
    copy_view(&op.view()?, context).map(Value::Tensor)
}

/// A contiguous copy of any view, for every element type.
pub(crate) fn copy_view(view: &Tensor, context: &mut Context) -> Result<Tensor> {
    let mut output = context.output_bytes(view.dtype(), *view.shape())?;
    context.copy_view(view, output.bytes_mut())?;
    output.into_tensor()
}
