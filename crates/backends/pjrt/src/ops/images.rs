//! Resize and Normalize.

use panoply_core::op::compute::{Normalize, Resize, ResizeMode};
use panoply_core::{DType, Result};

use super::Emit;
use crate::hlo::{Compare, Element, Value, Writer};

pub(super) fn normalize(emit: &mut Emit, op: &Normalize) -> Result<Value> {
    let axis = op.channel_axis()?;
    let input = emit.number(&op.input)?;
    let writer = &mut emit.writer;
    let input = writer.convert(&input, Element::F32);
    let figures = op.mean.iter().zip(op.std.iter()).map(|(mean, std)| (f64::from(*mean), f64::from(*std)));
    let factors: Vec<f64> = figures.clone().map(|(_, std)| f64::from(op.scale) / std).collect();
    let offsets: Vec<f64> = figures.map(|(mean, std)| mean / std).collect();
    let (factors, offsets) = (writer.list(&factors, Element::F32), writer.list(&offsets, Element::F32));
    let (factors, offsets) =
        (writer.broadcast(&factors, &[axis], &input.dims), writer.broadcast(&offsets, &[axis], &input.dims));
    let scaled = writer.like("multiply", &[&input, &factors]);
    Ok(writer.like("subtract", &[&scaled, &offsets]))
}

pub(super) fn resize(emit: &mut Emit, op: &Resize) -> Result<Value> {
    let axis = op.height_axis()?;
    let stored = emit.tensor(&op.input)?;
    if *op.input.shape() == op.output_shape()? {
        return Ok(stored);
    }
    if op.mode == ResizeMode::Nearest {
        let rows = nearest(&mut emit.writer, &stored, axis, op.height);
        return Ok(nearest(&mut emit.writer, &rows, axis + 1, op.width));
    }
    let input = emit.number(&op.input)?;
    let writer = &mut emit.writer;
    let input = writer.convert(&input, Element::F32);
    let value = match op.mode {
        ResizeMode::Area => {
            // The sums of the boxes are divided once by their number of pixels.
            let (columns, widths) = boxes(writer, &input, axis + 1, op.width);
            let (sums, heights) = boxes(writer, &columns, axis, op.height);
            let (widths, heights) = (writer.list(&widths, Element::F32), writer.list(&heights, Element::F32));
            let (widths, heights) =
                (writer.broadcast(&widths, &[axis + 1], &sums.dims), writer.broadcast(&heights, &[axis], &sums.dims));
            let counts = writer.like("multiply", &[&widths, &heights]);
            writer.like("divide", &[&sums, &counts])
        }
        _ => {
            let columns = bilinear(writer, &input, axis + 1, op.width);
            bilinear(writer, &columns, axis, op.height)
        }
    };
    Ok(if op.input.dtype() == DType::U8 { bytes(writer, &value) } else { value })
}

/// Nearest neighbour along one axis: input pixel `floor(i · input / output)`.
fn nearest(writer: &mut Writer, value: &Value, axis: usize, output: usize) -> Value {
    let input = value.dims[axis];
    let places: Vec<f64> = (0..output).map(|index| (index * input / output) as f64).collect();
    let places = writer.list(&places, Element::I32);
    writer.take(value, &places, axis)
}

/// Bilinear interpolation along one axis: the two neighbouring pixels, weighted by distance.
fn bilinear(writer: &mut Writer, value: &Value, axis: usize, output: usize) -> Value {
    let input = value.dims[axis];
    // ((index + 0.5) · input / output - 0.5), over the common denominator 2 · output.
    let position = |index: usize| ((2 * index + 1) * input).saturating_sub(output);
    let first = |index: usize| (position(index) / (2 * output)).min(input - 1);
    let weight = |index: usize| (position(index) % (2 * output)) as f64 / (2 * output) as f64;
    let mut side = |place: &dyn Fn(usize) -> usize, weight: &dyn Fn(usize) -> f64| {
        let places: Vec<f64> = (0..output).map(|index| place(index) as f64).collect();
        let weights: Vec<f64> = (0..output).map(weight).collect();
        let (places, weights) = (writer.list(&places, Element::I32), writer.list(&weights, Element::F32));
        let taken = writer.take(value, &places, axis);
        let weights = writer.broadcast(&weights, &[axis], &taken.dims);
        writer.like("multiply", &[&taken, &weights])
    };
    let low = side(&first, &|index| 1.0 - weight(index));
    let high = side(&|index| (first(index) + 1).min(input - 1), &weight);
    writer.like("add", &[&low, &high])
}

/// Along one axis, the sums and counts of the pixels `floor(i · scale) .. ceil((i + 1) · scale)`.
fn boxes(writer: &mut Writer, value: &Value, axis: usize, output: usize) -> (Value, Vec<f64>) {
    let input = value.dims[axis];
    let covered: Vec<_> =
        (0..output).map(|index| index * input / output..((index + 1) * input).div_ceil(output)).collect();
    let longest = covered.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
    let mut sum: Option<Value> = None;
    for step in 0..longest {
        let places: Vec<f64> = covered.iter().map(|pixels| (pixels.start + step).min(input - 1) as f64).collect();
        let inside: Vec<f64> = covered.iter().map(|pixels| f64::from(u8::from(step < pixels.len()))).collect();
        let (places, inside) = (writer.list(&places, Element::I32), writer.list(&inside, Element::F32));
        let taken = writer.take(value, &places, axis);
        let inside = writer.broadcast(&inside, &[axis], &taken.dims);
        let zero = writer.constant(0.0, Element::F32, &taken.dims);
        let counts = writer.compare(Compare::Ne, &inside, &zero);
        let counted = writer.select(&counts, &taken, &zero);
        sum = Some(match sum {
            Some(sum) => writer.like("add", &[&sum, &counted]),
            None => counted,
        });
    }
    let counts = covered.iter().map(|pixels| pixels.len() as f64).collect();
    (sum.unwrap_or_else(|| value.clone()), counts)
}

/// Rounds to nearest, ties to even, and clamps to a byte.
fn bytes(writer: &mut Writer, value: &Value) -> Value {
    let rounded = writer.like("round_nearest_even", &[value]);
    let (low, high) =
        (writer.constant(0.0, value.element, &value.dims), writer.constant(255.0, value.element, &value.dims));
    let raised = writer.like("maximum", &[&rounded, &low]);
    writer.like("minimum", &[&raised, &high])
}

/// An upper bound of the pixels in a box along one axis.
pub(super) fn area_taps(op: &Resize) -> usize {
    let Ok(axis) = op.height_axis() else { return 0 };
    let taps = |input: usize, output: usize| if output == 0 { 0 } else { input.div_ceil(output) + 1 };
    taps(op.input.shape()[axis], op.height).max(taps(op.input.shape()[axis + 1], op.width))
}
