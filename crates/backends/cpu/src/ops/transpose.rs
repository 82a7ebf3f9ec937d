//! Transpose: a strided view written out contiguously.

use panoply_core::op::compute::Transpose;
use panoply_core::{Result, Tensor, Value};

use crate::context::Context;

pub(crate) fn run(op: &Transpose, context: &mut Context) -> Result<Value> {
    copy_view(&op.view()?, context).map(Value::Tensor)
}

/// A contiguous copy of any view, for every element type.
pub(crate) fn copy_view(view: &Tensor, context: &mut Context) -> Result<Tensor> {
    let size = view.dtype().size_bytes();
    let source = view.host_bytes()?;
    let mut output = context.output_bytes(view.dtype(), *view.shape())?;
    for (index, target) in view.indices().zip(output.bytes_mut().chunks_exact_mut(size)) {
        target.copy_from_slice(&source[index * size..(index + 1) * size]);
    }
    output.into_tensor()
}
