//! TopK: a select for a small k, a sort for a large one. Many lines are cut into some at a time.

use panoply_core::op::compute::TopK;
use panoply_core::{DType, Result, Shape, Tensor};
use panoply_kernels::wgsl::{Kernel, SELECT_K_MAX, SelectKernel, SelectSource};

use super::sort::{Parts, in_parts, pick, positions};
use super::{Extents, empty, sort};
use crate::adapter::Profile;
use crate::context::Context;
use crate::operand::Operand;

/// Workgroups that keep a device busy.
const GROUPS_WANTED: usize = 512;
/// The shortest part of a line that is worth a workgroup.
const PART_MIN: usize = 4096;

pub(crate) fn support(profile: &Profile, op: &TopK) -> Result<(), String> {
    sort::support(profile, op.input.dtype(), if op.k > SELECT_K_MAX { op.input.shape()[op.axis] } else { 0 })?;
    if op.k == 0 { Ok(()) } else { parts(op).support(profile, &[&op.input]) }
}

/// What is read and made of lines that belong together. A sort has four bytes for each key and position; a select reads
/// elements where they are.
fn parts(op: &TopK) -> Parts {
    let Extents { outer, axis, inner } = Extents::new(op.input.shape(), op.axis);
    let size = op.input.dtype().size_bytes();
    let wide = size.max(DType::U32.size_bytes());
    let read_bytes = if op.k > SELECT_K_MAX { wide } else { size };
    Parts { outer, read: (axis * inner, read_bytes), made: (op.k * inner, wide) }
}

pub(crate) fn run(op: &TopK, context: &mut Context) -> Result<(Tensor, Tensor)> {
    let shape = op.output_shape()?;
    let dtype = op.input.dtype();
    if shape.elements() == 0 {
        return Ok((empty(dtype, shape)?, empty(DType::U32, shape)?));
    }
    let input = context.input(&op.input)?;
    let extents = Extents::new(op.input.shape(), op.axis);
    let outputs = [dtype, DType::U32];
    let [values, indices] = in_parts([&input], outputs, parts(op), context, &mut |[input], outer, context| {
        let extents = Extents { outer, ..extents };
        let indices = if op.k <= SELECT_K_MAX {
            let indices = context.output(DType::U32, Shape::new([outer, op.k, extents.inner])?)?;
            select(input, extents, op, &indices, context)?;
            indices
        } else {
            let sorted = positions(input, extents, op.largest, context)?;
            let sorted = sorted.reshaped(Shape::new([outer, extents.axis, extents.inner])?);
            context.dense(sorted.slice(1, 0, op.k)?)?
        };
        Ok([pick(input, &indices, extents, context)?, indices])
    })?;
    Ok((context.finish(values.reshaped(shape))?, context.finish(indices.reshaped(shape))?))
}

fn select(input: &Operand, extents: Extents, op: &TopK, indices: &Operand, context: &mut Context) -> Result<()> {
    let lines = extents.lines();
    let parts = (GROUPS_WANTED / lines).clamp(1, extents.axis.div_ceil(PART_MIN.max(8 * op.k)));
    let part = extents.axis.div_ceil(parts);
    let parts = extents.axis.div_ceil(part);
    let source = SelectSource::Elements { dtype: input.dtype, largest: op.largest };
    let [_, axis, inner] = extents.params();
    let k = op.k as u32;
    let params =
        [lines as u32, axis, inner, parts as u32, part as u32, k, input.start(), 0, 0, 0, 0, 0, parts as u32, 0];
    let groups = (lines * parts) as u64;
    if parts == 1 {
        let kernel = SelectKernel::new(source, true, op.k);
        return context.run(&Kernel::Select(kernel), &[indices], &[input], &params, groups);
    }
    let pairs = context.words(2 * lines * parts * op.k)?;
    let kernel = SelectKernel::new(source, false, op.k);
    context.run(&Kernel::Select(kernel), &[&pairs], &[input], &params, groups)?;
    let kernel = SelectKernel::new(SelectSource::Pairs { metric: None }, true, op.k);
    let found = (parts * op.k) as u32;
    let params = [lines as u32, found, inner, 1, found, k, 0, 0, 0, 0, 0, 0, 1, 0];
    context.run(&Kernel::Select(kernel), &[indices], &[&pairs], &params, lines as u64)
}
