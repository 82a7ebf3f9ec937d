//! Sort, ArgSort and SortPairs: the standard library's stable sort of indices.

use std::cmp::Ordering;

use panoply_core::op::compute::{ArgSort, Sort, SortPairs};
use panoply_core::{HostBufferMut, Result, Tensor, Value};

use crate::reference::lines::lines;
use crate::values::to_f64;

pub(super) fn run(op: &Sort) -> Result<Value> {
    take(&op.input, op.axis, &order(&op.input, op.axis, op.descending)?).map(Value::Tensor)
}

pub(super) fn run_arg(op: &ArgSort) -> Result<Value> {
    let positions = order(&op.input, op.axis, op.descending)?;
    Tensor::from_vec(positions, op.input.shape()).map(Value::Tensor)
}

pub(super) fn run_pairs(op: &SortPairs) -> Result<Value> {
    let positions = order(&op.keys, op.axis, op.descending)?;
    Ok(Value::Pair(take(&op.keys, op.axis, &positions)?, take(&op.values, op.axis, &positions)?))
}

/// For each position, the index in its line of the element that belongs there.
fn order(keys: &Tensor, axis: usize, descending: bool) -> Result<Vec<u32>> {
    let numbers = to_f64(keys)?;
    let mut positions = vec![0; numbers.len()];
    for places in lines(keys.shape(), axis) {
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_by(|a, b| {
            let rising = compare(numbers[places[*a]], numbers[places[*b]]);
            if descending { rising.reverse() } else { rising }
        });
        order.into_iter().zip(&places).for_each(|(from, place)| positions[*place] = from as u32);
    }
    Ok(positions)
}

/// The order of numbers, with NaN above all others.
fn compare(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}

/// The elements at these indices of their lines, bit for bit.
fn take(input: &Tensor, axis: usize, positions: &[u32]) -> Result<Tensor> {
    let size = input.dtype().size_bytes();
    let source = input.host_bytes()?;
    let elements: Vec<usize> = input.indices().collect();
    let mut target = HostBufferMut::zeroed(input.len_bytes())?;
    for places in lines(input.shape(), axis) {
        for place in &places {
            let from = elements[places[positions[*place] as usize]] * size;
            target.bytes_mut()[place * size..][..size].copy_from_slice(&source[from..from + size]);
        }
    }
    Tensor::from_host(input.dtype(), *input.shape(), target.freeze())
}
