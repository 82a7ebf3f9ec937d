//! LayerNorm: the normalised axes as one line.

use panoply_core::op::compute::LayerNorm;
use panoply_core::{DType, Result, Tensor};
use panoply_kernels::wgsl::{Kernel, RowForm, RowKernel, RowOp};

use super::softmax::{form, groups};
use super::{Extents, empty, no_f64, slabs_fit};
use crate::context::Context;
use crate::driver::Driver;
use crate::pieces::in_slabs;
use crate::profile::Profile;

pub(crate) fn support(profile: &Profile, op: &LayerNorm) -> Result<(), String> {
    no_f64(op.input.dtype(), "layernorm")?;
    let axis: usize = op.row_dims().map_err(|error| error.to_string())?.iter().product();
    let outer = op.input.elements() / axis.max(1);
    slabs_fit(profile, outer, &[&op.input], (op.input.elements(), DType::F32))
}

pub(crate) fn run<D: Driver>(op: &LayerNorm, context: &mut Context<D>) -> Result<Tensor> {
    let (dtype, shape) = (op.input.dtype(), op.output_shape());
    if shape.elements() == 0 {
        return empty(dtype, shape);
    }
    let axis: usize = op.row_dims()?.iter().product();
    let extents = Extents { outer: shape.elements() / axis, axis, inner: 1 };
    let input = context.input(&op.input)?;
    let weight = op.weight.as_ref().map(|weight| context.input(weight)).transpose()?;
    let bias = op.bias.as_ref().map(|bias| context.input(bias)).transpose()?;
    let offset = |addend: &Option<crate::operand::Operand<D>>| addend.as_ref().map_or(0, |addend| addend.start());
    let aligned = offset(&weight).is_multiple_of(4) && offset(&bias).is_multiple_of(4);
    let row_op = RowOp::LayerNorm { rms: op.is_rms, weight: weight.is_some(), bias: bias.is_some() };
    let carriers = context.carriers(dtype, shape)?;
    let epsilon = (op.epsilon as f32).to_bits();
    in_slabs(&input, &carriers, extents.outer, context, &mut |input, output, slabs, context| {
        let extents = Extents { outer: slabs.len(), ..extents };
        let form = match form(input, extents, context) {
            RowForm::Cached { .. } | RowForm::Subgroup { .. } if !aligned => RowForm::Cooperative,
            form => form,
        };
        let kernel = RowKernel { dtype, op: row_op, form };
        let [outer, axis, inner] = extents.params();
        let params = [outer, axis, inner, input.start(), epsilon, offset(&weight), offset(&bias)];
        let reads: Vec<_> = std::iter::once(input).chain(&weight).chain(&bias).collect();
        context.run(&Kernel::Rows(kernel), &[output], &reads, &params, groups(form, extents))
    })?;
    context.finish_as(carriers, dtype)
}
