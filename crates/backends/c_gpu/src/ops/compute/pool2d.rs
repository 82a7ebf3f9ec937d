//! Pool2d: one thread per window, or one warp per large window; one launch.

use panoply_core::op::compute::{Pool2d, PoolKind, PoolShape};
use panoply_core::{Result, Value};
use panoply_graph::fuse::images::{CHANNELS_LAST, is_channels_last};
use panoply_kernels::c::{Kernel, POOL};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::Launch;

const THREADS: usize = 256;
/// Channels per thread in channels-last images.
const GROUP_CHANNELS: usize = 8;
/// Minimum elements of a window for which a warp shares the window.
const SHARED_WINDOW_ELEMENTS: usize = 128;

pub(crate) fn run(op: &Pool2d, context: &mut Context) -> Result<Value> {
    if context.output_order() == Some(CHANNELS_LAST) {
        return run_turned(op, context);
    }
    let shape = op.pool_shape()?;
    let input = context.input(&op.input)?;
    let output = context.output(op.input.dtype(), op.output_shape()?)?;
    let outputs = op.output_shape()?.elements();
    if outputs == 0 {
        return Ok(Value::Tensor(output.into_tensor()));
    }
    let is_large = shape.kernel[0].saturating_mul(shape.kernel[1]) >= SHARED_WINDOW_ELEMENTS;
    let lanes = if is_large { context.warp_lanes() } else { 1 };
    let kernel = Kernel::new(POOL, "pool")
        .dtype("T", op.input.dtype())
        .word("INDEX", if u32::try_from(outputs).is_ok() { "u32" } else { "u64" })
        .flag("MAX", op.kind == PoolKind::Max)
        .integer("LANES", lanes as u64);
    let windows = windows(op, &shape);
    let mut arguments = Arguments::new().address(input).address(output.address).u64(outputs as u64).structure(&windows);
    let blocks = (outputs * lanes).div_ceil(THREADS);
    context.launch(&kernel, Launch::new(blocks, THREADS), &mut arguments)?;
    Ok(Value::Tensor(output.into_tensor()))
}

/// The same for channels-last input and output. Only 16-bit images with whole groups of channels
/// have this layout.
fn run_turned(op: &Pool2d, context: &mut Context) -> Result<Value> {
    let shape = op.pool_shape()?;
    let input = match context.owns(&op.input) && is_channels_last(&op.input) {
        true => context.view(&op.input)?.address,
        false => context.input(&op.input.permute(&CHANNELS_LAST)?)?,
    };
    let output = context.output(op.input.dtype(), op.output_shape()?)?;
    let groups = shape.channels / GROUP_CHANNELS;
    let outputs = op.output_shape()?.elements() / GROUP_CHANNELS;
    if outputs == 0 {
        return Ok(Value::Tensor(output.into_tensor()));
    }
    let kernel = Kernel::new(POOL, "pool_last")
        .dtype("T", op.input.dtype())
        .word("INDEX", if u32::try_from(outputs).is_ok() { "u32" } else { "u64" })
        .flag("MAX", op.kind == PoolKind::Max)
        .integer("LANES", 1_u64)
        .flag("LAST", true);
    let windows = windows(op, &shape);
    let mut arguments =
        Arguments::new().address(input).address(output.address).u64(outputs as u64).size(groups).structure(&windows);
    context.launch(&kernel, Launch::new(outputs.div_ceil(THREADS), THREADS), &mut arguments)?;
    Ok(Value::Tensor(output.into_tensor()))
}

/// The kernels' `windows` structure.
fn windows(op: &Pool2d, shape: &PoolShape) -> [u64; 11] {
    let [out_height, out_width] = shape.output();
    // A stride beyond the image leaves one window, at the beginning.
    let stride = shape.stride.map(|stride| stride.min(i32::MAX as usize));
    [
        shape.input[0],
        shape.input[1],
        out_height,
        out_width,
        shape.kernel[0],
        shape.kernel[1],
        stride[0],
        stride[1],
        shape.padding[0],
        shape.padding[1],
        usize::from(op.kind == PoolKind::Average { count_padding: true }),
    ]
    .map(|size| size as u64)
}
