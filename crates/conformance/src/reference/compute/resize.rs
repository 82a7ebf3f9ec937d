//! Resize: the weighted sum of input pixels for each output pixel, in f64.

use panoply_core::op::compute::{Resize, ResizeMode};
use panoply_core::{DType, Result, Value};

use crate::values::{tensor_of, to_f64};

pub(super) fn run(op: &Resize) -> Result<Value> {
    let (shape, axis) = (op.input.shape(), op.height_axis()?);
    let output_shape = op.output_shape()?;
    let planes: usize = shape[..axis].iter().product();
    let channels: usize = shape[axis + 2..].iter().product();
    let (in_height, in_width) = (shape[axis], shape[axis + 1]);
    let input = to_f64(&op.input)?;
    let mut values = Vec::with_capacity(output_shape.elements());
    if output_shape.elements() > 0 {
        let rows: Vec<_> = (0..op.height).map(|y| taps(op, y, in_height, op.height)).collect();
        let columns: Vec<_> = (0..op.width).map(|x| taps(op, x, in_width, op.width)).collect();
        for plane in 0..planes {
            for row_taps in &rows {
                for column_taps in &columns {
                    for channel in 0..channels {
                        let at =
                            |y: usize, x: usize| input[((plane * in_height + y) * in_width + x) * channels + channel];
                        let mut sum = 0.0;
                        for (y, row_weight) in row_taps {
                            let row: f64 = column_taps.iter().map(|(x, weight)| weight * at(*y, *x)).sum();
                            sum += row_weight * row;
                        }
                        if op.mode == ResizeMode::Area {
                            sum /= (row_taps.len() * column_taps.len()) as f64;
                        }
                        values.push(if op.input.dtype() == DType::U8 { sum.round_ties_even() } else { sum });
                    }
                }
            }
        }
    }
    Ok(Value::Tensor(tensor_of(op.input.dtype(), &output_shape, &values)))
}

/// The input pixels of an axis that output pixel `index` reads, with their weights. The weights of
/// a box are ones, so that its sum is divided only once.
fn taps(op: &Resize, index: usize, input: usize, output: usize) -> Vec<(usize, f64)> {
    let same_size = op.input.shape() == &op.output_shape().unwrap_or(*op.input.shape());
    match op.mode {
        _ if same_size => vec![(index, 1.0)],
        ResizeMode::Nearest => vec![(index * input / output, 1.0)],
        ResizeMode::Bilinear => {
            // ((index + 0.5) · input / output - 0.5), over the common denominator 2 · output.
            let position = ((2 * index + 1) * input).saturating_sub(output);
            let first = (position / (2 * output)).min(input - 1);
            let weight = (position % (2 * output)) as f64 / (2 * output) as f64;
            vec![(first, 1.0 - weight), ((first + 1).min(input - 1), weight)]
        }
        ResizeMode::Area => {
            let covered = index * input / output..((index + 1) * input).div_ceil(output);
            covered.map(|pixel| (pixel, 1.0)).collect()
        }
    }
}
