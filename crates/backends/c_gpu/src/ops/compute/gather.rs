//! Gather: whole rows in the widest possible words, or single elements. Indices on the host are
//! checked before the launch, indices on the device by the kernel.

use panoply_core::op::compute::Gather;
use panoply_core::{Buffer, DType, Error, Result, Tensor, Value};
use panoply_kernels::c::{GATHER, Kernel};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::copies::word;

const BLOCK_THREADS: usize = 256;
const WORD_BYTES_MAX: usize = 16;

pub(crate) fn run(op: &Gather, context: &mut Context) -> Result<Value> {
    let (shape, output_shape, dtype) = (op.input.shape(), op.output_shape()?, op.input.dtype());
    let len = shape[op.axis];
    if matches!(op.indices.buffer(), Buffer::Host(_)) {
        check(&op.indices, len)?;
    }
    let output = context.output(dtype, output_shape)?;
    if output_shape.elements() == 0 {
        return check_device_indices_of_nothing(op, len).map(|()| Value::Tensor(output.into_tensor()));
    }
    let (source, indices) = (context.input(&op.input)?, context.input(&op.indices)?);
    let inner: usize = shape[op.axis + 1..].iter().product();
    let count = if op.elementwise { op.indices.shape()[op.axis] } else { op.indices.elements() };
    let mut bytes = dtype.size_bytes();
    if !op.elementwise {
        let run = inner * bytes;
        while bytes < WORD_BYTES_MAX && run.is_multiple_of(bytes * 2) && source.is_multiple_of(bytes as u64 * 2) {
            bytes *= 2;
        }
    }
    let row_words = inner * dtype.size_bytes() / bytes;
    let words = output_shape.elements() * dtype.size_bytes() / bytes;
    let complaint = context.complaint(describe, len as u64)?;
    let kernel = Kernel::new(GATHER, "gather").word("T", word(bytes)).dtype("I", op.indices.dtype());
    let mut arguments = Arguments::new()
        .address(output.address)
        .address(source)
        .address(indices)
        .u64(words as u64)
        .size(count)
        .size(row_words)
        .size(len)
        .u32(u32::from(op.elementwise))
        .address(complaint);
    let launch = context.blocks(words, BLOCK_THREADS, 2);
    context.launch(&kernel, launch, &mut arguments)?;
    Ok(Value::Tensor(output.into_tensor()))
}

/// With an empty output no kernel checks the indices. On an axis without elements every index is
/// out of range.
fn check_device_indices_of_nothing(op: &Gather, len: usize) -> Result<()> {
    if len == 0 && op.indices.elements() > 0 {
        return Err(out_of_range(0, len));
    }
    Ok(())
}

fn check(indices: &Tensor, len: usize) -> Result<()> {
    let is_bad = |index: &i64| !(-(len as i64)..len as i64).contains(index);
    let bad = match indices.dtype() {
        DType::I32 => indices.to_vec::<i32>()?.into_iter().map(i64::from).find(is_bad),
        _ => indices.to_vec::<u32>()?.into_iter().map(i64::from).find(is_bad),
    };
    bad.map_or(Ok(()), |index| Err(out_of_range(index, len)))
}

/// Decodes the kernel's word: the highest bit marks an error, the others are the index. The detail
/// is the axis length.
fn describe(word: u64, len: u64) -> Error {
    out_of_range((word << 1) as i64 >> 1, len as usize)
}

fn out_of_range(index: i64, len: usize) -> Error {
    Error::invalid("gather: index", format!("an index into {len}"), index)
}
