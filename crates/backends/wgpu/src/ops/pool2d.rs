//! Pool2d: one kernel.

use panoply_core::op::compute::Pool2d;
use panoply_core::{Result, Tensor};
use panoply_kernels::wgsl::{Kernel, PoolKernel};

use super::empty;
use crate::context::{Context, groups_for};

/// Positions in a padded image are 32-bit integers in kernels.
const POSITION_MAX: usize = i32::MAX as usize / 2;

pub(crate) fn support(op: &Pool2d) -> Result<(), String> {
    let shape = op.pool_shape().map_err(|error| error.to_string())?;
    let largest = (0..2).map(|axis| shape.input[axis] + shape.padding[axis] + shape.padding[axis + 2]).max();
    if largest.is_some_and(|size| size > POSITION_MAX) || shape.kernel.iter().any(|size| *size > POSITION_MAX) {
        return Err(format!("windows over more than {POSITION_MAX} pixels a side"));
    }
    Ok(())
}

pub(crate) fn run(op: &Pool2d, context: &mut Context) -> Result<Tensor> {
    let (sizes, shape) = (op.pool_shape()?, op.output_shape()?);
    let dtype = op.input.dtype();
    if shape.elements() == 0 {
        return empty(dtype, shape);
    }
    let input = context.input(&op.input)?;
    let carriers = context.carriers(dtype, shape)?;
    let [height, width] = sizes.output();
    // A stride beyond the image is never taken a second time.
    let stride = sizes.stride.map(|step| step.min(POSITION_MAX));
    let params = [
        sizes.batch * sizes.channels,
        sizes.input[0],
        sizes.input[1],
        sizes.kernel[0],
        sizes.kernel[1],
        stride[0],
        stride[1],
        height,
        width,
        sizes.padding[0],
        sizes.padding[1],
        input.offset,
    ];
    let kernel = Kernel::Pool(PoolKernel { dtype, kind: op.kind });
    let groups = groups_for(shape.elements());
    context.run(&kernel, &[&carriers], &[&input], &params.map(|size| size as u32), groups)?;
    context.finish_as(carriers, dtype)
}
