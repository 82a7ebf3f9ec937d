//! Pool2d: one kernel. Large inputs are cut into groups of planes.

use panoply_core::op::compute::Pool2d;
use panoply_core::{DType, Result, Tensor};
use panoply_kernels::wgsl::{Kernel, PoolKernel};

use super::{empty, no_f64, slabs_fit};
use crate::context::{Context, groups_for};
use crate::driver::Driver;
use crate::pieces::in_slabs;
use crate::profile::Profile;

/// Positions in a padded image are 32-bit integers in kernels.
const POSITION_MAX: usize = i32::MAX as usize / 2;

pub(crate) fn support(profile: &Profile, op: &Pool2d) -> Result<(), String> {
    no_f64(op.input.dtype(), "pool2d")?;
    let shape = op.pool_shape().map_err(|error| error.to_string())?;
    let largest = (0..2).map(|axis| shape.input[axis] + shape.padding[axis] + shape.padding[axis + 2]).max();
    if largest.is_some_and(|size| size > POSITION_MAX) || shape.kernel.iter().any(|size| *size > POSITION_MAX) {
        return Err(format!("windows over more than {POSITION_MAX} pixels a side"));
    }
    let (planes, [height, width]) = (shape.batch * shape.channels, shape.output());
    slabs_fit(profile, planes, &[&op.input], (planes * height * width, DType::F32))
}

pub(crate) fn run<D: Driver>(op: &Pool2d, context: &mut Context<D>) -> Result<Tensor> {
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
    let kernel = Kernel::Pool(PoolKernel { dtype, kind: op.kind });
    in_slabs(&input, &carriers, sizes.batch * sizes.channels, context, &mut |input, output, planes, context| {
        let params = [
            planes.len(),
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
        let groups = groups_for(output.elements());
        context.run(&kernel, &[output], &[input], &params.map(|size| size as u32), groups)
    })?;
    context.finish_as(carriers, dtype)
}
