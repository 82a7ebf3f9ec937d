//! Ops with indices: Gather, the sorts and TopK.

use panoply_core::Result;
use panoply_core::op::compute::{ArgSort, Gather, Sort, SortPairs, TopK};

use super::{Check, Emit};
use crate::hlo::{Compare, Element, Value, Writer};

pub(super) fn gather(emit: &mut Emit, op: &Gather) -> Result<Value> {
    let (input, indices) = (emit.tensor(&op.input)?, emit.tensor(&op.indices)?);
    let output = op.output_shape()?.to_vec();
    let len = input.dims[op.axis];
    let positions = positions(emit, &indices, len);
    let writer = &mut emit.writer;
    if len == 0 || output.contains(&0) {
        return Ok(writer.constant(0.0, input.element, &output));
    }
    if !op.elementwise {
        return Ok(writer.take(&input, &positions, op.axis));
    }
    let (mut step, mut sum) = (1, None);
    for axis in (0..input.rank()).rev() {
        let is_it = axis == op.axis;
        let count = if is_it { positions.clone() } else { writer.iota(axis, Element::I32, &output) };
        let width = writer.constant(step as f64, Element::I32, &output);
        let moved = writer.like("multiply", &[&count, &width]);
        sum = Some(match sum {
            Some(sum) => writer.like("add", &[&sum, &moved]),
            None => moved,
        });
        step *= input.dims[axis];
    }
    let list = writer.reshape(&input, &[input.elements()]);
    Ok(match sum {
        Some(sum) => writer.pick(&list, &sum),
        None => writer.reshape(&input, &output),
    })
}

/// Converts indices to positions from the start, forced into range. A check reports indices that
/// were out of range.
fn positions(emit: &mut Emit, indices: &Value, len: usize) -> Value {
    let (writer, dims) = (&mut emit.writer, &indices.dims);
    let signed = indices.element == Element::I32;
    let limit = writer.constant(len as f64, indices.element, dims);
    let zero = writer.constant(0.0, indices.element, dims);
    let mut positions = indices.clone();
    if signed {
        let is_negative = writer.compare(Compare::Lt, indices, &zero);
        let from_end = writer.like("add", &[indices, &limit]);
        positions = writer.select(&is_negative, &from_end, indices);
    }
    let (is_low, is_high) =
        (writer.compare(Compare::Lt, &positions, &zero), writer.compare(Compare::Ge, &positions, &limit));
    let is_bad = writer.like("or", &[&is_low, &is_high]);
    let positions = writer.select(&is_bad, &zero, &positions);
    let positions = writer.convert(&positions, Element::I32);
    let all: Vec<usize> = (0..dims.len()).collect();
    let (flags, raw) = (writer.convert(&is_bad, Element::U32), writer.convert(indices, Element::U32));
    let nothing = writer.constant(0.0, Element::U32, dims);
    let shown = writer.select(&is_bad, &raw, &nothing);
    let mut numbers = Vec::new();
    for value in [&flags, &shown] {
        let number = writer.reduce("maximum", value, 0.0, &all);
        numbers.push(writer.reshape(&number, &[1]));
    }
    let pair = writer.concatenate(&[&numbers[0], &numbers[1]], 0);
    emit.checks.push((pair, Check::Index { len, signed }));
    positions
}

pub(super) fn sort(emit: &mut Emit, op: &Sort) -> Result<Value> {
    let input = emit.tensor(&op.input)?;
    Ok(sorted(&mut emit.writer, &[&input], op.axis, op.descending).swap_remove(0))
}

pub(super) fn arg_sort(emit: &mut Emit, op: &ArgSort) -> Result<Value> {
    let input = emit.tensor(&op.input)?;
    let places = emit.writer.iota(op.axis, Element::U32, &input.dims);
    Ok(sorted(&mut emit.writer, &[&input, &places], op.axis, op.descending).swap_remove(1))
}

pub(super) fn sort_pairs(emit: &mut Emit, op: &SortPairs) -> Result<Vec<Value>> {
    let (keys, values) = (emit.tensor(&op.keys)?, emit.tensor(&op.values)?);
    Ok(sorted(&mut emit.writer, &[&keys, &values], op.axis, op.descending))
}

pub(super) fn top_k(emit: &mut Emit, op: &TopK) -> Result<Vec<Value>> {
    let input = emit.tensor(&op.input)?;
    let places = emit.writer.iota(op.axis, Element::U32, &input.dims);
    let sorted = sorted(&mut emit.writer, &[&input, &places], op.axis, op.largest);
    Ok(sorted.iter().map(|value| emit.writer.slice_axis(value, op.axis, 0, op.k)).collect())
}

/// Sorts values by the first. NaN is larger than every number. Zeros of both signs are equal.
fn sorted(writer: &mut Writer, values: &[&Value], axis: usize, descending: bool) -> Vec<Value> {
    writer.sort(values, axis, |writer, a, b| {
        let (smaller, larger) = if descending { (b, a) } else { (a, b) };
        let less = writer.compare(Compare::Lt, smaller, larger);
        if a.element.is_integer() {
            return less;
        }
        let is_number = writer.compare(Compare::Eq, smaller, smaller);
        let is_nan = writer.compare(Compare::Ne, larger, larger);
        let beyond = writer.like("and", &[&is_number, &is_nan]);
        writer.like("or", &[&less, &beyond])
    })
}
