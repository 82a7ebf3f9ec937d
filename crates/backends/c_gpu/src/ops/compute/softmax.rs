//! Softmax: rows in registers, long rows in two passes, other axes column by column.

use panoply_core::op::compute::Softmax;
use panoply_core::{Result, Value};
use panoply_kernels::c::SOFTMAX;

use super::rows::RowSplit;
use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};

/// Blocks per multiprocessor in the passes over long rows.
const BLOCKS_PER_MULTIPROCESSOR: usize = 8;
/// Minimum elements per block.
const CHUNK_MIN: usize = 4096;
/// Minimum adjacent columns per block; `ACROSS` of the kernel.
const ACROSS_MIN: usize = 32;
/// Bytes of a block's partial result: two floats of up to 64 bits.
const STATS_BYTES: usize = 16;

pub(crate) fn run(op: &Softmax, context: &mut Context) -> Result<Value> {
    let shape = op.output_shape();
    let output = context.output(op.input.dtype(), shape)?;
    if shape.elements() > 0 {
        let source = context.input(&op.input)?;
        let inner: usize = shape[op.axis + 1..].iter().product();
        if inner > 1 {
            columns(op, output.address, source, inner, context)?;
        } else {
            rows(op, output.address, source, context)?;
        }
    }
    Ok(Value::Tensor(output.into_tensor()))
}

fn rows(op: &Softmax, target: Address, source: Address, context: &mut Context) -> Result<()> {
    let (dtype, len) = (op.input.dtype(), op.input.shape()[op.axis]);
    let count = op.input.elements() / len;
    let Some(rows) = RowSplit::new(dtype, len, context.driver.properties(), &[target, source]) else {
        return long_rows(op, target, source, context);
    };
    let mut arguments = Arguments::new().address(target).address(source).u64(count as u64);
    arguments = arguments.size(len);
    let kernel = rows.kernel(SOFTMAX, "softmax_rows", "ROWS", dtype).flag("IS_LOG", op.is_log);
    context.launch(&kernel, rows.launch(count), &mut arguments)
}

fn long_rows(op: &Softmax, target: Address, source: Address, context: &mut Context) -> Result<()> {
    let (dtype, len) = (op.input.dtype(), op.input.shape()[op.axis]);
    let count = op.input.elements() / len;
    let rows = RowSplit::streamed(dtype, len, context.warp_lanes(), &[target, source]);
    let busy = context.multiprocessors() * BLOCKS_PER_MULTIPROCESSOR;
    let wanted = (busy / count).clamp(1, len.div_ceil(CHUNK_MIN));
    let chunk = len.div_ceil(wanted).next_multiple_of(rows.group * rows.vector);
    let splits = len.div_ceil(chunk);
    let partials = context.workspace(count * splits * STATS_BYTES)?;
    let launch = Launch::new(count * splits, rows.group);
    let mut arguments = Arguments::new().address(partials).address(source).u64(len as u64);
    arguments = arguments.size(splits).u64(chunk as u64);
    context.launch(&rows.kernel(SOFTMAX, "row_stats", "LONG_ROWS", dtype), launch, &mut arguments)?;
    let mut arguments = Arguments::new().address(target).address(source).address(partials).u64(len as u64);
    arguments = arguments.size(splits).u64(chunk as u64).u32(u32::from(op.is_log));
    context.launch(&rows.kernel(SOFTMAX, "row_apply", "LONG_ROWS", dtype), launch, &mut arguments)
}

fn columns(op: &Softmax, target: Address, source: Address, inner: usize, context: &mut Context) -> Result<()> {
    let (dtype, len) = (op.input.dtype(), op.input.shape()[op.axis]);
    let outer = op.input.elements() / (len * inner);
    let tiles = inner.div_ceil(context.warp_lanes().max(ACROSS_MIN));
    // Elements are read individually, so no alignment is needed.
    let rows = RowSplit { vector: 1, ..RowSplit::streamed(dtype, len, context.warp_lanes(), &[]) };
    let mut arguments = Arguments::new().address(target).address(source).u64(len as u64).u64(inner as u64);
    arguments = arguments.size(tiles).u32(u32::from(op.is_log));
    let launch = Launch::new(outer * tiles, rows.group);
    context.launch(&rows.kernel(SOFTMAX, "softmax_columns", "COLUMNS", dtype), launch, &mut arguments)
}
