//! Pool2d: a thread for each window, or a warp where windows are large; one launch.

use panoply_core::op::compute::{Pool2d, PoolKind};
use panoply_core::{Result, Value};
use panoply_kernels::c::{Kernel, POOL};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::Launch;

const THREADS: usize = 256;
/// From this many numbers on, a warp shares a window.
const SHARED_WINDOW_ELEMENTS: usize = 128;

pub(crate) fn run(op: &Pool2d, context: &mut Context) -> Result<Value> {
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
    let [out_height, out_width] = shape.output();
    // A stride beyond the image leaves one window, at its beginning.
    let stride = shape.stride.map(|stride| stride.min(i32::MAX as usize));
    let windows = [
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
    .map(|size| size as u64);
    let mut arguments = Arguments::new().address(input).address(output.address).u64(outputs as u64).structure(&windows);
    let blocks = (outputs * lanes).div_ceil(THREADS);
    context.launch(&kernel, Launch::new(blocks, THREADS), &mut arguments)?;
    Ok(Value::Tensor(output.into_tensor()))
}
