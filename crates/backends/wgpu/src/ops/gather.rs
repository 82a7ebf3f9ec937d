//! Gather: elements picked by index. Indices are checked where they are: on the host before anything is recorded, on the
//! device by the kernel, which leaves a word that is looked at before the answer is given.

use panoply_core::op::compute::Gather;
use panoply_core::{DType, Error, Location, Result, Shape, Tensor, Value};
use panoply_kernels::wgsl::{GatherKernel, Kernel};

use super::empty;
use crate::adapter::Profile;
use crate::context::{Context, groups_for};
use crate::engine::Answer;
use crate::operand::{Operand, WINDOW_STEP_BYTES};

/// Rows of an output that begin at windows' starts: every so-manieth of them, whatever they consist of.
const ROWS_STEP: usize = WINDOW_STEP_BYTES / 4;

pub(crate) fn support(profile: &Profile, op: &Gather) -> Result<(), String> {
    let most = profile.binding_bytes_max;
    let shape = op.output_shape().map_err(|error| error.to_string())?;
    let size = op.input.dtype().size_bytes();
    let bytes = |elements: usize| (elements * size + WINDOW_STEP_BYTES) as u64;
    if bytes(op.input.elements()) <= most && bytes(shape.elements()) <= most {
        return Ok(());
    }
    let row_bytes = op.input.shape()[op.axis + 1..].iter().product::<usize>() * size;
    let are_rows = !op.elementwise && op.input.shape()[..op.axis].iter().all(|dim| *dim == 1);
    if !are_rows || !row_bytes.is_multiple_of(4) || (row_bytes * ROWS_STEP + WINDOW_STEP_BYTES) as u64 > most {
        return Err(format!("beyond {most} bytes, which the adapter binds, only rows of whole words are gathered"));
    }
    Ok(())
}

pub(crate) fn run(op: &Gather, context: &mut Context) -> Result<Answer> {
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
    let picked = Picked { len, count, inner, elementwise: op.elementwise, signed };
    let (output, status) = take(&input, &indices, shape, picked, context)?;
    let value = Value::Tensor(context.finish(output)?);
    if on_host {
        return Ok(Answer::Value(value));
    }
    let download = context.download(&status)?;
    Ok(Answer::Checked { value, download, len })
}

/// How elements are picked.
#[derive(Clone, Copy)]
pub(super) struct Picked {
    /// Elements along the axis of the input.
    pub(super) len: usize,
    /// Indices along that axis.
    pub(super) count: usize,
    /// Elements behind the axis.
    pub(super) inner: usize,
    /// Every element has its own index.
    pub(super) elementwise: bool,
    /// Indices may be negative.
    pub(super) signed: bool,
}

/// The picked elements, and a word that is not zero where an index was out of range.
pub(super) fn take(
    input: &Operand,
    indices: &Operand,
    shape: Shape,
    picked: Picked,
    context: &mut Context,
) -> Result<(Operand, Operand)> {
    let output = context.output(input.dtype, shape)?;
    let status = context.words(1)?;
    context.clear(&status);
    let limit = context.profile.binding_bytes_max;
    if !input.is_within(limit) || !output.is_within(limit) {
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

/// Rows of whole words, from as many of them at a time as a kernel sees to as many as it sees.
fn take_rows(
    input: &Operand,
    indices: &Operand,
    output: &Operand,
    status: &Operand,
    picked: Picked,
    context: &mut Context,
) -> Result<()> {
    let size = input.dtype.size_bytes();
    let words = picked.inner * size / 4;
    let as_words = |operand: &Operand, rows: usize| -> Result<Operand> {
        let shape = Shape::new([rows, words])?;
        let offset = operand.offset * size / 4;
        Ok(Operand { dtype: DType::U32, shape, strides: shape.contiguous_strides(), offset, ..operand.clone() })
    };
    let (source, target) = (as_words(input, picked.len)?, as_words(output, picked.count)?);
    let seen = (context.profile.binding_bytes_max as usize - WINDOW_STEP_BYTES) / (words * 4);
    let kernel = Kernel::Gather(GatherKernel { element_bytes: 4, signed: picked.signed, windowed: true });
    for to in (0..picked.count).step_by(seen / ROWS_STEP * ROWS_STEP) {
        let count = (seen / ROWS_STEP * ROWS_STEP).min(picked.count - to);
        let written = target.slice(0, to, count)?.windowed();
        let asked = indices.span(to, count)?.windowed();
        for from in (0..picked.len).step_by(seen) {
            let some = source.slice(0, from, seen.min(picked.len - from))?.windowed();
            let sizes = [count * words, some.offset, asked.offset, picked.len, count, words, 0, from, some.shape[0]];
            let params = sizes.map(|size| size as u32);
            context.run(&kernel, &[&written, status], &[&some, &asked], &params, groups_for(count * words))?;
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

/// Checks indices that are on the device where there is nothing to pick: they are brought to the host's notice as words
/// picked from a line of zeros as long as the axis.
fn check_on_device(op: &Gather, shape: Shape, context: &mut Context) -> Result<Answer> {
    let len = op.input.shape()[op.axis];
    let indices = context.input(&op.indices)?;
    let line = context.words(len.max(1))?;
    let signed = op.indices.dtype() == DType::I32;
    let picked = Picked { len, count: indices.elements(), inner: 1, elementwise: false, signed };
    let flat = Shape::new([indices.elements()])?;
    let (_, status) = take(&line, &indices, flat, picked, context)?;
    let download = context.download(&status)?;
    Ok(Answer::Checked { value: Value::Tensor(empty(op.input.dtype(), shape)?), download, len })
}
