//! Reduce: from a set of axes to lines, and from long lines to chunks.

use panoply_core::op::compute::{Reduce, Reduction};
use panoply_core::{Result, Tensor};
use panoply_kernels::wgsl::{Kernel, ReduceForm, ReduceKernel};

use super::{Extents, empty};
use crate::context::{Context, groups_for};
use crate::operand::Operand;

/// Lines up to this length are reduced by one invocation each.
const SERIAL_AXIS_MAX: usize = 64;
/// Elements behind the axis from which on neighbouring invocations read neighbouring memory.
const SERIAL_INNER_MIN: usize = 32;
/// Invocations that keep a device busy.
const INVOCATIONS_WANTED: usize = 1 << 16;
/// Workgroups that keep a device busy.
const GROUPS_WANTED: usize = 1024;
/// The shortest chunk that is worth a workgroup.
const CHUNK_MIN: usize = 8192;

pub(crate) fn run(op: &Reduce, context: &mut Context) -> Result<Tensor> {
    let shape = op.output_shape()?;
    if shape.elements() == 0 {
        return empty(op.output_dtype(), shape);
    }
    let operand = context.operand(&op.input)?;
    let (view, extents) = one_axis(operand, &op.reduced()?)?;
    let input = context.dense(view)?;
    let carriers = context.carriers(op.output_dtype(), shape)?;
    stages(&input, extents, op.reduction, &carriers, context)?;
    context.finish_as(carriers, op.output_dtype())
}

fn stages(
    input: &Operand,
    extents: Extents,
    reduction: Reduction,
    output: &Operand,
    context: &mut Context,
) -> Result<()> {
    let Extents { axis, inner, .. } = extents;
    let lines = extents.lines();
    let serial = axis <= SERIAL_AXIS_MAX || (inner >= SERIAL_INNER_MIN && lines >= 256);
    let chunks = if serial {
        (INVOCATIONS_WANTED / lines).clamp(1, axis.div_ceil(SERIAL_AXIS_MAX).max(1))
    } else {
        (GROUPS_WANTED / lines).clamp(1, axis.div_ceil(CHUNK_MIN))
    };
    let chunk = axis.div_ceil(chunks).next_multiple_of(4).max(4);
    let chunks = axis.div_ceil(chunk).max(1);
    let aligned = inner == 1 && axis.is_multiple_of(4) && input.offset.is_multiple_of(4);
    let form = match () {
        () if serial => ReduceForm::Serial,
        () if aligned && input.dtype.size_bytes() == 4 => ReduceForm::Vector,
        () => ReduceForm::Cooperative,
    };
    let to_partial = chunks > 1;
    let first = ReduceKernel { dtype: input.dtype, reduction, form, from_partial: false, to_partial };
    let [outer, axis_word, inner_word] = extents.params();
    let params = [outer, axis_word, inner_word, chunks as u32, chunk as u32, input.start(), axis_word];
    let groups = if serial { groups_for(lines * chunks) } else { (lines * chunks) as u64 };
    if !to_partial {
        return context.run(&Kernel::Reduce(first), &[output], &[input], &params, groups);
    }
    let partial = context.words(lines * chunks * first.partial_bytes() / 4)?;
    context.run(&Kernel::Reduce(first), &[&partial], &[input], &params, groups)?;
    let form = if chunks <= SERIAL_AXIS_MAX { ReduceForm::Serial } else { ReduceForm::Cooperative };
    let second = ReduceKernel { form, from_partial: true, to_partial: false, ..first };
    let params = [lines as u32, chunks as u32, 1, 1, chunks as u32, 0, axis_word];
    let groups = if form == ReduceForm::Serial { groups_for(lines) } else { lines as u64 };
    context.run(&Kernel::Reduce(second), &[output], &[&partial], &params, groups)
}

/// The input as a view whose reduced axes are neighbours, and its extents around them. Axes of one element may stand
/// anywhere; where the reduced axes are apart all the same, they are moved to the end.
fn one_axis(input: Operand, reduced: &[bool]) -> Result<(Operand, Extents)> {
    let dims = input.shape.to_vec();
    let wide = |axis: &usize| dims[*axis] != 1;
    let first = (0..dims.len()).filter(wide).find(|axis| reduced[*axis]);
    let last = (0..dims.len()).filter(wide).rfind(|axis| reduced[*axis]);
    let (Some(first), Some(last)) = (first, last) else {
        let inner = input.elements();
        return Ok((input, Extents { outer: 1, axis: 1, inner }));
    };
    let product = |range: &[usize]| range.iter().product();
    if (first..=last).filter(wide).all(|axis| reduced[axis]) {
        let (outer, inner) = (product(&dims[..first]), product(&dims[last + 1..]));
        return Ok((input, Extents { outer, axis: product(&dims[first..=last]), inner }));
    }
    let mut order: Vec<usize> = (0..dims.len()).collect();
    order.sort_by_key(|axis| reduced[*axis]);
    let view = input.permuted(&order)?;
    let product = |wanted: bool| dims.iter().zip(reduced).filter(|(_, r)| **r == wanted).map(|(dim, _)| dim).product();
    Ok((view, Extents { outer: product(false), axis: product(true), inner: 1 }))
}
