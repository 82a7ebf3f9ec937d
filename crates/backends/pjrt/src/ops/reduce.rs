//! Reduce and Scan.

use panoply_core::op::compute::{Reduce, Reduction, Scan, ScanKind};
use panoply_core::{DType, Result};

use super::Emit;
use crate::hlo::{Compare, Element, Value, Writer};

pub(super) fn reduce(emit: &mut Emit, op: &Reduce) -> Result<Value> {
    let (input, reduced) = (emit.number(&op.input)?, op.reduced()?);
    let axes: Vec<usize> = (0..input.rank()).filter(|axis| reduced[*axis]).collect();
    let writer = &mut emit.writer;
    let value = match op.reduction {
        Reduction::Sum => writer.reduce("add", &input, 0.0, &axes),
        Reduction::Mean => mean(writer, &input, &axes, op.count()?),
        Reduction::Max => writer.reduce("maximum", &input, input.element.lowest(), &axes),
        Reduction::Min => writer.reduce("minimum", &input, input.element.highest(), &axes),
        Reduction::ArgMax => position(writer, &input, &axes, "maximum"),
        Reduction::ArgMin => position(writer, &input, &axes, "minimum"),
    };
    Ok(writer.reshape(&value, op.output_shape()?.dims()))
}

/// The mean. Integers are summed as f64, which is exact.
pub(super) fn mean(writer: &mut Writer, input: &Value, axes: &[usize], count: usize) -> Value {
    let wide = if input.element.is_integer() { writer.convert(input, Element::F64) } else { input.clone() };
    let sums = writer.reduce("add", &wide, 0.0, axes);
    let complex = sums.element == Element::Of(DType::Complex64);
    let counts = writer.constant(count as f64, if complex { Element::F32 } else { sums.element }, &sums.dims);
    if !complex {
        return writer.like("divide", &[&sums, &counts]);
    }
    let mut part = |name: &str| {
        let part = writer.op(name, &[&sums], "", Element::F32, &sums.dims);
        writer.like("divide", &[&part, &counts])
    };
    let (re, im) = (part("real"), part("imag"));
    writer.op("complex", &[&re, &im], "", sums.element, &sums.dims)
}

/// The first position of the extreme, or of the first NaN.
fn position(writer: &mut Writer, input: &Value, axes: &[usize], extreme: &str) -> Value {
    let initial = if extreme == "maximum" { input.element.lowest() } else { input.element.highest() };
    let best = writer.reduce_stretched(extreme, input, initial, axes);
    // If the axis contains NaN, the extreme is NaN, which is equal to nothing.
    let (is_best, is_nan) = (writer.compare(Compare::Eq, input, &best), writer.compare(Compare::Ne, input, input));
    let is_it = writer.like("or", &[&is_best, &is_nan]);
    let mut place = writer.constant(0.0, Element::U32, &input.dims);
    let mut step = 1;
    for axis in axes.iter().rev() {
        let (count, width) =
            (writer.iota(*axis, Element::U32, &input.dims), writer.constant(step as f64, Element::U32, &input.dims));
        let moved = writer.like("multiply", &[&count, &width]);
        place = writer.like("add", &[&place, &moved]);
        step *= input.dims[*axis];
    }
    let never = writer.constant(f64::from(u32::MAX), Element::U32, &input.dims);
    let candidates = writer.select(&is_it, &place, &never);
    writer.reduce("minimum", &candidates, f64::from(u32::MAX), axes)
}

/// A scan in log₂(length) steps. Each step combines elements at twice the distance of the previous
/// one.
pub(super) fn scan(emit: &mut Emit, op: &Scan) -> Result<Value> {
    let input = emit.number(&op.input)?;
    let (writer, axis) = (&mut emit.writer, op.axis);
    let start = match op.kind {
        ScanKind::Sum => 0.0,
        ScanKind::Product => 1.0,
        ScanKind::Max => input.element.lowest(),
        ScanKind::Min => input.element.highest(),
    };
    let turned = if op.reversed { vec![axis] } else { Vec::new() };
    let mut value = writer.reverse(&input, &turned);
    let len = value.dims[axis];
    let mut distance = 1;
    while distance < len {
        let moved = shifted(writer, &value, start, axis, distance);
        value = match op.kind {
            ScanKind::Max => writer.extreme(Compare::Gt, &moved, &value),
            ScanKind::Min => writer.extreme(Compare::Lt, &moved, &value),
            ScanKind::Sum => writer.like("add", &[&moved, &value]),
            ScanKind::Product => writer.like("multiply", &[&moved, &value]),
        };
        distance *= 2;
    }
    if op.excludes_own {
        value = shifted(writer, &value, start, axis, 1);
    }
    Ok(writer.reverse(&value, &turned))
}

/// Shifts the elements along an axis and fills the beginning with `filler`.
fn shifted(writer: &mut Writer, value: &Value, filler: f64, axis: usize, distance: usize) -> Value {
    let kept = writer.slice_axis(value, axis, 0, value.dims[axis] - distance);
    writer.pad_axis(&kept, filler, axis, distance, 0)
}
