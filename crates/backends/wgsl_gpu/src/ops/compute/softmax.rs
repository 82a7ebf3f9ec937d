//! Softmax: chooses the form of the kernel for the shape of the lines.

use panoply_core::op::compute::Softmax;
use panoply_core::{DType, Result, Tensor};
use panoply_kernels::wgsl::{Kernel, RowForm, RowKernel, RowOp};

use super::{Extents, empty, no_f64, slabs_fit};
use crate::context::{Context, groups_for};
use crate::driver::Driver;
use crate::operand::Operand;
use crate::pieces::in_slabs;
use crate::profile::Profile;

/// The most vectors of four that an invocation keeps in registers.
const CHUNKS_MAX: usize = 8;
/// Elements of a line that a workgroup keeps for each of these vectors.
const CHUNK: usize = 1024;

/// Checks that lines are within reach, all at once or some at a time.
pub(crate) fn support(profile: &Profile, op: &Softmax) -> Result<(), String> {
    no_f64(op.input.dtype(), "softmax")?;
    let extents = Extents::new(op.input.shape(), op.axis);
    slabs_fit(profile, extents.outer, &[&op.input], (op.input.elements(), DType::F32))
}

pub(crate) fn run<D: Driver>(op: &Softmax, context: &mut Context<D>) -> Result<Tensor> {
    let (dtype, shape) = (op.input.dtype(), op.output_shape());
    if shape.elements() == 0 {
        return empty(dtype, shape);
    }
    let input = context.input(&op.input)?;
    let extents = Extents::new(&shape, op.axis);
    let carriers = context.carriers(dtype, shape)?;
    in_slabs(&input, &carriers, extents.outer, context, &mut |input, output, slabs, context| {
        let extents = Extents { outer: slabs.len(), ..extents };
        let form = form(input, extents, context);
        let kernel = RowKernel { dtype, op: RowOp::Softmax { log: op.is_log }, form };
        let [outer, axis, inner] = extents.params();
        let params = [outer, axis, inner, input.start(), 0, 0, 0];
        context.run(&Kernel::Rows(kernel), &[output], &[input], &params, groups(form, extents))
    })?;
    context.finish_as(carriers, dtype)
}

/// How lines of these extents are spread over a device.
pub(super) fn form<D: Driver>(input: &Operand<D>, extents: Extents, context: &Context<D>) -> RowForm {
    let Extents { axis, inner, .. } = extents;
    let whole = inner == 1 && input.dtype.size_bytes() == 4 && axis.is_multiple_of(4) && input.offset.is_multiple_of(4);
    let lanes = context.profile.subgroup_lanes.unwrap_or(0);
    let by_subgroup = 4 * usize::from(lanes);
    match () {
        () if whole && axis >= by_subgroup && axis <= by_subgroup * CHUNKS_MAX && extents.lines() >= 64 => {
            RowForm::Subgroup { chunks: axis.div_ceil(by_subgroup) as u8, lanes }
        }
        () if whole && (256..=CHUNKS_MAX * CHUNK).contains(&axis) => {
            RowForm::Cached { chunks: axis.div_ceil(CHUNK) as u8 }
        }
        () if axis <= 32 || (inner >= 32 && extents.lines() >= 2048) => RowForm::Serial,
        () => RowForm::Cooperative,
    }
}

/// Number of workgroups for a form.
pub(super) fn groups(form: RowForm, extents: Extents) -> u64 {
    match form {
        RowForm::Serial => groups_for(extents.lines()),
        RowForm::Cooperative | RowForm::Cached { .. } => extents.lines() as u64,
        RowForm::Subgroup { lanes, .. } => groups_for(extents.lines() * usize::from(lanes)),
    }
}
