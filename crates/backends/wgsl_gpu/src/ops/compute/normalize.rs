//! Normalize: one factor and one summand for each channel. Pieces may begin at any element: kernels
//! get the offset in an image at which their piece begins.

use panoply_core::op::compute::Normalize;
use panoply_core::{Result, Tensor};
use panoply_kernels::wgsl::{Kernel, NormalizeKernel};

use super::empty;
use crate::context::{Context, groups_for};
use crate::driver::Driver;
use crate::operand::{ELEMENTS_MAX, is_seen};
use crate::pieces::in_slabs;
use crate::profile::Profile;

/// Size of a channel's factor and summand.
const AFFINE_BYTES: usize = 8;

pub(crate) fn support(profile: &Profile, op: &Normalize) -> Result<(), String> {
    let axis = op.channel_axis().map_err(|error| error.to_string())?;
    let shape = op.input.shape();
    let (channels, image) = (shape[axis], shape[axis..].iter().product::<usize>());
    let limit = profile.binding_bytes_max;
    if !is_seen(channels, AFFINE_BYTES, limit) {
        let bytes = channels * AFFINE_BYTES;
        return Err(format!("figures of {channels} channels, {bytes} bytes; the adapter binds {limit}"));
    }
    if image > ELEMENTS_MAX {
        return Err(format!("images of {image} elements; kernels count to {ELEMENTS_MAX}"));
    }
    Ok(())
}

pub(crate) fn run<D: Driver>(op: &Normalize, context: &mut Context<D>) -> Result<Tensor> {
    let shape = op.output_shape();
    if shape.elements() == 0 {
        return empty(op.output, shape);
    }
    let axis = op.channel_axis()?;
    let (channels, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let lines = op.mean.iter().zip(op.std.iter());
    let affine = lines.flat_map(|(mean, std)| [(op.scale / std).to_bits(), (mean / std).to_bits()]);
    let affine: Vec<u32> = affine.collect();
    let input = context.input(&op.input)?;
    let affine = context.constants(&affine)?;
    let carriers = context.carriers(op.output, shape)?;
    let kernel = Kernel::Normalize(NormalizeKernel { dtype: op.input.dtype() });
    in_slabs(&input, &carriers, shape.elements(), context, &mut |input, output, elements, context| {
        let first = elements.start % (channels * inner);
        let params = [elements.len(), channels, inner, input.offset, first].map(|size| size as u32);
        context.run(&kernel, &[output], &[input, &affine], &params, groups_for(elements.len()))
    })?;
    context.finish_as(carriers, op.output)
}
