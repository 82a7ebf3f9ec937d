//! What happens to rows between the two products: weights of scores, sums under a new largest score, and the last division.

use crate::gemm::Output;
use crate::lanes::{Kernel, Level, mul_add};
use crate::reduce::{Greatest, max_of_row, wide_total};
use crate::softmax::Exponential;

/// Adds a row of elements to each row of scores; rows are `step` elements apart.
pub(super) struct AddRows<'a, M> {
    pub(super) scores: &'a mut [f32],
    pub(super) keys: usize,
    pub(super) elements: &'a [M],
    pub(super) step: usize,
}

impl<M: Output<Acc = f32>> Kernel for AddRows<'_, M> {
    type Output = ();
    #[inline(always)]
    fn run<L: Level>(self) {
        for (row, scores) in self.scores.chunks_exact_mut(self.keys).enumerate() {
            for (score, element) in scores.iter_mut().zip(&self.elements[row * self.step..][..self.keys]) {
                *score += element.widen();
            }
        }
    }
}

/// Makes weights of scores, in place. Each row's largest score and total move on; `corrections` says by how much what was summed
/// before has to be scaled down.
pub(super) struct Soften<'a> {
    pub(super) scores: &'a mut [f32],
    pub(super) keys: usize,
    pub(super) largest: &'a mut [f32],
    pub(super) totals: &'a mut [f64],
    pub(super) corrections: &'a mut [f32],
}

impl Kernel for Soften<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Level>(self) {
        let stats = self.largest.iter_mut().zip(self.totals.iter_mut()).zip(self.corrections.iter_mut());
        for (scores, ((largest, total), correction)) in self.scores.chunks_exact_mut(self.keys).zip(stats) {
            let here = max_of_row::<f32, Greatest>(scores);
            // NaN stays the largest, and becomes it through the weights at the latest.
            let now = if here > *largest || here.is_nan() { here } else { *largest };
            // As long as every key is masked there is nothing to subtract.
            let base = if now == f32::NEG_INFINITY { 0.0 } else { now };
            for score in scores.iter_mut() {
                *score = Exponential::exp::<L>(*score - base);
            }
            *correction = Exponential::exp::<L>(*largest - base);
            *total = *total * f64::from(*correction) + wide_total(scores);
            *largest = now;
        }
    }
}

/// Scales sums down and adds to them.
pub(super) struct Gather<'a> {
    pub(super) sums: &'a mut [f32],
    pub(super) weighted: &'a [f32],
    pub(super) corrections: &'a [f32],
    pub(super) len: usize,
}

impl Kernel for Gather<'_> {
    type Output = ();
    #[inline(always)]
    fn run<L: Level>(self) {
        let rows = self.sums.chunks_exact_mut(self.len).zip(self.weighted.chunks_exact(self.len));
        for ((sums, weighted), correction) in rows.zip(self.corrections) {
            for (sum, weighted) in sums.iter_mut().zip(weighted) {
                *sum = mul_add::<L>(*sum, *correction, *weighted);
            }
        }
    }
}

/// Divides by the totals; rows of which no key was seen are zeros.
pub(super) struct Finish<'a, T> {
    pub(super) sums: &'a [f32],
    pub(super) totals: &'a [f64],
    pub(super) len: usize,
    pub(super) out: &'a mut [T],
}

impl<T: Output<Acc = f32>> Kernel for Finish<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<L: Level>(self) {
        if self.len == 0 {
            return;
        }
        let rows = self.out.chunks_exact_mut(self.len).zip(self.sums.chunks_exact(self.len));
        for ((out, sums), total) in rows.zip(self.totals) {
            let factor = (1.0 / total) as f32;
            for (out, sum) in out.iter_mut().zip(sums) {
                *out = T::narrow(if *total == 0.0 { 0.0 } else { *sum * factor });
            }
        }
    }
}

/// Rows of 16-bit floats as f32, one after the other.
pub(super) struct Widen<'a, T> {
    pub(super) rows: &'a [T],
    pub(super) step: usize,
    pub(super) cols: usize,
    pub(super) out: &'a mut [f32],
}

impl<T: Output<Acc = f32>> Kernel for Widen<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<L: Level>(self) {
        for (row, out) in self.out.chunks_exact_mut(self.cols).enumerate() {
            for (out, element) in out.iter_mut().zip(&self.rows[row * self.step..][..self.cols]) {
                *out = element.widen();
            }
        }
    }
}
