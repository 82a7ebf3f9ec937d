//! Transpose: a strided view written out contiguously.

use panoply_core::op::compute::Transpose;
use panoply_core::{Error, Result, Tensor, Value};

use crate::context::Context;
use crate::transpose::{Strided, copy_strided_at};

pub(crate) fn run(op: &Transpose, context: &mut Context) -> Result<Value> {
    copy_view(&op.view()?, context).map(Value::Tensor)
}

/// A contiguous copy of any view, for every element type.
pub(crate) fn copy_view(view: &Tensor, context: &mut Context) -> Result<Tensor> {
    let mut output = context.output_bytes(view.dtype(), *view.shape())?;
    copy_into(view, context, output.bytes_mut())?;
    output.into_tensor()
}

/// Writes a view's elements one after the other.
pub(crate) fn copy_into(view: &Tensor, context: &Context, out: &mut [u8]) -> Result<()> {
    let strided = Strided {
        bytes: view.host_bytes()?,
        element_bytes: view.dtype().size_bytes(),
        dims: view.shape(),
        strides: view.strides(),
        offset: view.offset(),
    };
    copy_strided_at(context.simd, &context.team, &strided, out)
        .map_err(|error| Error::invalid("view", "one that lies inside its buffer", error))
}
