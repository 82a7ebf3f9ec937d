//! Gather: one copy for each index.

use panoply_core::op::compute::Gather;
use panoply_core::{Error, HostBufferMut, Result, Tensor, Value};

use crate::values::to_f64;

pub(super) fn run(op: &Gather) -> Result<Value> {
    let (shape, output_shape) = (op.input.shape(), op.output_shape()?);
    let len = shape[op.axis];
    let indices =
        to_f64(&op.indices)?.into_iter().map(|index| resolve(index as i64, len)).collect::<Result<Vec<_>>>()?;
    let inner: usize = shape[op.axis + 1..].iter().product();
    let count = if op.elementwise { op.indices.shape()[op.axis] } else { indices.len() };
    let size = op.input.dtype().size_bytes();
    let positions: Vec<usize> = op.input.indices().collect();
    let source = op.input.host_bytes()?;
    let mut output = HostBufferMut::zeroed(output_shape.elements() * size)?;
    for (nth, element) in output.bytes_mut().chunks_exact_mut(size).enumerate() {
        let (outer, middle, last) = (nth / (count * inner), nth / inner % count, nth % inner);
        let index = if op.elementwise { indices[nth] } else { indices[middle] };
        let position = positions[(outer * len + index) * inner + last];
        element.copy_from_slice(&source[position * size..][..size]);
    }
    Tensor::from_host(op.input.dtype(), output_shape, output.freeze()).map(Value::Tensor)
}

fn resolve(index: i64, len: usize) -> Result<usize> {
    let from_start = if index < 0 { index + len as i64 } else { index };
    if (0..len as i64).contains(&from_start) {
        return Ok(from_start as usize);
    }
    Err(Error::invalid("gather: index", format!("an index into {len}"), index))
}
