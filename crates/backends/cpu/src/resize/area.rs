//! Area: each output pixel is the mean of the box of input pixels that it covers.
//!
//! The rows of a box are added first, whole rows at a time, then the columns of the resulting row
//! of sums. Sums of boxes below [`SMALL_BOX_PIXELS`] are `f32`, in which sums of bytes are exact
//! and their quotient rounds to the right byte. Larger boxes are summed in `f64`, with the same
//! guarantee.

use super::{Sizes, cover};
use crate::levels::simd_levels;
use crate::parts::DisjointSlice;
use crate::pixel::Pixel;
use crate::simd::Simd;
use crate::team::Team;
use std::ops::Range;

/// Boxes of fewer pixels are summed in `f32`. With `n` pixels, a mean of bytes that is not a tie is
/// at least `1 / 2n` away from one, and half a unit in the last place of an `f32` below 256 is at
/// most `2^-17`.
const SMALL_BOX_PIXELS: usize = 1 << 16;
/// Elements that are widened at a time.
const WIDEN_LEN: usize = 512;

/// Averages boxes of input pixels.
///
/// # Panics
/// If a slice does not have its stated size, or a non-empty output has an empty input.
pub fn area<T: Pixel>(simd: Simd, team: &Team, sizes: &Sizes, input: &[T], output: &mut [T]) {
    if !sizes.check(input.len(), output.len()) {
        return;
    }
    let simd = simd.min(Simd::detect());
    let columns = Columns::new(sizes);
    let rows_max = (0..sizes.output.0).map(|y| cover(y, sizes.input.0, sizes.output.0).len()).max().unwrap_or(0);
    let large = rows_max.saturating_mul(columns.len_max) >= SMALL_BOX_PIXELS;
    let (row_in, row_out) = (sizes.row_in(), sizes.row_out());
    // Reading dominates, so the grain is measured in input.
    let grain = (super::TASK_BYTES_MIN / (row_in * size_of::<T>()).saturating_mul(rows_max).max(1)).max(1);
    let parts = DisjointSlice::new(output);
    team.run_ranges(sizes.rows_out(), grain, &|rows| {
        // SAFETY: ranges of rows are disjoint, so the ranges of their elements are disjoint too.
        let to = unsafe { parts.range(rows.start * row_out..rows.end * row_out) };
        let mut band =
            Band { simd, columns: &columns, input, row_in, sums: vec![0.0; row_in], means: vec![0.0; row_out] };
        let mut written = 0..0;
        for (index, row) in rows.enumerate() {
            let (plane, y) = (row / sizes.output.0, row % sizes.output.0);
            let covered = cover(y, sizes.input.0, sizes.output.0);
            let covered = plane * sizes.input.0 + covered.start..plane * sizes.input.0 + covered.end;
            if written == covered {
                to.copy_within((index - 1) * row_out..index * row_out, index * row_out);
                continue;
            }
            let target = &mut to[index * row_out..(index + 1) * row_out];
            if large {
                band.write_large(covered.clone(), target)
            } else {
                band.write_small(covered.clone(), target)
            }
            written = covered;
        }
    });
}

/// The columns of the boxes, for every element of an output row. All of them are within `row_in`.
struct Columns {
    row_in: usize,
    channels: usize,
    /// The first element of each box.
    start: Vec<u32>,
    /// Number of columns of each box.
    len: Vec<u32>,
    len_max: usize,
    /// True if every box is two adjacent columns of one channel.
    halves: bool,
}

impl Columns {
    fn new(sizes: &Sizes) -> Columns {
        let (mut start, mut len) = (Vec::with_capacity(sizes.row_out()), Vec::with_capacity(sizes.row_out()));
        for x in 0..sizes.output.1 {
            let covered = cover(x, sizes.input.1, sizes.output.1);
            for channel in 0..sizes.channels {
                start.push((covered.start * sizes.channels + channel) as u32);
                len.push(covered.len() as u32);
            }
        }
        let len_max = len.iter().copied().max().unwrap_or(0) as usize;
        let halves = sizes.channels == 1 && sizes.input.1 == 2 * sizes.output.1;
        Columns { row_in: sizes.row_in(), channels: sizes.channels, start, len, len_max, halves }
    }

    /// Computes the mean of each box from the sums of its `rows` rows.
    fn means(&self, simd: Simd, sums: &[f32], rows: usize, to: &mut [f32]) {
        assert!(sums.len() == self.row_in && to.len() == self.start.len(), "rows must fit the tables");
        match simd {
            _ if self.halves => means_of_pairs(simd, sums, (2 * rows) as f32, to),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the level is at most the detected one, and the rows fit the tables.
            Simd::Avx512 if self.len_max <= x86::LEN_MAX => unsafe { x86::means(self, sums, rows, to) },
            _ => {
                for (to, (&start, &len)) in to.iter_mut().zip(self.start.iter().zip(&self.len)) {
                    let columns = sums[start as usize..].iter().step_by(self.channels).take(len as usize);
                    *to = columns.sum::<f32>() / (rows * len as usize) as f32;
                }
            }
        }
    }
}

/// The rows of output of one thread.
struct Band<'a, T> {
    simd: Simd,
    columns: &'a Columns,
    input: &'a [T],
    row_in: usize,
    sums: Vec<f32>,
    means: Vec<f32>,
}

impl<T: Pixel> Band<'_, T> {
    fn row(&self, row: usize) -> &[T] {
        &self.input[row * self.row_in..(row + 1) * self.row_in]
    }

    fn write_small(&mut self, rows: Range<usize>, to: &mut [T]) {
        let mut sums = std::mem::take(&mut self.sums);
        T::widen(self.simd, self.row(rows.start), &mut sums);
        for row in rows.start + 1..rows.end {
            each_widened(self.simd, self.row(row), |at, wide| add(self.simd, wide, &mut sums[at..]));
        }
        match T::as_f32_mut(to) {
            Some(to) => self.columns.means(self.simd, &sums, rows.len(), to),
            None => {
                self.columns.means(self.simd, &sums, rows.len(), &mut self.means);
                T::narrow(self.simd, &self.means, to);
            }
        }
        self.sums = sums;
    }

    fn write_large(&mut self, rows: Range<usize>, to: &mut [T]) {
        let mut sums = vec![0.0; self.row_in];
        for row in rows.clone() {
            each_widened(self.simd, self.row(row), |at, wide| add_wide(self.simd, wide, &mut sums[at..]));
        }
        let columns = self.columns;
        for (mean, (&start, &len)) in self.means.iter_mut().zip(columns.start.iter().zip(&columns.len)) {
            let sum: f64 = sums[start as usize..].iter().step_by(columns.channels).take(len as usize).sum();
            let quotient = sum / (rows.len() as f64 * f64::from(len));
            *mean = if T::INTEGER { quotient.round_ties_even() } else { quotient } as f32;
        }
        T::narrow(self.simd, &self.means, to);
    }
}

/// Visits a row as `f32`, in pieces, each with the position of its first element.
fn each_widened<T: Pixel>(simd: Simd, row: &[T], mut visit: impl FnMut(usize, &[f32])) {
    if let Some(row) = T::as_f32(row) {
        return visit(0, row);
    }
    let mut wide = [0.0; WIDEN_LEN];
    for (index, piece) in row.chunks(WIDEN_LEN).enumerate() {
        let wide = &mut wide[..piece.len()];
        T::widen(simd, piece, wide);
        visit(index * WIDEN_LEN, wide);
    }
}

simd_levels! {
    fn add(row: &[f32], sums: &mut [f32]) {
        row.iter().zip(sums).for_each(|(value, sum)| *sum += *value);
    }
}

simd_levels! {
    fn add_wide(row: &[f32], sums: &mut [f64]) {
        row.iter().zip(sums).for_each(|(value, sum)| *sum += f64::from(*value));
    }
}

simd_levels! {
    fn means_of_pairs(sums: &[f32], count: f32, to: &mut [f32]) {
        for (to, pair) in to.iter_mut().zip(sums.as_chunks::<2>().0) {
            *to = (pair[0] + pair[1]) / count;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Columns;
    use std::arch::x86_64::*;

    /// Maximum width of boxes for this function; wider boxes are summed one by one.
    pub const LEN_MAX: usize = 16;
    const LANES: usize = 16;

    /// Sums sixteen boxes at a time, gathering one column of each in a step.
    ///
    /// # Safety
    /// `sums` and `to` must fit the tables.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn means(columns: &Columns, sums: &[f32], rows: usize, to: &mut [f32]) {
        let (rows, step) = (_mm512_set1_ps(rows as f32), _mm512_set1_epi32(columns.channels as i32));
        for (block, to) in to.chunks_mut(LANES).enumerate() {
            let lanes: __mmask16 = if to.len() == LANES { !0 } else { (1 << to.len()) - 1 };
            // SAFETY: the tables have `to.len()` entries from the block on, and masked-out lanes
            // access no memory. A lane is gathered only while its column is within its box, and
            // boxes are within `sums`.
            unsafe {
                let mut index = _mm512_maskz_loadu_epi32(lanes, columns.start.as_ptr().add(block * LANES).cast());
                let len = _mm512_maskz_loadu_epi32(lanes, columns.len.as_ptr().add(block * LANES).cast());
                let mut sum = _mm512_setzero_ps();
                let mut column = 0;
                loop {
                    let within = _mm512_cmpgt_epi32_mask(len, _mm512_set1_epi32(column));
                    if within == 0 {
                        break;
                    }
                    let values = _mm512_mask_i32gather_ps::<4>(_mm512_setzero_ps(), within, index, sums.as_ptr());
                    sum = _mm512_mask_add_ps(sum, within, sum, values);
                    index = _mm512_add_epi32(index, step);
                    column += 1;
                }
                let count = _mm512_mul_ps(_mm512_cvtepi32_ps(len), rows);
                _mm512_mask_storeu_ps(to.as_mut_ptr(), lanes, _mm512_div_ps(sum, count));
            }
        }
    }
}
