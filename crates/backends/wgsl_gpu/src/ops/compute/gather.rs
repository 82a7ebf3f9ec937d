//! Gather: elements picked by index. Indices on the host are checked before anything is recorded.
//! Indices on the device are checked by the kernel, which writes a status word that is read before
//! the answer is given.

use panoply_core::op::compute::Gather;
use panoply_core::{DType, Error, Location, Result, Shape, Tensor, Value};
use panoply_kernels::wgsl::{GatherKernel, Kernel};

use super::empty;
use crate::context::{Context, groups_for};
use crate::driver::Driver;
use crate::engine::Answer;
use crate::operand::{Operand, WINDOW_STEP_BYTES};
use crate::pieces::beyond;
use crate::profile::Profile;

/// Size of a word, and of an index.
const WORD_BYTES: usize = 4;

pub(crate) fn support(profile: &Profile, op: &Gather) -> Result<(), String> {
    let most = profile.binding_bytes_max;
    let shape = op.output_shape().map_err(|error| error.to_string())?;
    let size = op.input.dtype().size_bytes();
    let bytes = |elements: usize, size: usize| (elements * size + WINDOW_STEP_BYTES) as u64;
    let indices = bytes(op.indices.elements(), op.indices.dtype().size_bytes());
    if bytes(op.input.elements(), size) <= most && bytes(shape.elements(), size) <= most && indices <= most {
        return Ok(());
    }
    let row_bytes = op.input.shape()[op.axis + 1..].iter().product::<usize>() * size;
    let are_rows = !op.elementwise && op.input.shape()[..op.axis].iter().all(|dim| *dim == 1);
    let is_moved = op.input.location() == Location::Host || !op.input.is_contiguous();
    let starts_at_word = is_moved || (op.input.offset() * size).is_multiple_of(WORD_BYTES);
    let unit_bytes = if row_bytes.is_multiple_of(WORD_BYTES) && starts_at_word { WORD_BYTES } else { size };
    let step = WINDOW_STEP_BYTES / unit_bytes;
    if !are_rows || (row_bytes.max(WORD_BYTES) * step + WINDOW_STEP_BYTES) as u64 > most {
        return Err(format!("beyond {most} bytes, which the adapter binds, only rows are gathered, {step} at a time"));
    }
    Ok(())
}

pub(crate) fn run<D: Driver>(op: &Gather, context: &mut Context<D>) -> Result<Answer> {
    let shape = op.output_shape()?;
    let len = op.input.shape()[op.axis];
    let on_host = op.indices.location() == Location::Host;
    if on_host {
        check(&op.indices, len)?;
    }
    let signed = op.indices.dtype() == DType::I32;
    if shape.elements() == 0 {
        if !on_host && op.indices.elements() > 0 {
            return check_on_device(op, shape, context);
        }
        return empty(op.input.dtype(), shape).map(|tensor| Answer::Value(Value::Tensor(tensor)));
    }
    let input = context.input(&op.input)?;
    let indices = context.input(&op.indices)?;
    let inner: usize = op.input.shape()[op.axis + 1..].iter().product();
    let count = if op.elementwise { op.indices.shape()[op.axis] } else { op.indices.elements() };
    let picked = GatherSizes { len, count, inner, elementwise: op.elementwise, signed };
    let (output, status) = take(&input, &indices, shape, picked, context)?;
    let value = Value::Tensor(context.finish(output)?);
    if on_host {
        return Ok(Answer::Value(value));
    }
    let download = context.download(&status)?;
    Ok(Answer::Checked { value, checks: vec![(download, len)] })
}

/// How elements are picked.
#[derive(Clone, Copy)]
pub(super) struct GatherSizes {
    /// Number of elements along the axis of the input.
    pub(super) len: usize,
    /// Number of indices along that axis.
    pub(super) count: usize,
    /// Number of elements per index: the product of the axes after it.
    pub(super) inner: usize,
    /// Whether every element has its own index.
    pub(super) elementwise: bool,
    /// Whether indices may be negative.
    pub(super) signed: bool,
}

/// The picked elements, and a word that is not zero if an index was out of range.
pub(super) fn take<D: Driver>(
    input: &Operand<D>,
    indices: &Operand<D>,
    shape: Shape,
    picked: GatherSizes,
    context: &mut Context<D>,
) -> Result<(Operand<D>, Operand<D>)> {
    let output = context.output(input.dtype, shape)?;
    let status = context.words(1)?;
    context.clear(&status);
    let limit = context.profile.binding_bytes_max;
    if [input, &output, indices].iter().any(|operand| !operand.is_within(limit)) {
        take_rows(input, indices, &output, &status, picked, context)?;
        return Ok((output, status));
    }
    let element_bytes = input.dtype.size_bytes() as u8;
    let params = [
        shape.elements() as u32,
        input.start(),
        indices.start(),
        picked.len as u32,
        picked.count as u32,
        picked.inner as u32,
        u32::from(picked.elementwise),
    ];
    let kernel = Kernel::Gather(GatherKernel { element_bytes, signed: picked.signed, windowed: false });
    let words = (shape.elements() * usize::from(element_bytes)).div_ceil(usize::from(element_bytes.max(4)));
    context.run(&kernel, &[&output, &status], &[input, indices], &params, groups_for(words))?;
    Ok((output, status))
}

/// Picks rows in pieces: from as many rows as a kernel sees, to as many as it sees. Rows are moved
/// as words if they consist of whole words and the first begins at one.
fn take_rows<D: Driver>(
    input: &Operand<D>,
    indices: &Operand<D>,
    output: &Operand<D>,
    status: &Operand<D>,
    picked: GatherSizes,
    context: &mut Context<D>,
) -> Result<()> {
    let (dtype, row) = (input.dtype, picked.inner);
    let size = dtype.size_bytes();
    let in_words = |elements: usize| (elements * size).is_multiple_of(WORD_BYTES);
    let (unit, unit_bytes) =
        if in_words(row) && in_words(input.offset) { (DType::U32, WORD_BYTES) } else { (dtype, size) };
    let units = row * size / unit_bytes;
    let as_rows = |operand: &Operand<D>, rows: usize| -> Result<Operand<D>> {
        let shape = Shape::new([rows, units])?;
        let offset = operand.offset * size / unit_bytes;
        Ok(Operand { dtype: unit, shape, strides: shape.contiguous_strides(), offset, ..operand.clone() })
    };
    let (source, target) = (as_rows(input, picked.len)?, as_rows(output, picked.count)?);
    let limit = context.profile.binding_bytes_max;
    let seen = (limit as usize - WINDOW_STEP_BYTES) / (units * unit_bytes);
    // Pieces of rows that begin at windows' starts for every element type; the kernel must see as
    // many indices too.
    let step = WINDOW_STEP_BYTES / unit_bytes;
    let at_once = seen.min((limit as usize - WINDOW_STEP_BYTES) / WORD_BYTES) / step * step;
    if at_once == 0 {
        return Err(beyond("rows to gather", limit));
    }
    let kernel = GatherKernel { element_bytes: unit_bytes as u8, signed: picked.signed, windowed: true };
    let kernel = Kernel::Gather(kernel);
    for to in (0..picked.count).step_by(at_once) {
        let count = at_once.min(picked.count - to);
        let written = target.slice(0, to, count)?.windowed();
        let asked = indices.span(to, count)?.windowed();
        let groups = groups_for((count * units * unit_bytes).div_ceil(WORD_BYTES));
        for from in (0..picked.len).step_by(seen) {
            let some = source.slice(0, from, seen.min(picked.len - from))?.windowed();
            let sizes = [count * units, some.offset, asked.offset, picked.len, count, units, 0, from, some.shape[0]];
            let params = sizes.map(|size| size as u32);
            context.run(&kernel, &[&written, status], &[&some, &asked], &params, groups)?;
        }
    }
    Ok(())
}

/// Checks indices on the host.
fn check(indices: &Tensor, len: usize) -> Result<()> {
    let bad = match indices.dtype() {
        DType::U32 => indices.to_vec::<u32>()?.into_iter().map(i64::from).find(|index| *index >= len as i64),
        _ => {
            let valid = -(len as i64)..len as i64;
            indices.to_vec::<i32>()?.into_iter().map(i64::from).find(|index| !valid.contains(index))
        }
    };
    match bad {
        Some(index) => Err(Error::invalid("gather: index", format!("an index into {len}"), index)),
        None => Ok(()),
    }
}

/// Checks indices on the device when there are no elements to pick: the kernel picks words from a
/// line of zeros as long as the axis, only for its status word.
fn check_on_device<D: Driver>(op: &Gather, shape: Shape, context: &mut Context<D>) -> Result<Answer> {
    let len = op.input.shape()[op.axis];
    let indices = context.input(&op.indices)?;
    let line = context.words(len.max(1))?;
    let signed = op.indices.dtype() == DType::I32;
    let picked = GatherSizes { len, count: indices.elements(), inner: 1, elementwise: false, signed };
    let flat = Shape::new([indices.elements()])?;
    let (_, status) = take(&line, &indices, flat, picked, context)?;
    let download = context.download(&status)?;
    Ok(Answer::Checked { value: Value::Tensor(empty(op.input.dtype(), shape)?), checks: vec![(download, len)] })
}
