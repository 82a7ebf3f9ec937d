//! Normalize: one factor and one summand for each channel.

use panoply_core::op::compute::Normalize;
use panoply_core::{Result, Tensor};
use panoply_kernels::wgsl::{Kernel, NormalizeKernel};

use super::empty;
use crate::context::{Context, groups_for};

pub(crate) fn run(op: &Normalize, context: &mut Context) -> Result<Tensor> {
    let shape = op.output_shape();
    if shape.elements() == 0 {
        return empty(op.output, shape);
    }
    let axis = op.channel_axis()?;
    let inner: usize = shape[axis + 1..].iter().product();
    let lines = op.mean.iter().zip(op.std.iter());
    let affine = lines.flat_map(|(mean, std)| [(op.scale / std).to_bits(), (mean / std).to_bits()]);
    let affine: Vec<u32> = affine.collect();
    let input = context.input(&op.input)?;
    let affine = context.constants(&affine)?;
    let carriers = context.carriers(op.output, shape)?;
    let params = [shape.elements(), shape[axis], inner, input.offset].map(|size| size as u32);
    let kernel = Kernel::Normalize(NormalizeKernel { dtype: op.input.dtype() });
    context.run(&kernel, &[&carriers], &[&input, &affine], &params, groups_for(shape.elements()))?;
    context.finish_as(carriers, op.output)
}
