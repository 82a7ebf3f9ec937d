//! Joins several runs of one graph with independent rows into one run.

use panoply_core::op::graph::RunGraph;
use panoply_core::{Buffer, HostBufferMut, Part, Result, Shape, Tensor, Value};

/// Rounds the number of rows up by at most a quarter. This gives few different sizes, so their
/// plans are found again.
fn padded_rows(rows: usize) -> usize {
    let step = (rows.next_power_of_two() / 8).max(1);
    rows.next_multiple_of(step)
}

/// Splits the outputs of a joined run into those of each run.
pub fn split_rows(value: &Value, rows: &[usize]) -> Result<Vec<Value>> {
    let mut start = 0;
    let part = |rows: &usize| {
        let range = start..start + rows;
        start = range.end;
        let parts = value.tensors().map(|tensor| tensor.slice(0, range.start, range.end).map(Part::Tensor));
        parts.collect::<Result<_>>().map(Value::List)
    };
    rows.iter().map(part).collect()
}

/// Joins several runs of one graph with independent rows into one run with all their rows plus
/// padding. Also returns the number of rows of each. `None` if the runs have different graphs, or
/// inputs are not on the host.
pub fn join_rows(ops: &[&RunGraph]) -> Option<(RunGraph, Vec<usize>)> {
    let first = ops.first()?;
    let same = |op: &&RunGraph| op.graph() == first.graph() && op.graph().has_rows();
    if !ops.iter().all(same) {
        return None;
    }
    let rows: Vec<usize> = ops.iter().map(|op| op.inputs()[0].shape()[0]).collect();
    let total = padded_rows(rows.iter().sum());
    let joined = (0..first.inputs().len()).map(|input| {
        let like = &first.inputs()[input];
        let shape: Shape = like.shape().with_dim(0, total).ok()?;
        let mut target = HostBufferMut::zeroed(shape.elements() * like.dtype().size_bytes()).ok()?;
        let mut at = 0;
        for op in ops {
            let tensor = &op.inputs()[input];
            let Buffer::Host(_) = tensor.buffer() else { return None };
            let tensor = tensor.contiguous().ok()?;
            let bytes = tensor.as_bytes().ok()?;
            target.bytes_mut().get_mut(at..at + bytes.len())?.copy_from_slice(bytes);
            at += bytes.len();
        }
        Tensor::from_host(like.dtype(), shape, target.freeze()).ok()
    });
    let joined: Vec<Tensor> = joined.collect::<Option<_>>()?;
    Some((RunGraph::new(first.graph(), &joined.iter().collect::<Vec<_>>()), rows))
}
