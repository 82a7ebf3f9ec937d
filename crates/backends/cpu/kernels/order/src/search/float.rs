//! Scoring with `f32` arithmetic: rows of any element type are widened during the scan, queries are
//! widened before.

use super::lanes::{self, Kernel, LANES_MAX, Lanes, RowElement};
use super::row_scan::{PaddedQueries, RowScan, Scales, SquaredNorms};
use super::scan::{Scorer, Scratch};
use super::sink::{Metric, RowIds, Sink};
use super::tile::{BLOCK_ROWS, PackedQueries, Panel, TileScan, TileSink};
use crate::scratch;
use crate::simd::Simd;

/// Scores rows against one group of queries.
pub(super) struct FloatScorer<'a, T> {
    simd: Simd,
    metric: Metric,
    rows: &'a [T],
    dim: usize,
    row_norms: Option<&'a [f32]>,
    padded: PaddedQueries,
    packed: PackedQueries,
    /// The inverse of each query's length, with padding for whole panels; empty unless the metric
    /// is the cosine.
    query_scales: Vec<f32>,
}

impl<'a, T: RowElement> FloatScorer<'a, T> {
    /// Prepares `count` queries of `dim` elements.
    pub(super) fn new<Q: RowElement>(
        simd: Simd,
        metric: Metric,
        rows: &'a [T],
        queries: &[Q],
        dim: usize,
        count: usize,
        row_norms: Option<&'a [f32]>,
    ) -> Self {
        let simd = simd.min(Simd::detect());
        let padded = PaddedQueries::new(queries, dim, count);
        let packed = PackedQueries::new(simd, padded.values(), padded.stride(), dim, count);
        let mut query_scales = Vec::new();
        if metric == Metric::Cosine {
            query_scales.extend(queries.chunks_exact(dim.max(1)).take(count).map(|query| inverse(exact_norm(query))));
            scratch::resize(&mut query_scales, count.max(packed.lanes_end()), 0.0);
        }
        FloatScorer { simd, metric, rows, dim, row_norms, padded, packed, query_scales }
    }

    /// Computes the inverse of each row's length, with padding for a whole block.
    fn row_scales(&self, ids: RowIds<'_>, count: usize, scales: &mut Vec<f32>) {
        scales.clear();
        scratch::resize(scales, count.next_multiple_of(BLOCK_ROWS), 0.0);
        if let Some(norms) = self.row_norms {
            for (index, scale) in scales[..count].iter_mut().enumerate() {
                *scale = inverse(norms[ids.get(index) as usize]);
            }
            return;
        }
        let out = &mut scales[..count];
        lanes::run(self.simd, SquaredNorms { rows: self.rows, dim: self.dim, ids, out });
        for (index, scale) in scales[..count].iter_mut().enumerate() {
            *scale = inverse_of_square(*scale, self.rows, self.dim, ids.get(index));
        }
    }

    /// Scans `f32` rows in place. Other rows, and the last, incomplete block, are scanned through a
    /// widened copy.
    fn scan_panels(&self, ids: RowIds<'_>, count: usize, sink: &mut Sink, scratch: &mut Scratch) {
        let mut first = 0;
        if let (RowIds::From(id), Some(rows)) = (ids, T::as_f32(self.rows)) {
            first = count - count % BLOCK_ROWS;
            let rows = &rows[id as usize * self.dim..];
            let Scratch { row_scales, partial, .. } = scratch;
            self.scan_block(rows, self.dim, RowIds::From(id), first, true, row_scales, partial, sink);
        }
        if first == count {
            return;
        }
        let rest = ids.from(first);
        // The stride is one cache line more than necessary, so that rows do not map to the same
        // cache sets.
        let stride = self.dim.next_multiple_of(LANES_MAX) + LANES_MAX;
        let count = count - first;
        scratch::resize(&mut scratch.staged, count.next_multiple_of(BLOCK_ROWS) * stride, 0.0);
        let staged = &mut scratch.staged;
        lanes::run(self.simd, Widen { rows: self.rows, dim: self.dim, ids: rest, count, stride, to: staged });
        let scales = scratch.row_scales.get(first..).unwrap_or_default();
        self.scan_block(&scratch.staged, stride, rest, count, false, scales, &mut scratch.partial, sink);
    }

    /// Scans one run of rows with every panel; only the first panel prefetches the data after the
    /// rows.
    fn scan_block(
        &self,
        rows: &[f32],
        stride: usize,
        ids: RowIds<'_>,
        valid: usize,
        prefetch: bool,
        row_scales: &[f32],
        partial: &mut Vec<f32>,
        sink: &mut Sink,
    ) {
        for (index, panel) in self.packed.panels().iter().enumerate() {
            let sink = self.tile_sink(*panel, ids, valid, row_scales, sink);
            let differences = self.metric == Metric::Euclidean;
            let prefetch = prefetch && index == 0;
            lanes::run(
                self.simd,
                TileScan { rows, stride, queries: &self.packed, differences, prefetch, partial, sink },
            );
        }
    }

    fn tile_sink<'s>(
        &'s self,
        panel: Panel,
        ids: RowIds<'s>,
        valid: usize,
        row_scales: &'s [f32],
        sink: &'s mut Sink,
    ) -> TileSink<'s> {
        let scales = (self.metric == Metric::Cosine).then_some((row_scales, &self.query_scales[..]));
        TileSink { panel, valid, ids, scales, sink }
    }
}

impl<T: RowElement> Scorer for FloatScorer<'_, T> {
    fn lanes_end(&self) -> usize {
        self.packed.lanes_end()
    }

    fn scan(&self, ids: RowIds<'_>, count: usize, sink: &mut Sink, scratch: &mut Scratch) {
        let cosine = self.metric == Metric::Cosine;
        let alone = self.packed.panels().is_empty() && self.row_norms.is_none();
        if cosine && !alone {
            self.row_scales(ids, count, &mut scratch.row_scales);
        }
        if !self.packed.panels().is_empty() {
            self.scan_panels(ids, count, sink, scratch);
        }
        if self.packed.packed_count() == self.padded.count() {
            return;
        }
        let scales = match (cosine, alone) {
            (false, _) => Scales::None,
            (true, false) => Scales::Ready { rows: &scratch.row_scales, queries: &self.query_scales },
            (true, true) => Scales::FromRows { queries: &self.query_scales },
        };
        let scan = RowScan {
            rows: self.rows,
            dim: self.dim,
            ids,
            count,
            queries: &self.padded,
            first_query: self.packed.packed_count(),
            differences: self.metric == Metric::Euclidean,
            scales,
            sink,
        };
        lanes::run(self.simd, scan);
    }
}

/// Sums of squares in this range are not noticeably affected by overflow or underflow.
const SQUARE_SAFE: std::ops::Range<f32> = 1.0e-30..1.0e37;

/// The inverse of the length of row `id`, given its sum of squares.
#[inline(always)]
pub(super) fn inverse_of_square<T: RowElement>(square: f32, rows: &[T], dim: usize, id: u32) -> f32 {
    if SQUARE_SAFE.contains(&square) {
        1.0 / square.sqrt()
    } else {
        inverse(exact_norm(&rows[id as usize * dim..][..dim]))
    }
}

/// The length of a vector, for elements of any magnitude.
pub(super) fn exact_norm<T: RowElement>(vector: &[T]) -> f32 {
    vector.iter().map(|value| f64::from(value.widen()).powi(2)).sum::<f64>().sqrt() as f32
}

/// The inverse of a length; zero for a zero vector, so that it scores 0.
pub(super) fn inverse(norm: f32) -> f32 {
    if norm == 0.0 { 0.0 } else { (1.0 / norm).clamp(-f32::MAX, f32::MAX) }
}

/// Copies `count` rows as `f32`, `stride` apart.
struct Widen<'a, T> {
    rows: &'a [T],
    dim: usize,
    ids: RowIds<'a>,
    count: usize,
    stride: usize,
    to: &'a mut [f32],
}

impl<T: RowElement> Kernel for Widen<'_, T> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        for (index, to) in self.to.chunks_exact_mut(self.stride).take(self.count).enumerate() {
            let row = &self.rows[self.ids.get(index) as usize * self.dim..][..self.dim];
            let to = to.as_mut_ptr();
            let mut k = 0;
            // SAFETY: whole vectors below `dim` are in the row. The stride is a multiple of every
            // vector and at least `dim`, so the last store fits too.
            unsafe {
                while k + L::WIDTH <= self.dim {
                    L::store(to.add(k), T::load::<L>(row.as_ptr().add(k)));
                    k += L::WIDTH;
                }
                if k < self.dim {
                    L::store(to.add(k), T::load_part::<L>(row.as_ptr().add(k), self.dim - k));
                }
            }
        }
    }
}
