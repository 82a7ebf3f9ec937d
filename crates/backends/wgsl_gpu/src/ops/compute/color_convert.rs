//! ColorConvert: one kernel for each pair of formats; equal formats are copied. Large batches are
//! cut into groups of images, or into rows if neither format has subsampled chroma.

use panoply_core::op::compute::{ColorConvert, ColorRange};
use panoply_core::{Error, Result, Tensor};
use panoply_kernels::wgsl::{ColorKernel, Kernel};

use super::{empty, slabs_fit, wide};
use crate::context::{Context, groups_for};
use crate::driver::Driver;
use crate::pieces::in_slabs;
use crate::profile::Profile;

/// Checks that the images are within reach, all at once or some at a time.
pub(crate) fn support(profile: &Profile, op: &ColorConvert) -> Result<(), String> {
    let described = || Ok((op.output_shape()?, slabs(op)?));
    let (shape, [slabs, ..]) = described().map_err(|error: Error| error.to_string())?;
    if op.from == op.to {
        return Ok(());
    }
    slabs_fit(profile, slabs, &[&op.input], (shape.elements(), wide(op.input.dtype())))
}

/// The units that can be converted separately: their number, and the height and width of each.
fn slabs(op: &ColorConvert) -> Result<[usize; 3]> {
    let (images, height, width) = op.sizes()?;
    let by_rows = !op.from.is_yuv420() && !op.to.is_yuv420();
    Ok(if by_rows { [images * height, 1, width] } else { [images, height, width] })
}

pub(crate) fn run<D: Driver>(op: &ColorConvert, context: &mut Context<D>) -> Result<Tensor> {
    let (shape, dtype) = (op.output_shape()?, op.input.dtype());
    if shape.elements() == 0 {
        return empty(dtype, shape);
    }
    let input = context.input(&op.input)?;
    if op.from == op.to {
        let output = context.output(dtype, shape)?;
        context.copy_elements(&input, &output)?;
        return context.finish(output);
    }
    let [images, height, width] = slabs(op)?;
    let (black, luma_span, chroma_span) = match op.range {
        ColorRange::Limited => (16.0, 219.0 / 255.0, 224.0 / 255.0),
        ColorRange::Full => (0.0, 1.0, 1.0),
    };
    let [red, green, blue] = op.standard.weights();
    let figures = [red, green, blue, black, luma_span, chroma_span].map(|figure: f64| (figure as f32).to_bits());
    let carriers = context.carriers(dtype, shape)?;
    let kernel = Kernel::Color(ColorKernel { dtype, from: op.from, to: op.to });
    in_slabs(&input, &carriers, images, context, &mut |input, output, images, context| {
        let mut params = [images.len(), height, width, input.offset].map(|size| size as u32).to_vec();
        params.extend(figures);
        context.run(&kernel, &[output], &[input], &params, groups_for(output.elements()))
    })?;
    context.finish_as(carriers, dtype)
}
