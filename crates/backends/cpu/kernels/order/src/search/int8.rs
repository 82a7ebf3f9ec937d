//! Scoring `i8` rows with `i8` queries in exact integers.
//!
//! The instruction that multiplies bytes (VNNI) takes unsigned × signed, so rows are read with 128
//! added to each element, and 128 times the sum of the query's elements is subtracted from the
//! result.

use super::float::{exact_norm, inverse};
use super::scan::{Scorer, Scratch};
use super::sink::{Metric, RowIds, Sink};
use super::tile::{BLOCK_ROWS, Panel};
use crate::scratch;
use crate::simd::Simd;

#[cfg(target_arch = "x86_64")]
#[path = "int8_x86.rs"]
mod x86;

/// Maximum dimension for which a squared distance, at most 255² for each element, fits an `i32`.
pub(super) const DIM_MAX: usize = 1 << 15;

/// Queries are padded with zeros to a multiple of this: the widest load of any level.
const PAD: usize = 64;

/// Rows that are scored together.
const ROWS: usize = 8;

/// The instructions to use: those of the level, and VNNI if the CPU has it besides AVX-512.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Level {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Vnni,
}

impl Level {
    #[cfg(target_arch = "x86_64")]
    fn of(simd: Simd) -> Level {
        match simd.min(Simd::detect()) {
            Simd::Avx512 if is_x86_feature_detected!("avx512vnni") => Level::Vnni,
            Simd::Avx512 | Simd::Avx2 => Level::Avx2,
            _ => Level::Portable,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn of(_simd: Simd) -> Level {
        Level::Portable
    }
}

/// Scores rows against one group of queries.
pub(super) struct Int8Scorer<'a> {
    level: Level,
    metric: Metric,
    rows: &'a [i8],
    dim: usize,
    row_norms: Option<&'a [f32]>,
    queries: Queries,
    panels: Vec<Panel>,
    /// The queries of the panels: for each four dimensions, a line with four bytes for each lane.
    packed: Vec<i8>,
}

/// Queries and their precomputed sums, squares and scales, padded for whole panels.
struct Queries {
    count: usize,
    values: Vec<i8>,
    stride: usize,
    sums: Vec<i32>,
    squares: Vec<i32>,
    scales: Vec<f32>,
}

impl Queries {
    fn new(queries: &[i8], dim: usize, count: usize, padded: usize) -> Queries {
        let stride = dim.next_multiple_of(PAD);
        let mut this = Queries {
            count,
            values: scratch::zeroed(stride * count),
            stride,
            sums: scratch::zeroed(padded),
            squares: scratch::zeroed(padded),
            scales: scratch::zeroed(padded),
        };
        for index in 0..count {
            let query = &queries[index * dim..][..dim];
            this.values[index * stride..][..dim].copy_from_slice(query);
            this.sums[index] = query.iter().map(|value| i32::from(*value)).sum();
            this.squares[index] = squared_norm(query);
            this.scales[index] = inverse(exact_norm(query));
        }
        this
    }

    fn get(&self, index: usize) -> &[i8] {
        &self.values[index * self.stride..][..self.stride]
    }
}

impl<'a> Int8Scorer<'a> {
    /// Prepares `count` queries of `dim` elements. `dim` is at most [`DIM_MAX`].
    pub(super) fn new(
        simd: Simd,
        metric: Metric,
        rows: &'a [i8],
        queries: &[i8],
        dim: usize,
        count: usize,
        row_norms: Option<&'a [f32]>,
    ) -> Int8Scorer<'a> {
        assert!(dim <= DIM_MAX);
        let level = Level::of(simd);
        let panels = tile_panels(level, count);
        let lanes_end = panels.last().map_or(0, |panel| panel.first + panel.lanes);
        let queries = Queries::new(queries, dim, count, lanes_end.max(count));
        let packed = pack(&panels, &queries, dim, lanes_end);
        Int8Scorer { level, metric, rows, dim, row_norms, queries, panels, packed }
    }

    /// Computes the inverse length or the squared length of each row, as the metric requires.
    fn prepare_rows(&self, ids: RowIds<'_>, count: usize, scratch: &mut Scratch) {
        scratch.row_squares.clear();
        scratch::resize(&mut scratch.row_squares, count.next_multiple_of(BLOCK_ROWS), 0);
        scratch.row_scales.clear();
        scratch::resize(&mut scratch.row_scales, count.next_multiple_of(BLOCK_ROWS), 0.0);
        for index in 0..count {
            let row = ids.get(index) as usize;
            match (self.metric, self.row_norms) {
                (Metric::Dot, _) => return,
                (Metric::Cosine, Some(norms)) => scratch.row_scales[index] = inverse(norms[row]),
                (Metric::Cosine, None) => {
                    let square = f64::from(squared_norm(&self.rows[row * self.dim..][..self.dim]));
                    scratch.row_scales[index] = inverse(square.sqrt() as f32);
                }
                (Metric::Euclidean, _) => {
                    scratch.row_squares[index] = squared_norm(&self.rows[row * self.dim..][..self.dim]);
                }
            }
        }
    }

    /// Scores eight rows at a time against each query from `first_query` on.
    fn scan_rows(&self, ids: RowIds<'_>, count: usize, first_query: usize, sink: &mut Sink, scratch: &Scratch) {
        for first in (0..count).step_by(ROWS) {
            let rows: [&[i8]; ROWS] = std::array::from_fn(|index| {
                let row = ids.get((first + index).min(count - 1)) as usize;
                &self.rows[row * self.dim..][..self.dim]
            });
            for query in first_query..self.queries.count {
                let dots = self.dots(&rows, query);
                for (row, dot) in (first..count).zip(dots) {
                    let closeness = self.closeness(dot, row, query, scratch);
                    if super::lanes::exceeds(closeness, sink.bounds()[query]) {
                        sink.offer(query, ids.get(row), closeness);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn dots(&self, rows: &[&[i8]; ROWS], query: usize) -> [i32; ROWS] {
        match self.level {
            Level::Portable => rows.map(|row| dot(row, self.queries.get(query))),
            // SAFETY: `Level::of` found AVX2; the padded query is at least as long as the rows,
            // which are equally long.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { x86::dots_avx2(rows, self.queries.get(query)) },
            // SAFETY: `Level::of` found AVX-512 with VNNI; the query is padded to whole vectors.
            #[cfg(target_arch = "x86_64")]
            Level::Vnni => unsafe { x86::dots_vnni(rows, self.queries.get(query), self.queries.sums[query]) },
        }
    }

    #[inline(always)]
    fn closeness(&self, dot: i32, row: usize, query: usize, scratch: &Scratch) -> f32 {
        match self.metric {
            Metric::Dot => dot as f32,
            Metric::Cosine => dot as f32 * scratch.row_scales[row] * self.queries.scales[query],
            Metric::Euclidean => (2 * dot - scratch.row_squares[row] - self.queries.squares[query]) as f32,
        }
    }
}

impl Scorer for Int8Scorer<'_> {
    fn lanes_end(&self) -> usize {
        self.panels.last().map_or(0, |panel| panel.first + panel.lanes)
    }

    fn scan(&self, ids: RowIds<'_>, count: usize, sink: &mut Sink, scratch: &mut Scratch) {
        self.prepare_rows(ids, count, scratch);
        #[cfg(target_arch = "x86_64")]
        if !self.panels.is_empty() {
            self.scan_panels(ids, count, sink, scratch);
        }
        let packed = self.panels.last().map_or(0, |panel| panel.first + panel.count);
        self.scan_rows(ids, count, packed, sink, scratch);
    }
}

/// Only VNNI has a tile; the other levels score every query row by row.
#[cfg(target_arch = "x86_64")]
fn tile_panels(level: Level, count: usize) -> Vec<Panel> {
    if level == Level::Vnni { super::tile::panels(count, 16) } else { Vec::new() }
}

#[cfg(not(target_arch = "x86_64"))]
fn tile_panels(_level: Level, _count: usize) -> Vec<Panel> {
    Vec::new()
}

fn pack(panels: &[Panel], queries: &Queries, dim: usize, lanes_end: usize) -> Vec<i8> {
    let quads = dim.div_ceil(4);
    let mut packed = scratch::zeroed(lanes_end * quads * 4);
    for panel in panels {
        let lines = &mut packed[panel.first * quads * 4..];
        for lane in 0..panel.count {
            let query = queries.get(panel.first + lane);
            for quad in 0..quads {
                lines[(quad * panel.lanes + lane) * 4..][..4].copy_from_slice(&query[quad * 4..][..4]);
            }
        }
    }
    packed
}

fn dot(row: &[i8], query: &[i8]) -> i32 {
    row.iter().zip(query).map(|(row, query)| i32::from(*row) * i32::from(*query)).sum()
}

fn squared_norm(vector: &[i8]) -> i32 {
    vector.iter().map(|value| i32::from(*value) * i32::from(*value)).sum()
}
