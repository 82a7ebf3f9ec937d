//! Search: maps tensors to the slices of a scan.

use panoply_core::op::compute::Search;
use panoply_core::{DType, Error, Result, Tensor, Value};

use crate::context::Context;
use crate::ops::compute::transpose::copy_view;
use crate::search::{SearchInput, Vectors, search};

pub(crate) fn run(op: &Search, context: &mut Context) -> Result<Value> {
    let shape = op.output_shape()?;
    let rows = contiguous(&op.rows, context)?;
    let queries = contiguous(&op.queries, context)?;
    let filter = op.filter.as_ref().map(|filter| contiguous(filter, context)).transpose()?;
    let row_norms = op.row_norms.as_ref().map(|norms| contiguous(norms, context)).transpose()?;
    let mut ids = context.output::<u32>(shape)?;
    let mut scores = context.output::<f32>(shape)?;
    let input = SearchInput {
        rows: vectors(&rows)?,
        queries: vectors(&queries)?,
        dim: rows.shape()[1],
        row_count: rows.shape()[0],
        query_count: queries.shape()[0],
        metric: op.metric,
        k: op.k,
        filter: filter.as_ref().map(Tensor::as_slice).transpose()?,
        row_norms: row_norms.as_ref().map(Tensor::as_slice).transpose()?,
    };
    search(&context.team, context.simd, &input, &mut ids, &mut scores);
    Ok(Value::Pair(ids.into_tensor()?, scores.into_tensor()?))
}

/// The tensor itself if it is contiguous, else a contiguous copy.
pub(crate) fn contiguous(tensor: &Tensor, context: &mut Context) -> Result<Tensor> {
    if tensor.is_contiguous() { Ok(tensor.clone()) } else { copy_view(tensor, context) }
}

fn vectors(tensor: &Tensor) -> Result<Vectors<'_>> {
    Ok(match tensor.dtype() {
        DType::F32 => Vectors::F32(tensor.as_slice()?),
        DType::F16 => Vectors::F16(tensor.as_slice()?),
        DType::BF16 => Vectors::BF16(tensor.as_slice()?),
        DType::I8 => Vectors::I8(tensor.as_slice()?),
        got => return Err(Error::DTypeUnsupported { what: "search", expected: "f32, f16, bf16 or i8", got }),
    })
}
