//! ColorConvert: one kernel for each pair of formats; equal formats are copied.

use panoply_core::op::compute::{ColorConvert, ColorRange};
use panoply_core::{Result, Tensor};
use panoply_kernels::wgsl::{ColorKernel, Kernel};

use super::empty;
use crate::context::{Context, groups_for};

pub(crate) fn run(op: &ColorConvert, context: &mut Context) -> Result<Tensor> {
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
    let (images, height, width) = op.sizes()?;
    let (black, luma_span, chroma_span) = match op.range {
        ColorRange::Limited => (16.0, 219.0 / 255.0, 224.0 / 255.0),
        ColorRange::Full => (0.0, 1.0, 1.0),
    };
    let [red, green, blue] = op.standard.weights();
    let figures = [red, green, blue, black, luma_span, chroma_span].map(|figure: f64| (figure as f32).to_bits());
    let mut params = [images, height, width, input.offset].map(|size| size as u32).to_vec();
    params.extend(figures);
    let carriers = context.carriers(dtype, shape)?;
    let kernel = Kernel::Color(ColorKernel { dtype, from: op.from, to: op.to });
    context.run(&kernel, &[&carriers], &[&input], &params, groups_for(shape.elements()))?;
    context.finish_as(carriers, dtype)
}
