//! Softmax and its logarithm along one axis.
//!
//! The maximum of each line is subtracted first, so that no exponential overflows. Exponentials are
//! summed as in [`crate::reduce`]. A line that has only -∞, or that contains +∞ or NaN, becomes NaN
//! throughout, as in PyTorch; with an empty axis nothing is written. Probabilities below the
//! smallest normal number become zero.

mod columns;
mod exponential;

use half::{bf16, f16};
use panoply_cpu_machine::compile_once;

use crate::extents::Extents;
use crate::lanes::{Kernel, Level, dispatch};
use crate::parts::DisjointSlice;
use crate::reduce::{self, ComputeFloat, Greatest, OrderedElement, Real, max_of_row, wide_total};
use crate::simd::Simd;
use crate::team::Team;
pub use exponential::Exponential;

/// Elements whose exponentials are stored at a time.
const BLOCK: usize = 512;
/// Minimum elements of one task.
const GRAIN_ELEMENTS: usize = 1 << 14;
/// Minimum elements of rows that are split among threads.
const LONG_ROW_LEN: usize = 1 << 17;

/// An element type with a softmax: every float.
pub trait Soft: Real<Wide: Exponential> + OrderedElement<Key = <Self as Real>::Wide> + SoftmaxKernels {}
impl<T: Real<Wide: Exponential> + OrderedElement<Key = <T as Real>::Wide> + SoftmaxKernels> Soft for T {}

/// Writes the softmax along the axis, or its logarithm.
pub fn softmax<T: Soft>(simd: Simd, team: &Team, input: &[T], extents: Extents, log: bool, out: &mut [T]) {
    T::soften(simd, team, input, extents, log, out);
}

compile_once! {
    /// The softmax of an element type.
    pub trait SoftmaxKernels: Soft {
        fn soften(simd: Simd, team: &Team, input: &[Self], extents: Extents, log: bool, out: &mut [Self]) = soften;
    } for f32, f16, bf16, f64
}

fn soften<T: Soft>(simd: Simd, team: &Team, input: &[T], extents: Extents, log: bool, out: &mut [T]) {
    assert_eq!(input.len(), extents.elements());
    assert_eq!(input.len(), out.len());
    if input.is_empty() {
        return;
    }
    if extents.inner > 1 {
        return columns::softmax(simd, team, input, extents, log, out);
    }
    let len = extents.axis;
    if len >= LONG_ROW_LEN && team.threads() > 1 {
        for (row, out) in input.chunks_exact(len).zip(out.chunks_exact_mut(len)) {
            long_row(simd, team, row, log, out);
        }
        return;
    }
    let shared = DisjointSlice::new(out);
    team.run_ranges(extents.outer, GRAIN_ELEMENTS.div_ceil(len), &|rows| {
        let range = rows.start * len..rows.end * len;
        // SAFETY: the ranges of one job do not overlap.
        let out = unsafe { shared.range(range.clone()) };
        dispatch(simd, SoftmaxRows { input: &input[range], len, log, out });
    });
}

/// Computes a row with all threads, chunk by chunk.
fn long_row<T: Soft>(simd: Simd, team: &Team, row: &[T], log: bool, out: &mut [T]) {
    let mut greatest = [row[0]];
    reduce::max(simd, team, row, Extents::row(row.len()), &mut greatest);
    let max = greatest[0].widen();
    let chunks = row.len().div_ceil(GRAIN_ELEMENTS);
    let range = |chunk: usize| chunk * GRAIN_ELEMENTS..row.len().min((chunk + 1) * GRAIN_ELEMENTS);
    let mut totals = vec![0.0; chunks];
    let shared = DisjointSlice::new(&mut totals);
    team.run(chunks, &|chunk| {
        // SAFETY: every task has its own chunk.
        let total = unsafe { shared.range(chunk..chunk + 1) };
        total[0] = dispatch(simd, Total { row: &row[range(chunk)], max });
    });
    let total: f64 = totals.iter().sum();
    let shared = DisjointSlice::new(out);
    team.run(chunks, &|chunk| {
        // SAFETY: every task has its own chunk.
        let out = unsafe { shared.range(range(chunk)) };
        dispatch(simd, Finish { row: &row[range(chunk)], max, total, log, out });
    });
}

/// Whole rows, one after the other.
struct SoftmaxRows<'a, T> {
    input: &'a [T],
    len: usize,
    log: bool,
    out: &'a mut [T],
}

impl<T: Soft> Kernel for SoftmaxRows<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<L: Level>(self) {
        for (row, out) in self.input.chunks_exact(self.len).zip(self.out.chunks_exact_mut(self.len)) {
            let max = max_of_row::<T, Greatest>(row);
            if !self.log && size_of::<T>() == size_of::<T::Wide>() {
                // The exponentials are stored in the output until the sum is known.
                let wide: &mut [T::Wide] = bytemuck::cast_slice_mut(out);
                for (out, element) in wide.iter_mut().zip(row) {
                    *out = (element.widen() - max).exp::<L>();
                }
                scale(wide);
            } else {
                let total = exponential_total::<T, L>(row, max);
                finish::<T, L>(row, max, total, self.log, out);
            }
        }
    }
}

/// Divides the values by their sum.
#[inline(always)]
fn scale<W: Exponential>(values: &mut [W]) {
    let factor = W::from_f64(1.0 / wide_total(values));
    for value in values {
        *value = *value * factor;
    }
}

/// The sum of the exponentials of a part of a row.
struct Total<'a, T: Real> {
    row: &'a [T],
    max: T::Wide,
}

impl<T: Soft> Kernel for Total<'_, T> {
    type Output = f64;
    #[inline(always)]
    fn run<L: Level>(self) -> f64 {
        exponential_total::<T, L>(self.row, self.max)
    }
}

/// Writes the results for a part of a row whose maximum and sum are known.
struct Finish<'a, T: Real> {
    row: &'a [T],
    max: T::Wide,
    total: f64,
    log: bool,
    out: &'a mut [T],
}

impl<T: Soft> Kernel for Finish<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<L: Level>(self) {
        finish::<T, L>(self.row, self.max, self.total, self.log, self.out);
    }
}

#[inline(always)]
fn exponential_total<T: Soft, L: Level>(row: &[T], max: T::Wide) -> f64 {
    let mut total = 0.0;
    let mut values = [T::Wide::ZERO; BLOCK];
    for part in row.chunks(BLOCK) {
        for (value, element) in values.iter_mut().zip(part) {
            *value = (element.widen() - max).exp::<L>();
        }
        total += wide_total(&values[..part.len()]);
    }
    total
}

#[inline(always)]
fn finish<T: Soft, L: Level>(row: &[T], max: T::Wide, total: f64, log: bool, out: &mut [T]) {
    if log {
        let shift = T::Wide::from_f64(total.ln());
        for (out, element) in out.iter_mut().zip(row) {
            *out = T::narrow(element.widen() - max - shift);
        }
    } else {
        let factor = T::Wide::from_f64(1.0 / total);
        for (out, element) in out.iter_mut().zip(row) {
            *out = T::narrow((element.widen() - max).exp::<L>() * factor);
        }
    }
}
