//! Area: each output pixel is the mean of the box of input pixels that it covers.
//!
//! The rows of a box are added up first, whole rows at a time, then the columns of that one row of sums.

use super::{Sizes, cover};
use crate::levels::simd_levels;
use crate::parts::Parts;
use crate::pixel::Pixel;
use crate::simd::Simd;
use crate::team::Team;
use half::{bf16, f16};
use std::ops::Range;

/// An element type that boxes can be averaged over.
pub trait AreaPixel: Pixel {
    /// What a column of a box is added up in.
    type Sum: Copy + Default;

    /// Adds a row to the sums.
    fn add_row(simd: Simd, row: &[Self], sums: &mut [Self::Sum]);

    /// Writes the means of a row of boxes. `columns` are the boxes' columns and `rows` their height.
    fn write_means(
        simd: Simd,
        sums: &[Self::Sum],
        channels: usize,
        columns: &[Range<usize>],
        rows: usize,
        to: &mut [Self],
    );
}

/// Averages boxes of input pixels.
///
/// # Panics
/// When a slice does not have its stated size, or a non-empty output has an empty input.
pub fn area<T: AreaPixel>(simd: Simd, team: &Team, sizes: &Sizes, input: &[T], output: &mut [T]) {
    if !sizes.check(input.len(), output.len()) {
        return;
    }
    let columns: Vec<Range<usize>> = (0..sizes.output.1).map(|x| cover(x, sizes.input.1, sizes.output.1)).collect();
    let (row_in, row_out) = (sizes.row_in(), sizes.row_out());
    let parts = Parts::new(output);
    // The work is in reading, so the grain is one of input.
    let rows_per_output = sizes.input.0.div_ceil(sizes.output.0).max(1);
    let grain = (super::TASK_BYTES_MIN / (row_in * size_of::<T>() * rows_per_output)).max(1);
    team.run_ranges(sizes.rows_out(), grain, &|rows| {
        let mut sums = vec![T::Sum::default(); row_in];
        for row in rows {
            let (plane, y) = (row / sizes.output.0, row % sizes.output.0);
            let covered = cover(y, sizes.input.0, sizes.output.0);
            sums.fill(T::Sum::default());
            for source in covered.clone() {
                let first = (plane * sizes.input.0 + source) * row_in;
                T::add_row(simd, &input[first..first + row_in], &mut sums);
            }
            // SAFETY: each row is written by the one task that has it.
            let to = unsafe { parts.range(row * row_out..(row + 1) * row_out) };
            T::write_means(simd, &sums, sizes.channels, &columns, covered.len(), to);
        }
    });
}

impl AreaPixel for u8 {
    type Sum = u32;

    fn add_row(simd: Simd, row: &[u8], sums: &mut [u32]) {
        add_u8(simd, row, sums);
    }

    fn write_means(_: Simd, sums: &[u32], channels: usize, columns: &[Range<usize>], rows: usize, to: &mut [u8]) {
        for (to, column) in to.chunks_exact_mut(channels).zip(columns) {
            let count = (rows * column.len()) as u64;
            for (channel, to) in to.iter_mut().enumerate() {
                let sum: u64 = column.clone().map(|x| u64::from(sums[x * channels + channel])).sum();
                let (mean, rest) = (sum / count, sum % count);
                let up = 2 * rest > count || (2 * rest == count && mean % 2 == 1);
                *to = (mean + u64::from(up)) as u8;
            }
        }
    }
}

impl AreaPixel for f32 {
    type Sum = f32;

    fn add_row(simd: Simd, row: &[f32], sums: &mut [f32]) {
        add_f32(simd, row, sums);
    }

    fn write_means(simd: Simd, sums: &[f32], channels: usize, columns: &[Range<usize>], rows: usize, to: &mut [f32]) {
        means_f32(simd, sums, channels, columns, rows, to);
    }
}

macro_rules! area_of_halves {
    ($half:ty) => {
        impl AreaPixel for $half {
            type Sum = f32;

            fn add_row(simd: Simd, row: &[$half], sums: &mut [f32]) {
                let mut wide = [0.0; WIDEN_LEN];
                for (row, sums) in row.chunks(WIDEN_LEN).zip(sums.chunks_mut(WIDEN_LEN)) {
                    let wide = &mut wide[..row.len()];
                    <$half>::widen(simd, row, wide);
                    add_f32(simd, wide, sums);
                }
            }

            fn write_means(
                simd: Simd,
                sums: &[f32],
                channels: usize,
                columns: &[Range<usize>],
                rows: usize,
                to: &mut [$half],
            ) {
                let mut means = vec![0.0; to.len()];
                means_f32(simd, sums, channels, columns, rows, &mut means);
                <$half>::narrow(simd, &means, to);
            }
        }
    };
}

/// Elements of a half-precision row that are widened at a time.
const WIDEN_LEN: usize = 512;

area_of_halves!(f16);
area_of_halves!(bf16);

simd_levels! {
    fn add_u8(row: &[u8], sums: &mut [u32]) {
        row.iter().zip(sums).for_each(|(value, sum)| *sum = sum.wrapping_add(u32::from(*value)));
    }
}

simd_levels! {
    fn add_f32(row: &[f32], sums: &mut [f32]) {
        row.iter().zip(sums).for_each(|(value, sum)| *sum += *value);
    }
}

simd_levels! {
    fn means_f32(sums: &[f32], channels: usize, columns: &[Range<usize>], rows: usize, to: &mut [f32]) {
        let in_columns = sums.len() / channels;
        let halves = channels == 1 && in_columns == 2 * columns.len();
        if halves {
            let factor = 1.0 / (2 * rows) as f32;
            for (to, pair) in to.iter_mut().zip(sums.as_chunks::<2>().0) {
                *to = (pair[0] + pair[1]) * factor;
            }
            return;
        }
        for (to, column) in to.chunks_exact_mut(channels).zip(columns) {
            let count = (rows * column.len()) as f32;
            for (channel, to) in to.iter_mut().enumerate() {
                let mut sum = 0.0;
                for x in column.clone() {
                    sum += sums[x * channels + channel];
                }
                *to = sum / count;
            }
        }
    }
}
