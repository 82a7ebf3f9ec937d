//! Convolution of channels-last images with weights that are infinite or NaN: every product is
//! computed, including those with the zeros of the padding.
//!
//! The other algorithms skip the padding, which is equivalent only for finite weights. Non-finite
//! weights come from a failed training, so this module need not be fast.

use super::super::epilogue::Epilogue;
use super::super::workspace::SharedSlice;
use super::{ConvShape, Pixels};
use crate::team::Team;

/// As [`super::forward`]. Threads take rows of outputs.
pub(super) fn run(
    team: &Team,
    shape: &ConvShape,
    (input, weights): (Pixels<'_>, &[f32]),
    epilogue: &Epilogue<'_, f32>,
    output: &mut [f32],
) {
    let [rows, columns] = shape.output();
    let row_len = columns * shape.filters;
    let whole = SharedSlice::new(output);
    team.run_ranges(shape.batch * rows, 1, &|range| {
        for index in range {
            // SAFETY: every row of outputs is written by one task.
            let row = unsafe { whole.part(index * row_len, row_len) };
            for (at, out) in row.iter_mut().enumerate() {
                let (column, filter) = (at / shape.filters, at % shape.filters);
                let place = [index / rows, filter, index % rows, column];
                *out = epilogue.bias.map_or(0.0, |bias| bias[filter]) + sum(shape, input, weights, place);
            }
            if let Some(activate) = epilogue.activate {
                activate(index * row_len, row);
            }
        }
    });
}

/// One output without its bias, at an image, filter, row and column.
fn sum(shape: &ConvShape, input: Pixels<'_>, weights: &[f32], [image, filter, row, column]: [usize; 4]) -> f32 {
    let (channels, [kernel_rows, kernel_columns]) = (shape.group_channels(), shape.kernel);
    let first_channel = filter / shape.group_filters() * channels;
    let inside = |axis: usize, pixel: usize, tap: usize| {
        let padded = pixel * shape.stride[axis] + tap * shape.dilation[axis];
        padded.checked_sub(shape.padding[axis]).filter(|place| *place < shape.input[axis])
    };
    let mut total = 0.0_f32;
    for tap in 0..kernel_rows * kernel_columns {
        let (y, x) = (inside(0, row, tap / kernel_columns), inside(1, column, tap % kernel_columns));
        for channel in 0..channels {
            let weight = weights[(filter * channels + channel) * kernel_rows * kernel_columns + tap];
            let value = match (y, x) {
                (Some(y), Some(x)) => {
                    let places = [image, first_channel + channel, y, x];
                    input.numbers[places.iter().zip(input.strides).map(|(place, stride)| place * stride).sum::<usize>()]
                }
                _ => 0.0,
            };
            total += value * weight;
        }
    }
    total
}
