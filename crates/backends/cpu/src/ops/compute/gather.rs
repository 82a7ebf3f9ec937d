//! Gather: checks the indices first, then copies bytes regardless of the element type.

use std::borrow::Cow;

use panoply_core::op::compute::Gather;
use panoply_core::{DType, Error, Result, Tensor, Value};

use crate::context::Context;
use crate::gather::{Indices, OutOfRange, take, take_along};
use crate::ops::compute::transpose::copy_view;

pub(crate) fn run(op: &Gather, context: &mut Context) -> Result<Value> {
    let len = op.input.shape()[op.axis];
    if op.output_shape()?.elements() == 0 {
        return nothing(op, len, context);
    }
    match op.indices.dtype() {
        DType::U32 => {
            let indices = context.contiguous::<u32>(&op.indices)?;
            gather(op, &Indices::unsigned(&indices, len).map_err(refuse)?, context)
        }
        DType::I32 => {
            let indices = context.contiguous::<i32>(&op.indices)?;
            gather(op, &Indices::signed(&indices, len).map_err(refuse)?, context)
        }
        got => Err(Error::DTypeUnsupported { what: "gather: indices", expected: "i32 or u32", got }),
    }
}

/// Handles an output without elements. The indices are still checked, and the axis may have any
/// length.
fn nothing(op: &Gather, len: usize, context: &mut Context) -> Result<Value> {
    let check = |(position, index): (usize, i64)| {
        let from_start = if index < 0 { i128::from(index) + len as i128 } else { i128::from(index) };
        let is_inside = (0..len as i128).contains(&from_start);
        if is_inside { Ok(()) } else { Err(refuse(OutOfRange { position, index, len })) }
    };
    match op.indices.dtype() {
        DType::I32 => {
            let indices = context.contiguous::<i32>(&op.indices)?;
            indices.iter().map(|index| i64::from(*index)).enumerate().try_for_each(check)?;
        }
        _ => {
            let indices = context.contiguous::<u32>(&op.indices)?;
            indices.iter().map(|index| i64::from(*index)).enumerate().try_for_each(check)?;
        }
    }
    context.output_bytes(op.input.dtype(), op.output_shape()?)?.into_tensor().map(Value::Tensor)
}

fn gather(op: &Gather, indices: &Indices<'_>, context: &mut Context) -> Result<Value> {
    let shape = op.input.shape();
    let size = op.input.dtype().size_bytes();
    let outer: usize = shape[..op.axis].iter().product();
    let inner: usize = shape[op.axis + 1..].iter().product();
    let input =
        if op.input.is_contiguous() { Cow::Borrowed(&op.input) } else { Cow::Owned(copy_view(&op.input, context)?) };
    let bytes = contiguous_bytes(&input)?;
    let mut output = context.output_bytes(op.input.dtype(), op.output_shape()?)?;
    if op.elementwise {
        take_along(&context.team, indices, (outer, inner), size, bytes, output.bytes_mut());
    } else {
        take(&context.team, indices, outer, inner * size, bytes, output.bytes_mut());
    }
    output.into_tensor().map(Value::Tensor)
}

/// The bytes of a contiguous tensor's elements.
fn contiguous_bytes(tensor: &Tensor) -> Result<&[u8]> {
    let bytes = tensor.host_bytes()?;
    if tensor.elements() == 0 {
        return Ok(&[]);
    }
    let start = tensor.offset() * tensor.dtype().size_bytes();
    Ok(&bytes[start..start + tensor.len_bytes()])
}

fn refuse(OutOfRange { position, index, len }: OutOfRange) -> Error {
    let expected = match len {
        0 => "none, as the axis is empty".to_owned(),
        len => format!("-{len} to {}", len - 1),
    };
    Error::invalid("gather: index", expected, format!("{index} at position {position}"))
}
