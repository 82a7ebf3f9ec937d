//! Gather: elements picked by index. Indices are checked where they are: on the host before anything is recorded, on the
//! device by the kernel, which leaves a word that is looked at before the answer is given.

use panoply_core::op::compute::Gather;
use panoply_core::{DType, Error, Location, Result, Shape, Tensor, Value};
use panoply_kernels::wgsl::{GatherKernel, Kernel};

use super::empty;
use crate::context::{Context, groups_for};
use crate::engine::Answer;
use crate::operand::Operand;

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
    let kernel = Kernel::Gather(GatherKernel { element_bytes, signed: picked.signed });
    let words = (shape.elements() * usize::from(element_bytes)).div_ceil(usize::from(element_bytes.max(4)));
    context.run(&kernel, &[&output, &status], &[input, indices], &params, groups_for(words))?;
    Ok((output, status))
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
