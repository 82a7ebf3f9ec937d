//! TopK: a select for a small k, a sort for a large one. Many lines are cut into groups.

use panoply_core::op::compute::TopK;
use panoply_core::{DType, Result, Shape, Tensor};
use panoply_kernels::wgsl::{Kernel, SELECT_K_MAX, SelectKernel, SelectSource};

use super::sort::{SlabParts, in_parts, pick, positions};
use super::{Extents, empty, sort};
use crate::context::Context;
use crate::driver::Driver;
use crate::operand::{Operand, is_seen};
use crate::pieces::slabs_within;
use crate::profile::Profile;

/// Size of a key and an index.
const PAIR_BYTES: usize = 8;
/// Number of workgroups that keep a device busy.
const GROUPS_WANTED: usize = 512;
/// The shortest part of a line that is worth a workgroup.
const PART_MIN: usize = 4096;

pub(crate) fn support(profile: &Profile, op: &TopK) -> Result<(), String> {
    sort::support(profile, op.input.dtype(), if op.k > SELECT_K_MAX { op.input.shape()[op.axis] } else { 0 })?;
    let (line, size) = (op.input.shape()[op.axis], op.input.dtype().size_bytes());
    let pieces = line.div_ceil(slabs_within(profile, 1, size).max(1));
    if op.k <= SELECT_K_MAX && !is_seen(pieces * op.k, PAIR_BYTES, profile.binding_bytes_max) {
        let (bytes, limit) = (line * size, profile.binding_bytes_max);
        return Err(format!("the best {} of lines of {bytes} bytes; the adapter binds {limit}", op.k));
    }
    if op.k == 0 { Ok(()) } else { parts(op).support(profile, &[&op.input]) }
}

/// The read and written parts of slabs. A sort needs four bytes for each key and position; a select
/// reads elements in place.
fn parts(op: &TopK) -> SlabParts {
    let Extents { outer, axis, inner } = Extents::new(op.input.shape(), op.axis);
    let size = op.input.dtype().size_bytes();
    let wide = size.max(DType::U32.size_bytes());
    let read_bytes = if op.k > SELECT_K_MAX { wide } else { size };
    SlabParts { outer, read: (axis * inner, read_bytes), made: (op.k * inner, wide), is_line: inner == 1 }
}

pub(crate) fn run<D: Driver>(op: &TopK, context: &mut Context<D>) -> Result<(Tensor, Tensor)> {
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
            if input.is_within(context.profile.binding_bytes_max) {
                select(input, extents, op, &indices, context)?;
            } else {
                select_of_long(input, op, &indices, context)?;
            }
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

/// Selects the best of all lines.
fn select<D: Driver>(
    input: &Operand<D>,
    extents: Extents,
    op: &TopK,
    indices: &Operand<D>,
    context: &mut Context<D>,
) -> Result<()> {
    let cut = LineSplit::new(extents, op.k);
    let lines = extents.lines();
    if cut.parts == 1 {
        return elements(input, extents, op, cut, true, 0, indices, context);
    }
    let pairs = context.words(2 * lines * cut.parts * op.k)?;
    elements(input, extents, op, cut, false, 0, &pairs, context)?;
    merge(&pairs, [lines, cut.parts * op.k, extents.inner], op.k, true, [1, 0], indices, context)
}

/// Selects the best of a line that is longer than a kernel sees: first of each piece, then of
/// these.
fn select_of_long<D: Driver>(
    line: &Operand<D>,
    op: &TopK,
    indices: &Operand<D>,
    context: &mut Context<D>,
) -> Result<()> {
    let (len, k) = (line.elements(), op.k);
    let piece = slabs_within(&context.profile, 1, line.dtype.size_bytes());
    let pieces = len.div_ceil(piece);
    let best = context.words(2 * pieces * k)?;
    for (number, first) in (0..len).step_by(piece).enumerate() {
        let seen = line.span(first, piece.min(len - first))?.windowed();
        let extents = Extents { outer: 1, axis: seen.elements(), inner: 1 };
        let cut = LineSplit::new(extents, k);
        let pairs = context.words(2 * cut.parts * k)?;
        elements(&seen, extents, op, cut, false, first, &pairs, context)?;
        merge(&pairs, [1, cut.parts * k, 1], k, false, [pieces, number], &best, context)?;
    }
    merge(&best, [1, pieces * k, 1], k, true, [1, 0], indices, context)
}

/// The parts of a line, and their length.
#[derive(Clone, Copy)]
struct LineSplit {
    parts: usize,
    part: usize,
}

impl LineSplit {
    fn new(extents: Extents, k: usize) -> LineSplit {
        let parts = (GROUPS_WANTED / extents.lines()).clamp(1, extents.axis.div_ceil(PART_MIN.max(8 * k)));
        let part = extents.axis.div_ceil(parts);
        LineSplit { parts: extents.axis.div_ceil(part), part }
    }
}

/// Selects the best of each part of each line, as pairs of key and index, or as indices alone in
/// the last step. Elements are counted from `first` on.
fn elements<D: Driver>(
    input: &Operand<D>,
    extents: Extents,
    op: &TopK,
    cut: LineSplit,
    last: bool,
    first: usize,
    output: &Operand<D>,
    context: &mut Context<D>,
) -> Result<()> {
    let [_, axis, inner] = extents.params();
    let (lines, parts) = (extents.lines(), cut.parts as u32);
    let (k, first) = (op.k as u32, first as u32);
    let params = [lines as u32, axis, inner, parts, cut.part as u32, k, input.start(), first, 0, 0, 0, 0, parts, 0];
    let source = SelectSource::Elements { dtype: input.dtype, largest: op.largest };
    let kernel = Kernel::Select(SelectKernel::new(source, last, op.k));
    context.run(&kernel, &[output], &[input], &params, (lines * cut.parts) as u64)
}

/// Selects the best among `found` pairs of each line, into one of its slots.
fn merge<D: Driver>(
    pairs: &Operand<D>,
    [lines, found, inner]: [usize; 3],
    k: usize,
    last: bool,
    [slots, slot]: [usize; 2],
    output: &Operand<D>,
    context: &mut Context<D>,
) -> Result<()> {
    let kernel = Kernel::Select(SelectKernel::new(SelectSource::Pairs { metric: None }, last, k));
    let params = [lines, found, inner, 1, found, k, 0, 0, 0, 0, 0, 0, slots, slot].map(|size| size as u32);
    context.run(&kernel, &[output], &[pairs], &params, lines as u64)
}
