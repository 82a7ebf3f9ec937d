//! Reduce: from a set of axes to lines, and from long lines to chunks.

use panoply_core::op::compute::{Reduce, Reduction};
use panoply_core::shape::Strides;
use panoply_core::{DType, Result, Shape, Tensor};
use panoply_kernels::wgsl::{Kernel, ReduceForm, ReduceKernel};

use super::{Extents, empty};
use crate::context::{Context, groups_for};
use crate::driver::Driver;
use crate::operand::Operand;

/// Lines up to this length are reduced by one invocation each.
const SERIAL_AXIS_MAX: usize = 64;
/// Number of elements after the axis from which neighbouring invocations read neighbouring memory.
const SERIAL_INNER_MIN: usize = 32;
/// Number of invocations that keep a device busy.
const INVOCATIONS_WANTED: usize = 1 << 16;
/// Number of workgroups that keep a device busy.
const GROUPS_WANTED: usize = 1024;
/// Size of the largest partial result.
const PARTIAL_BYTES_MAX: usize = 8;
/// The shortest chunk that is worth a workgroup.
const CHUNK_MIN: usize = 8192;

pub(crate) fn run<D: Driver>(op: &Reduce, context: &mut Context<D>) -> Result<Tensor> {
    let shape = op.output_shape()?;
    if shape.elements() == 0 {
        return empty(op.output_dtype(), shape);
    }
    let operand = context.operand(&op.input)?;
    let (view, extents) = one_axis(operand, &op.reduced()?)?;
    let input = context.dense(view)?;
    let carriers = context.carriers(op.output_dtype(), shape)?;
    let lines = ReduceLines { reduction: op.reduction, count: extents.axis as u32, first: 0, to_partial: false };
    lines.in_pieces(&input, extents, &carriers, context)?;
    context.finish_as(carriers, op.output_dtype())
}

/// A reduction of lines, or of parts of lines.
#[derive(Clone, Copy)]
struct ReduceLines {
    reduction: Reduction,
    /// The divisor of a mean.
    count: u32,
    /// The position of the part's first element on its line.
    first: u32,
    /// Whether to store partial results.
    to_partial: bool,
}

impl ReduceLines {
    /// Reduces line by line, or part by part, as much as a kernel sees at once.
    fn in_pieces<D: Driver>(
        self,
        input: &Operand<D>,
        extents: Extents,
        output: &Operand<D>,
        context: &mut Context<D>,
    ) -> Result<()> {
        let input = input.windowed();
        let Extents { outer, axis, inner } = extents;
        let limit = context.profile.binding_bytes_max;
        if input.is_within(limit) && output.is_within(limit) {
            return self.stages(&input, extents, output, context);
        }
        if outer > 1 {
            for (start, count) in [(0, outer / 2), (outer / 2, outer - outer / 2)] {
                let part = input.span(start * axis * inner, count * axis * inner)?;
                let own = context.output(output.dtype, Shape::new([count * inner])?)?;
                self.in_pieces(&part, Extents { outer: count, axis, inner }, &own, context)?;
                context.copy(&own, output, (output.start_byte() + start * inner * output.dtype.size_bytes()) as u64);
            }
            return Ok(());
        }
        if inner > 1 && (axis == 1 || (inner * PARTIAL_BYTES_MAX) as u64 > limit / 2) {
            for (start, count) in [(0, inner / 2), (inner / 2, inner - inner / 2)] {
                let (shape, strides) = (Shape::new([axis, count])?, Strides::new([inner as isize, 1])?);
                let part = context.dense(Operand { shape, strides, offset: input.offset + start, ..input.clone() })?;
                let own = context.output(output.dtype, Shape::new([count])?)?;
                self.in_pieces(&part, Extents { outer: 1, axis, inner: count }, &own, context)?;
                context.copy(&own, output, (output.start_byte() + start * output.dtype.size_bytes()) as u64);
            }
            return Ok(());
        }
        // Parts of the axis store partial results, one part's after the other's; these are lines
        // again.
        let kernel = self.kernel(input.dtype, ReduceForm::Serial);
        let (words, half) = (kernel.partial_bytes() / 4, (axis / 2).next_multiple_of(64).min(axis - 1));
        let partial = context.words(2 * inner * words)?;
        for (place, start, count) in [(0, 0, half), (1, half, axis - half)] {
            let part = input.span(start * inner, count * inner)?;
            let own = context.words(inner * words)?;
            let lines = ReduceLines { first: self.first + start as u32, to_partial: true, ..self };
            lines.in_pieces(&part, Extents { outer: 1, axis: count, inner }, &own, context)?;
            context.copy(&own, &partial, (place * inner * words * 4) as u64);
        }
        let kernel = ReduceKernel { from_partial: true, ..kernel };
        let params = [1, 2, inner as u32, 1, 2, 0, self.count, 0];
        context.run(&Kernel::Reduce(kernel), &[output], &[&partial], &params, groups_for(inner))
    }

    fn kernel(self, dtype: DType, form: ReduceForm) -> ReduceKernel {
        let ReduceLines { reduction, to_partial, .. } = self;
        ReduceKernel { dtype, reduction, form, from_partial: false, to_partial }
    }

    fn stages<D: Driver>(
        self,
        input: &Operand<D>,
        extents: Extents,
        output: &Operand<D>,
        context: &mut Context<D>,
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
        let cut = chunks > 1;
        let kernel = self.kernel(input.dtype, form);
        let first = ReduceKernel { to_partial: cut || self.to_partial, ..kernel };
        let [outer, axis_word, inner_word] = extents.params();
        let sizes = [chunks as u32, chunk as u32, input.start(), self.count, self.first];
        let params = [&[outer, axis_word, inner_word], &sizes[..]].concat();
        let groups = if serial { groups_for(lines * chunks) } else { (lines * chunks) as u64 };
        if !cut {
            return context.run(&Kernel::Reduce(first), &[output], &[input], &params, groups);
        }
        let partial = context.words(lines * chunks * first.partial_bytes() / 4)?;
        context.run(&Kernel::Reduce(first), &[&partial], &[input], &params, groups)?;
        let form = if chunks <= SERIAL_AXIS_MAX { ReduceForm::Serial } else { ReduceForm::Cooperative };
        let second = ReduceKernel { form, from_partial: true, ..kernel };
        let params = [lines as u32, chunks as u32, 1, 1, chunks as u32, 0, self.count, 0];
        let groups = if form == ReduceForm::Serial { groups_for(lines) } else { lines as u64 };
        context.run(&Kernel::Reduce(second), &[output], &[&partial], &params, groups)
    }
}

/// The input as a view whose reduced axes are neighbours, and its extents around them. Axes of one
/// element may stand anywhere. If other axes stand between the reduced ones, the reduced axes are
/// moved to the end.
fn one_axis<D: Driver>(input: Operand<D>, reduced: &[bool]) -> Result<(Operand<D>, Extents)> {
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
