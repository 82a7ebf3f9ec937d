//! Row operations between the two products: weights from scores, sums under a new maximum, and the
//! final division.

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

/// Replaces the scores by weights, in place, and updates each row's largest score and total.
/// `corrections` receives the factors by which the previous sums have to be scaled down.
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
            // NaN stays the maximum once it is; a NaN in the middle of a row reaches the total
            // through the weights.
            let now = if here > *largest || here.is_nan() { here } else { *largest };
            // While every key so far is masked, the maximum is minus infinity and 0 is subtracted
            // instead.
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

/// Scales the sums by the corrections and adds the weighted values.
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

/// Divides the sums by the totals. Rows that see no key become zeros.
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

/// Converts rows of 16-bit floats to contiguous f32 rows.
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
