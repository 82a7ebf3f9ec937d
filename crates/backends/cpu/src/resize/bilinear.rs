//! Bilinear: columns first, into rows that are kept while the output rows need them, then rows.
//!
//! The column taps are tables over the *elements* of a row, so interleaved channels are no special
//! case. With AVX-512, sixteen outputs whose inputs are within 32 elements are permuted from two
//! registers; others are gathered.

use super::{Sizes, divide};
use crate::levels::simd_levels;
use crate::parts::DisjointSlice;
use crate::pixel::Pixel;
use crate::simd::Simd;
use crate::team::Team;

/// Computes the weighted mean of the four input pixels around each output pixel.
///
/// # Panics
/// If a slice does not have its stated size, or a non-empty output has an empty input.
pub fn bilinear<T: Pixel>(simd: Simd, team: &Team, sizes: &Sizes, input: &[T], output: &mut [T]) {
    if !sizes.check(input.len(), output.len()) {
        return;
    }
    let simd = simd.min(Simd::detect());
    if sizes.input == sizes.output {
        copy(team, input, output);
        return;
    }
    let columns = Columns::new(sizes);
    let rows: Vec<Tap> = (0..sizes.output.0).map(|y| Tap::new(y, sizes.input.0, sizes.output.0)).collect();
    let row_out = sizes.row_out();
    let parts = DisjointSlice::new(output);
    team.run_ranges(sizes.rows_out(), sizes.grain(size_of::<f32>()), &|range| {
        let mut band = Band::new(simd, sizes, &columns, input);
        for row in range {
            let (plane, y) = (row / sizes.output.0, row % sizes.output.0);
            // SAFETY: each row is written by exactly one task.
            let to = unsafe { parts.range(row * row_out..(row + 1) * row_out) };
            band.write_row(plane * sizes.input.0, &rows[y], to);
        }
    });
}

fn copy<T: Pixel>(team: &Team, input: &[T], output: &mut [T]) {
    let parts = DisjointSlice::new(output);
    team.run_ranges(input.len(), super::TASK_BYTES_MIN, &|range| {
        // SAFETY: the ranges are disjoint.
        unsafe { parts.range(range.clone()) }.copy_from_slice(&input[range]);
    });
}

/// The two input pixels around one output pixel of an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Tap {
    first: usize,
    second: usize,
    /// The second pixel's weight; the first pixel's weight is the complement to one.
    weight: f32,
}

impl Tap {
    /// The position is `((2·index + 1) · input - output) / (2 · output)`, in exact integers.
    fn new(index: usize, input: usize, output: usize) -> Tap {
        let (first, rest) = divide(2 * index + 1, input, output, 2 * output);
        let first = first.min(input - 1);
        Tap { first, second: (first + 1).min(input - 1), weight: (rest as f64 / (2 * output) as f64) as f32 }
    }
}

/// Elements that one block of the column tables covers.
const LANES: usize = 16;

/// The taps of every element of an output row. The constructor ensures that indices are below
/// `row_in`.
struct Columns {
    row_in: usize,
    first: Vec<u32>,
    second: Vec<u32>,
    weight: Vec<f32>,
    /// For each block of [`LANES`] elements, the starts of its two windows of `2 * LANES` inputs,
    /// if the windows suffice.
    windows: Vec<Option<(u32, u32)>>,
}

impl Columns {
    fn new(sizes: &Sizes) -> Columns {
        let len = sizes.row_out();
        let (mut first, mut second) = (Vec::with_capacity(len), Vec::with_capacity(len));
        let mut weight = Vec::with_capacity(len);
        for x in 0..sizes.output.1 {
            let tap = Tap::new(x, sizes.input.1, sizes.output.1);
            for channel in 0..sizes.channels {
                first.push((tap.first * sizes.channels + channel) as u32);
                second.push((tap.second * sizes.channels + channel) as u32);
                weight.push(tap.weight);
            }
        }
        let window = |indices: &[u32]| {
            let (low, high) = (indices.iter().min()?, indices.iter().max()?);
            ((high - low) < 2 * LANES as u32).then_some(*low)
        };
        let windows = first
            .chunks(LANES)
            .zip(second.chunks(LANES))
            .map(|(first, second)| Some((window(first)?, window(second)?)))
            .collect();
        Columns { row_in: sizes.row_in(), first, second, weight, windows }
    }

    /// Applies the column weights to one input row.
    fn apply(&self, simd: Simd, row: &[f32], to: &mut [f32]) {
        assert!(row.len() == self.row_in && to.len() == self.first.len(), "rows must fit the tables");
        match simd {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the level is at most the detected one, and the rows fit the tables.
            Simd::Avx512 => unsafe { x86::apply_avx512(self, row, to) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Simd::Avx2 => unsafe { x86::apply_avx2(self, row, to) },
            _ => self.apply_from(0, row, to),
        }
    }

    fn apply_from(&self, start: usize, row: &[f32], to: &mut [f32]) {
        for (index, to) in to.iter_mut().enumerate().skip(start) {
            let (first, second) = (row[self.first[index] as usize], row[self.second[index] as usize]);
            let weight = self.weight[index];
            *to = (1.0 - weight) * first + weight * second;
        }
    }
}

/// The pass of one thread over some output rows. It keeps the two current input rows with the
/// column weights applied.
struct Band<'a, T> {
    simd: Simd,
    sizes: &'a Sizes,
    columns: &'a Columns,
    input: &'a [T],
    wide: Vec<f32>,
    kept: [(Option<usize>, Vec<f32>); 2],
    blended: Vec<f32>,
}

impl<'a, T: Pixel> Band<'a, T> {
    fn new(simd: Simd, sizes: &'a Sizes, columns: &'a Columns, input: &'a [T]) -> Band<'a, T> {
        let row = || vec![0.0; sizes.row_out()];
        Band {
            simd,
            sizes,
            columns,
            input,
            wide: Vec::new(),
            kept: [(None, row()), (None, row())],
            blended: Vec::new(),
        }
    }

    fn write_row(&mut self, first_row: usize, tap: &Tap, to: &mut [T]) {
        let (first, second) = (first_row + tap.first, first_row + tap.second);
        // The row that stays in use keeps its slot; the other slot receives the new row.
        let upper = usize::from(self.kept[1].0 == Some(first));
        self.keep(upper, first);
        let lower = if second == first { upper } else { 1 - upper };
        self.keep(lower, second);
        let (upper, lower) = (&self.kept[upper].1, &self.kept[lower].1);
        match T::as_f32_mut(to) {
            Some(to) => blend(self.simd, upper, lower, tap.weight, to),
            None => {
                self.blended.resize(to.len(), 0.0);
                blend(self.simd, upper, lower, tap.weight, &mut self.blended);
                T::narrow(self.simd, &self.blended, to);
            }
        }
    }

    /// Ensures that `slot` holds input row `row`.
    fn keep(&mut self, slot: usize, row: usize) {
        if self.kept[slot].0 == Some(row) {
            return;
        }
        let row_in = self.sizes.row_in();
        let source = &self.input[row * row_in..(row + 1) * row_in];
        let wide = match T::as_f32(source) {
            Some(source) => source,
            None => {
                self.wide.resize(row_in, 0.0);
                T::widen(self.simd, source, &mut self.wide);
                &self.wide
            }
        };
        self.columns.apply(self.simd, wide, &mut self.kept[slot].1);
        self.kept[slot].0 = Some(row);
    }
}

simd_levels! {
    fn blend(upper: &[f32], lower: &[f32], weight: f32, to: &mut [f32]) {
        let rest = 1.0 - weight;
        for ((to, upper), lower) in to.iter_mut().zip(upper).zip(lower) {
            *to = rest * upper + weight * lower;
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Columns, LANES};
    use std::arch::x86_64::*;

    /// # Safety
    /// `row` and `to` must fit the tables.
    #[target_feature(enable = "avx512f")]
    pub unsafe fn apply_avx512(columns: &Columns, row: &[f32], to: &mut [f32]) {
        let one = _mm512_set1_ps(1.0);
        for (block, to) in to.chunks_mut(LANES).enumerate() {
            let lanes = mask(to.len());
            let at = block * LANES;
            // SAFETY: the tables have `to.len()` entries from `at` on, and masked-out lanes access
            // no memory. Every index is below `row.len()`.
            unsafe {
                let first = _mm512_maskz_loadu_epi32(lanes, columns.first.as_ptr().add(at).cast());
                let second = _mm512_maskz_loadu_epi32(lanes, columns.second.as_ptr().add(at).cast());
                let weight = _mm512_maskz_loadu_ps(lanes, columns.weight.as_ptr().add(at));
                let (a, b) = match columns.windows[block] {
                    Some((low, high)) => (permute(row, low, first), permute(row, high, second)),
                    None => {
                        let zero = _mm512_setzero_ps();
                        let gather = |index| _mm512_mask_i32gather_ps::<4>(zero, lanes, index, row.as_ptr());
                        (gather(first), gather(second))
                    }
                };
                let sum = _mm512_add_ps(_mm512_mul_ps(_mm512_sub_ps(one, weight), a), _mm512_mul_ps(weight, b));
                _mm512_mask_storeu_ps(to.as_mut_ptr(), lanes, sum);
            }
        }
    }

    /// Picks `row[index]` for each lane. All indices must be within 32 elements from `low` on.
    ///
    /// # Safety
    /// `low` must be below `row.len()`.
    #[target_feature(enable = "avx512f")]
    #[inline]
    unsafe fn permute(row: &[f32], low: u32, index: __m512i) -> __m512 {
        let start = low as usize;
        let left = row.len() - start;
        // SAFETY: lanes beyond the end of the row are masked out.
        unsafe {
            let near = _mm512_maskz_loadu_ps(mask(left), row.as_ptr().add(start));
            let far = _mm512_maskz_loadu_ps(mask(left.saturating_sub(LANES)), row.as_ptr().wrapping_add(start + LANES));
            _mm512_permutex2var_ps(near, _mm512_sub_epi32(index, _mm512_set1_epi32(low as i32)), far)
        }
    }

    /// The lowest `len` of sixteen lanes.
    #[inline(always)]
    fn mask(len: usize) -> __mmask16 {
        if len >= LANES { !0 } else { (1 << len) - 1 }
    }

    /// # Safety
    /// `row` and `to` must fit the tables.
    #[target_feature(enable = "avx2")]
    pub unsafe fn apply_avx2(columns: &Columns, row: &[f32], to: &mut [f32]) {
        const WIDTH: usize = 8;
        let one = _mm256_set1_ps(1.0);
        let whole = to.len() - to.len() % WIDTH;
        for at in (0..whole).step_by(WIDTH) {
            // SAFETY: the tables and `to` have eight entries from `at` on, and every index is below
            // `row.len()`.
            unsafe {
                let gather = |table: &[u32]| {
                    let index = _mm256_loadu_si256(table.as_ptr().add(at).cast());
                    _mm256_i32gather_ps::<4>(row.as_ptr(), index)
                };
                let weight = _mm256_loadu_ps(columns.weight.as_ptr().add(at));
                let (a, b) = (gather(&columns.first), gather(&columns.second));
                let sum = _mm256_add_ps(_mm256_mul_ps(_mm256_sub_ps(one, weight), a), _mm256_mul_ps(weight, b));
                _mm256_storeu_ps(to.as_mut_ptr().add(at), sum);
            }
        }
        columns.apply_from(whole, row, to);
    }
}
