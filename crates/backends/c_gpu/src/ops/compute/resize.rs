//! Resize: NCHW as planes of one channel, NHWC as planes of interleaved channels; one launch.

use panoply_core::op::compute::{Resize, ResizeMode};
use panoply_core::{Result, Support, Value};
use panoply_kernels::c::{Kernel, RESIZE};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::Launch;

const THREADS: usize = 256;

pub(crate) fn supports(op: &Resize) -> Support {
    match op.height.max(op.width) {
        longest if longest > u32::MAX as usize => Support::No(format!("an image has at most {} rows", u32::MAX)),
        _ => Support::Yes,
    }
}

pub(crate) fn run(op: &Resize, context: &mut Context) -> Result<Value> {
    let (shape, axis) = (op.input.shape(), op.height_axis()?);
    let input = context.input(&op.input)?;
    let output = context.output(op.input.dtype(), op.output_shape()?)?;
    let elements = op.output_shape()?.elements();
    if elements == 0 {
        return Ok(Value::Tensor(output.into_tensor()));
    }
    if op.output_shape()? == *shape {
        context.copy(output.address, input, op.input.len_bytes())?;
        return Ok(Value::Tensor(output.into_tensor()));
    }
    let channels: usize = shape[axis + 2..].iter().product();
    let planes: usize = shape[..axis].iter().product();
    let (mode, rows) = match op.mode {
        ResizeMode::Nearest => ("MODE_NEAREST", 4),
        ResizeMode::Bilinear => ("MODE_BILINEAR", 4),
        ResizeMode::Area => ("MODE_AREA", 1),
    };
    let groups = op.height.div_ceil(rows);
    let threads = planes * groups * op.width * channels;
    let kernel = Kernel::new(RESIZE, "resize")
        .dtype("T", op.input.dtype())
        .flag(mode, true)
        .integer("ROWS", rows as u64)
        .word("INDEX", if fits_u32(op, shape, axis, threads) { "u32" } else { "u64" });
    let mut arguments = Arguments::new()
        .address(input)
        .address(output.address)
        .u64(threads as u64)
        .size(groups)
        .size(channels)
        .size(shape[axis])
        .size(shape[axis + 1])
        .size(op.height)
        .size(op.width);
    context.launch(&kernel, Launch::new(threads.div_ceil(THREADS), THREADS), &mut arguments)?;
    Ok(Value::Tensor(output.into_tensor()))
}

/// Whether the kernel's numbers fit 32 bits: the number of threads, and (2 · output + 1) · input of
/// both axes.
fn fits_u32(op: &Resize, shape: &[usize], axis: usize, threads: usize) -> bool {
    let position = |output: usize, input: usize| (2 * output as u64 + 2).saturating_mul(input as u64);
    let largest = position(op.height, shape[axis]).max(position(op.width, shape[axis + 1])).max(threads as u64);
    u32::try_from(largest).is_ok()
}
