//! For many queries: a register tile of rows × queries.
//!
//! Queries are transposed and packed once for each call, in panels as wide as one or two vectors
//! ([`PackedQueries`]). The tile loads a panel's line for one dimension, multiplies it by one
//! broadcast element of each of its rows, and keeps all sums in registers. The finished tile is
//! compared with the bounds of its queries in registers, too: in most tiles no value exceeds its
//! bound, and nothing is written to memory.

use super::lanes::{Kernel, Lanes, exceeds, load_each};
use super::sink::{RowIds, Sink};
use crate::scratch;
use crate::simd::Simd;

/// Number of rows in a block; every tile's height divides it.
pub(super) const BLOCK_ROWS: usize = 24;

/// The width of a panel, in vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PanelWidth {
    One,
    Two,
}

/// Queries `first..first + count`, and the number of their lanes. Every panel but the last is full.
#[derive(Clone, Copy, Debug)]
pub(super) struct Panel {
    pub(super) width: PanelWidth,
    pub(super) first: usize,
    pub(super) count: usize,
    pub(super) lanes: usize,
}

/// Splits `count` queries into panels of one or two vectors of `vector` lanes. A rest of up to half
/// a vector, or of a quarter after a panel of one vector, is left over: scanning those queries one
/// by one costs less than a mostly empty panel.
pub(super) fn panels(count: usize, vector: usize) -> Vec<Panel> {
    let mut panels = Vec::new();
    let mut first = 0;
    while count - first > vector / 2 {
        let one = count - first <= vector + vector / 4;
        let (width, lanes) = if one { (PanelWidth::One, vector) } else { (PanelWidth::Two, vector * 2) };
        let count = lanes.min(count - first);
        panels.push(Panel { width, first, count, lanes });
        first += count;
    }
    panels
}

/// Queries transposed into panels; the missing queries of the last panel are zeros.
pub(super) struct PackedQueries {
    panels: Vec<Panel>,
    packed: Vec<f32>,
    dim: usize,
}

impl PackedQueries {
    /// Packs the first of `count` queries, which are rows of `stride` numbers with `dim` valid
    /// ones.
    pub(super) fn new(simd: Simd, queries: &[f32], stride: usize, dim: usize, count: usize) -> PackedQueries {
        let panels = panels(count, if simd == Simd::Avx512 { 16 } else { 8 });
        let mut packed = scratch::zeroed(panels.last().map_or(0, |panel| (panel.first + panel.lanes) * dim));
        for panel in &panels {
            let lines = &mut packed[panel.first * dim..][..panel.lanes * dim];
            // Packing a few dimensions of every query at a time keeps the written lines in the
            // first-level cache.
            for (block, lines) in lines.chunks_mut(LINE_F32 * panel.lanes).enumerate() {
                for lane in 0..panel.count {
                    let query = &queries[(panel.first + lane) * stride + block * LINE_F32..];
                    for (line, value) in lines.chunks_exact_mut(panel.lanes).zip(query) {
                        line[lane] = *value;
                    }
                }
            }
        }
        PackedQueries { panels, packed, dim }
    }

    pub(super) fn panels(&self) -> &[Panel] {
        &self.panels
    }

    /// Number of queries in panels; the row scan handles the others.
    pub(super) fn packed_count(&self) -> usize {
        self.panels.last().map_or(0, |panel| panel.first + panel.count)
    }

    /// Required length of the bounds, so that whole panels can be read.
    pub(super) fn lanes_end(&self) -> usize {
        self.panels.last().map_or(0, |panel| panel.first + panel.lanes)
    }

    fn lines(&self, panel: &Panel) -> &[f32] {
        &self.packed[panel.first * self.dim..][..self.dim * panel.lanes]
    }
}

/// Scans `rows`, whole blocks of [`BLOCK_ROWS`], with the queries of one panel.
pub(super) struct TileScan<'a> {
    /// Rows of `stride` numbers with `dim` valid ones.
    pub(super) rows: &'a [f32],
    pub(super) stride: usize,
    pub(super) queries: &'a PackedQueries,
    /// Whether to sum squared differences instead of products.
    pub(super) differences: bool,
    /// Whether to prefetch the following rows during the scan.
    pub(super) prefetch: bool,
    /// Buffer for unfinished sums.
    pub(super) partial: &'a mut Vec<f32>,
    pub(super) sink: TileSink<'a>,
}

impl Kernel for TileScan<'_> {
    type Output = ();

    #[inline(always)]
    unsafe fn run<L: Lanes>(self) {
        // SAFETY: the caller guarantees the instructions. Tile heights divide BLOCK_ROWS, and the
        // registers of the level hold the tile.
        unsafe {
            match (self.sink.panel.width, L::WIDTH) {
                (PanelWidth::Two, 16) => self.scan::<L, 12, 2>(),
                (PanelWidth::One, 16) => self.scan::<L, 24, 1>(),
                (PanelWidth::Two, _) => self.scan::<L, 6, 2>(),
                (PanelWidth::One, _) => self.scan::<L, 12, 1>(),
            }
        }
    }
}

impl TileScan<'_> {
    /// Iterates over the rows once for each part of the dimensions, so that the panel's part stays
    /// in the first-level cache. Between the parts, the sums of the rows are stored in `partial`.
    ///
    /// # Safety
    /// The CPU has the instructions of `L`.
    #[inline(always)]
    unsafe fn scan<L: Lanes, const R: usize, const C: usize>(mut self) {
        let dim = self.queries.dim;
        let blocks = self.sink.valid.div_ceil(R);
        assert!(blocks == 0 || dim <= self.stride && (blocks * R - 1) * self.stride + dim <= self.rows.len());
        let lines = self.queries.lines(&self.sink.panel);
        assert!(lines.len() >= dim * C * L::WIDTH);
        let parts = dim.div_ceil(PART_DIM_MAX / C).max(1);
        let part_dim = dim.div_ceil(parts);
        if parts > 1 {
            scratch::resize(self.partial, blocks * R * C * L::WIDTH, 0.0);
        }
        let mut ahead = self.rows.as_ptr().wrapping_add(blocks * R * self.stride);
        for part in 0..parts {
            let from = part * part_dim;
            let part_dim = part_dim.min(dim - from);
            for block in 0..blocks {
                // SAFETY: by the assertions above, all R rows of the block are in `rows`, `lines`
                // holds the panel, and `partial` holds the sums of every block if there are several
                // parts. `ahead` is never read.
                unsafe {
                    let at = Operands {
                        rows: self.rows.as_ptr().add(block * R * self.stride + from),
                        stride: self.stride,
                        lines: lines.as_ptr().add(from * C * L::WIDTH),
                        dim: part_dim,
                        ahead,
                        ahead_step: if self.prefetch { LINE_F32 } else { 0 },
                    };
                    ahead = ahead.wrapping_add(part_dim * R.div_ceil(LINE_F32) * at.ahead_step);
                    let partial = self.partial.as_mut_ptr().wrapping_add(block * R * C * L::WIDTH);
                    let sums = if part == 0 { [[L::splat(0.0); C]; R] } else { load_sums::<L, R, C>(partial) };
                    let sums = if self.differences {
                        at.products::<L, R, C, true>(sums)
                    } else {
                        at.products::<L, R, C, false>(sums)
                    };
                    if part + 1 == parts {
                        self.sink.compare::<L, R, C>(block * R, sums);
                    } else {
                        store_sums::<L, R, C>(partial, &sums);
                    }
                }
            }
        }
    }
}

/// The receiver of the closeness values of one panel's tiles.
pub(super) struct TileSink<'a> {
    pub(super) panel: Panel,
    /// Number of valid scanned rows; the others are padding.
    pub(super) valid: usize,
    pub(super) ids: RowIds<'a>,
    /// The factors of each row's and each query's closeness (cosine).
    pub(super) scales: Option<(&'a [f32], &'a [f32])>,
    pub(super) sink: &'a mut Sink,
}

impl TileSink<'_> {
    /// Scales a finished tile whose first row is `first`, compares it with the bounds, and offers
    /// the values that exceed them.
    ///
    /// # Safety
    /// The CPU has the instructions of `L`.
    #[inline(always)]
    pub(super) unsafe fn compare<L: Lanes, const R: usize, const C: usize>(
        &mut self,
        first: usize,
        mut sums: [[L::V; C]; R],
    ) {
        let lanes = self.panel.first..self.panel.first + C * L::WIDTH;
        // SAFETY: the caller's contract; scales and bounds are sliced with checks to the lengths
        // that are loaded.
        unsafe {
            if let Some((row_scales, query_scales)) = self.scales {
                let query_scales = query_scales[lanes.clone()].as_ptr();
                let row_scales = &row_scales[first..][..R];
                for (sums, row_scale) in sums.iter_mut().zip(row_scales) {
                    for (c, sum) in sums.iter_mut().enumerate() {
                        let query_scale = L::load_f32(query_scales.add(c * L::WIDTH));
                        *sum = L::mul(L::mul(*sum, L::splat(*row_scale)), query_scale);
                    }
                }
            }
            let bounds = self.sink.bounds()[lanes].as_ptr();
            let bounds = load_each::<L, C>(bounds, L::WIDTH);
            let mut any = 0;
            for sums in &sums {
                for c in 0..C {
                    any |= L::exceeds(sums[c], bounds[c]);
                }
            }
            if any != 0 {
                let mut closeness = [[0.0; TILE_LANES_MAX]; R];
                for (line, sums) in closeness.iter_mut().zip(&sums) {
                    for (c, sum) in sums.iter().enumerate() {
                        L::store(line.as_mut_ptr().add(c * L::WIDTH), *sum);
                    }
                }
                self.offer(first, &closeness);
            }
        }
    }

    /// Offers the tile's values that exceed their bounds, row by row.
    #[cold]
    #[inline(never)]
    fn offer(&mut self, first: usize, closeness: &[[f32; TILE_LANES_MAX]]) {
        let queries = self.panel.first..self.panel.first + self.panel.count;
        for (row, line) in (first..self.valid).zip(closeness) {
            let bounds = &self.sink.bounds()[queries.clone()];
            let mut passed = 0_u32;
            for (lane, (value, bound)) in line.iter().zip(bounds).enumerate() {
                passed |= u32::from(exceeds(*value, *bound)) << lane;
            }
            while passed != 0 {
                let lane = passed.trailing_zeros() as usize;
                passed &= passed - 1;
                self.sink.offer(queries.start + lane, self.ids.get(row), line[lane]);
            }
        }
    }
}

/// The widest panel of any level, in lanes.
const TILE_LANES_MAX: usize = 32;

/// The rows and the panel of one part of a tile.
struct Operands {
    rows: *const f32,
    stride: usize,
    lines: *const f32,
    dim: usize,
    /// The address to prefetch, and its increment for each dimension; zero prefetches the same line
    /// again.
    ahead: *const f32,
    ahead_step: usize,
}

impl Operands {
    /// Adds to `sums` the products of `R` rows and `C` vectors of queries, or subtracts their
    /// squared differences.
    ///
    /// # Safety
    /// The CPU has the instructions of `L`. `R` rows of `dim` numbers, `stride` apart, are readable
    /// at `rows`, and `dim * C * L::WIDTH` numbers at `lines`.
    #[inline(always)]
    unsafe fn products<L: Lanes, const R: usize, const C: usize, const DIFFERENCES: bool>(
        self,
        mut sums: [[L::V; C]; R],
    ) -> [[L::V; C]; R] {
        let mut ahead = self.ahead;
        // SAFETY: offsets stay below `dim` in each row and in the panel, as the caller guarantees.
        unsafe {
            for k in 0..self.dim {
                let queries = load_each::<L, C>(self.lines.add(k * C * L::WIDTH), L::WIDTH);
                // The tile reads R / 16 of a cache line for each dimension.
                for _ in 0..R.div_ceil(LINE_F32) {
                    L::prefetch_far(ahead);
                    ahead = ahead.wrapping_add(self.ahead_step);
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let row = L::splat(*self.rows.add(r * self.stride + k));
                    for c in 0..C {
                        sums[c] = if DIFFERENCES {
                            let difference = L::sub(row, queries[c]);
                            L::nfma(difference, difference, sums[c])
                        } else {
                            L::fma(row, queries[c], sums[c])
                        };
                    }
                }
            }
        }
        sums
    }
}

/// # Safety
/// The CPU has the instructions of `L`; `R * C` vectors are readable at `from`.
#[inline(always)]
unsafe fn load_sums<L: Lanes, const R: usize, const C: usize>(from: *const f32) -> [[L::V; C]; R] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut sums = [[L::splat(0.0); C]; R];
        for (r, sums) in sums.iter_mut().enumerate() {
            *sums = load_each::<L, C>(from.add(r * C * L::WIDTH), L::WIDTH);
        }
        sums
    }
}

/// # Safety
/// The CPU has the instructions of `L`; `R * C` vectors are writable at `to`.
#[inline(always)]
unsafe fn store_sums<L: Lanes, const R: usize, const C: usize>(to: *mut f32, sums: &[[L::V; C]; R]) {
    for (r, sums) in sums.iter().enumerate() {
        for (c, sum) in sums.iter().enumerate() {
            // SAFETY: the caller's contract.
            unsafe { L::store(to.add((r * C + c) * L::WIDTH), *sum) };
        }
    }
}

/// Number of `f32` in a cache line.
const LINE_F32: usize = 16;

/// Maximum dimensions of a part, for a panel one vector wide: half of a first-level cache of 48 KiB
/// with the longest vectors.
const PART_DIM_MAX: usize = 384;
