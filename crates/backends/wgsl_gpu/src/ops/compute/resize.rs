//! Resize: one kernel; an image that keeps its size is copied. Large inputs are cut into groups of
//! planes.

use panoply_core::op::compute::Resize;
use panoply_core::{Error, Result, Tensor};
use panoply_kernels::wgsl::{Kernel, ResizeKernel};

use super::{empty, slabs_fit, wide};
use crate::context::{Context, groups_for};
use crate::driver::Driver;
use crate::pieces::in_slabs;
use crate::profile::Profile;

/// Kernels compute twice the product of an axis' two sizes as a 32-bit integer.
const PRODUCT_MAX: usize = u32::MAX as usize / 4;

pub(crate) fn support(profile: &Profile, op: &Resize) -> Result<(), String> {
    let described = || Ok((op.height_axis()?, op.output_shape()?));
    let (axis, shape) = described().map_err(|error: Error| error.to_string())?;
    let (height, width) = (op.input.shape()[axis], op.input.shape()[axis + 1]);
    for (input, output) in [(height, op.height), (width, op.width)] {
        if input.saturating_mul(output.saturating_add(1)) > PRODUCT_MAX {
            return Err(format!("an axis from {input} to {output} pixels; their product must be below {PRODUCT_MAX}"));
        }
    }
    if shape == *op.input.shape() {
        return Ok(());
    }
    slabs_fit(profile, shape[..axis].iter().product(), &[&op.input], (shape.elements(), wide(op.input.dtype())))
}

pub(crate) fn run<D: Driver>(op: &Resize, context: &mut Context<D>) -> Result<Tensor> {
    let (shape, dtype) = (op.output_shape()?, op.input.dtype());
    if shape.elements() == 0 {
        return empty(dtype, shape);
    }
    let input = context.input(&op.input)?;
    if shape == *op.input.shape() {
        let output = context.output(dtype, shape)?;
        context.copy_elements(&input, &output)?;
        return context.finish(output);
    }
    let axis = op.height_axis()?;
    let dims = op.input.shape();
    let planes: usize = dims[..axis].iter().product();
    let channels: usize = dims[axis + 2..].iter().product();
    let carriers = context.carriers(dtype, shape)?;
    let kernel = Kernel::Resize(ResizeKernel { dtype, mode: op.mode });
    in_slabs(&input, &carriers, planes, context, &mut |input, output, planes, context| {
        let params = [planes.len(), dims[axis], dims[axis + 1], op.height, op.width, channels, input.offset];
        let groups = groups_for(output.elements());
        context.run(&kernel, &[output], &[input], &params.map(|size| size as u32), groups)
    })?;
    context.finish_as(carriers, dtype)
}
