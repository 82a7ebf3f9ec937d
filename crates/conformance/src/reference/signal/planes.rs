//! Convolve2 and FindPeaks: the sums of the definition in f64, and every element compared with its
//! surroundings.

use std::cmp::Ordering;

use panoply_core::op::signal::{Convolve2, FindPeaks};
use panoply_core::{DType, Result, Tensor, Value};

use super::fft::{complex_tensor, numbers, product, sum};
use crate::values::tensor_of;

pub(super) fn convolve2(op: &Convolve2) -> Result<Value> {
    let (input, mut kernel, shape) = (numbers(&op.input)?, numbers(&op.kernel)?, op.output_shape()?);
    if op.correlation {
        kernel.reverse();
        kernel.iter_mut().for_each(|value| value[1] = -value[1]);
    }
    let (dims, width) = (op.input.shape(), op.kernel.shape()[1]);
    let (rows, columns) = (dims[dims.rank() - 2], dims[dims.rank() - 1]);
    let [(first_row, out_rows), (first, out_columns)] = op.parts_of_full();
    let mut output = Vec::new();
    for plane in input.chunks((rows * columns).max(1)) {
        for (row, column) in (0..out_rows * out_columns).map(|at| (at / out_columns, at % out_columns)) {
            let mut total = [0.0; 2];
            for (at, weight) in kernel.iter().enumerate() {
                let from_row = (first_row + row).checked_sub(at / width).filter(|row| *row < rows);
                let from_column = (first + column).checked_sub(at % width).filter(|column| *column < columns);
                if let (Some(row), Some(column)) = (from_row, from_column) {
                    total = sum(total, product(*weight, plane[row * columns + column]));
                }
            }
            output.push(total);
        }
    }
    Ok(Value::Tensor(match op.input.dtype() {
        DType::Complex64 => complex_tensor(&shape, &output)?,
        dtype => tensor_of(dtype, &shape, &output.iter().map(|[re, _]| *re).collect::<Vec<f64>>()),
    }))
}

pub(super) fn find_peaks(op: &FindPeaks) -> Result<Value> {
    let (shape, (rows, columns)) = (op.output_shape()?, op.searched());
    let is_complex = op.input.dtype() == DType::Complex64;
    let strength = |[re, im]: &[f64; 2]| if is_complex { (re * re + im * im).sqrt() as f32 } else { *re as f32 };
    let strengths: Vec<f32> = numbers(&op.input)?.iter().map(strength).collect();
    let (mut values, mut places) = (vec![0.0; shape.elements()], vec![-1; shape.elements()]);
    for (index, plane) in strengths.chunks((rows * columns).max(1)).enumerate() {
        let mut found: Vec<usize> = (0..plane.len()).filter(|place| is_peak(op, plane, columns, *place)).collect();
        let stronger = |a: &usize, b: &usize| plane[*b].partial_cmp(&plane[*a]).unwrap_or(Ordering::Equal);
        // The sort is stable, so the first of equal peaks stays first.
        found.sort_by(stronger);
        for (at, place) in found.into_iter().take(op.count).enumerate() {
            values[index * op.count + at] = plane[place];
            places[index * op.count + at] = place as i32;
        }
    }
    Ok(Value::Pair(Tensor::from_vec(values, shape)?, Tensor::from_vec(places, shape)?))
}

fn is_peak(op: &FindPeaks, plane: &[f32], columns: usize, place: usize) -> bool {
    let own = plane[place];
    let near = |other: usize| {
        (other / columns).abs_diff(place / columns) <= op.distance
            && (other % columns).abs_diff(place % columns) <= op.distance
    };
    let hides = |other: usize| plane[other] > own || (plane[other] == own && other < place);
    own >= op.at_least && !(0..plane.len()).any(|other| near(other) && hides(other))
}
