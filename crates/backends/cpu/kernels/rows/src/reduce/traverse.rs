//! The memory traversal that every fold shares: contiguous rows, or adjacent columns.
//!
//! The split into tasks depends on the extents alone. A long axis becomes chunks whose totals are
//! joined in order, so the number of threads never changes the result.

use panoply_core::dtype::Element;

use super::BLOCK_STEPS;
use super::fold::{Fold, OrderedElement, Preference};
use crate::extents::Extents;
use crate::lanes::{Kernel, Level, dispatch};
use crate::parts::DisjointSlice;
use crate::scratch;
use crate::simd::Simd;
use crate::team::Team;

/// Lanes of a long row: enough independent additions to hide their latency at every level.
const LANES: usize = 64;
/// Lanes of a short row, where joining many lanes would cost more than it saves.
const LANES_SHORT: usize = 16;
/// Rows with fewer elements than this are short.
const SHORT_LEN_MAX: usize = 512;
/// Approximate elements in one chunk of a long axis: a megabyte of f32 keeps a core busy for some
/// tens of microseconds.
const CHUNK_ELEMENTS: usize = 1 << 18;
/// Maximum elements of tensors that stay on the calling thread.
pub(super) const ALONE_ELEMENTS_MAX: usize = 1 << 15;
/// Rows whose totals are stored at a time.
const TOTALS: usize = 128;
/// Columns that are folded together; their blocks and totals stay in the first-level cache.
pub(super) const TILE_COLUMNS: usize = 512;
/// Steps between flushes of a column, in rows.
const COLUMN_BLOCK_ROWS: usize = BLOCK_STEPS * 4;

/// Writes the fold of every line, divided by `divisor`, to `out`.
pub(super) fn reduce<T: Element, F: Fold<T>>(
    simd: Simd,
    team: &Team,
    input: &[T],
    extents: Extents,
    divisor: usize,
    out: &mut [F::Output],
) {
    assert_eq!(input.len(), extents.elements());
    assert_eq!(out.len(), extents.lines());
    if input.is_empty() {
        out.fill(F::finish(F::NOTHING, divisor));
    } else if extents.inner == 1 {
        reduce_rows::<T, F>(simd, team, input, extents, divisor, out);
    } else {
        reduce_columns::<T, F>(simd, team, input, extents, divisor, out);
    }
}

fn reduce_rows<T: Element, F: Fold<T>>(
    simd: Simd,
    team: &Team,
    input: &[T],
    extents: Extents,
    divisor: usize,
    out: &mut [F::Output],
) {
    let len = extents.axis;
    if len < 2 * CHUNK_ELEMENTS {
        let shared = DisjointSlice::new(out);
        let grain = if input.len() <= ALONE_ELEMENTS_MAX { extents.outer } else { ALONE_ELEMENTS_MAX.div_ceil(len) };
        team.run_ranges(extents.outer, grain, &|rows| {
            // SAFETY: the ranges of one job do not overlap.
            let out = unsafe { shared.range(rows.clone()) };
            for (rows, out) in rows.step_by(TOTALS).zip(out.chunks_mut(TOTALS)) {
                let mut totals = [F::NOTHING; TOTALS];
                let totals = &mut totals[..out.len()];
                let input = &input[rows * len..(rows + out.len()) * len];
                dispatch(simd, FoldRows::<T, F> { input, len, totals });
                out.iter_mut().zip(totals).for_each(|(out, total)| *out = F::finish(*total, divisor));
            }
        });
        return;
    }
    let chunks = len.div_ceil(CHUNK_ELEMENTS);
    let mut totals = scratch::filled(F::NOTHING, extents.outer * chunks);
    let shared = DisjointSlice::new(&mut totals);
    team.run(extents.outer * chunks, &|task| {
        let row = &input[task / chunks * len..][..len];
        let start = task % chunks * CHUNK_ELEMENTS;
        let chunk = &row[start..len.min(start + CHUNK_ELEMENTS)];
        // SAFETY: every task has its own index.
        let totals = unsafe { shared.range(task..task + 1) };
        dispatch(simd, FoldRows::<T, F> { input: chunk, len: chunk.len(), totals });
    });
    for (out, totals) in out.iter_mut().zip(totals.chunks_exact(chunks)) {
        let total = totals.iter().copied().reduce(F::join).unwrap_or(F::NOTHING);
        *out = F::finish(total, divisor);
    }
}

fn reduce_columns<T: Element, F: Fold<T>>(
    simd: Simd,
    team: &Team,
    input: &[T],
    extents: Extents,
    divisor: usize,
    out: &mut [F::Output],
) {
    let Extents { outer, axis, inner } = extents;
    let tiles = inner.div_ceil(TILE_COLUMNS);
    let chunk_rows = column_chunk_rows(extents);
    let chunks = axis.div_ceil(chunk_rows);
    let mut totals = scratch::filled(F::NOTHING, if chunks > 1 { outer * chunks * inner } else { 0 });
    let (shared_out, shared_totals) = (DisjointSlice::new(out), DisjointSlice::new(&mut totals));
    let body = |task: usize| {
        let (tile, chunk, slab) = (task % tiles, task / tiles % chunks, task / tiles / chunks);
        let columns = tile * TILE_COLUMNS..inner.min((tile + 1) * TILE_COLUMNS);
        let rows = chunk * chunk_rows..axis.min((chunk + 1) * chunk_rows);
        let part = &input[(slab * axis + rows.start) * inner + columns.start..];
        let mut folded = [F::NOTHING; TILE_COLUMNS];
        let folded = &mut folded[..columns.len()];
        dispatch(simd, Columns::<T, F> { input: part, stride: inner, rows: rows.len(), totals: folded });
        if chunks > 1 {
            let start = (slab * chunks + chunk) * inner + columns.start;
            // SAFETY: the slabs, chunks and tiles of different tasks are disjoint.
            unsafe { shared_totals.range(start..start + columns.len()) }.copy_from_slice(folded);
        } else {
            let start = slab * inner + columns.start;
            // SAFETY: with one chunk, the slabs and tiles of different tasks are disjoint.
            let out = unsafe { shared_out.range(start..start + columns.len()) };
            out.iter_mut().zip(folded).for_each(|(out, total)| *out = F::finish(*total, divisor));
        }
    };
    let tasks = outer * chunks * tiles;
    if input.len() <= ALONE_ELEMENTS_MAX {
        (0..tasks).for_each(body);
    } else {
        team.run_ranges(tasks, (ALONE_ELEMENTS_MAX * tasks).div_ceil(input.len()), &|range| range.for_each(body));
    }
    if chunks > 1 {
        for (line, out) in out.iter_mut().enumerate() {
            let first = line / inner * chunks * inner + line % inner;
            let total = (1..chunks).fold(totals[first], |total, chunk| F::join(total, totals[first + chunk * inner]));
            *out = F::finish(total, divisor);
        }
    }
}

/// Number of rows in a chunk of columns: all of them unless the axis is long.
pub(super) fn column_chunk_rows(extents: Extents) -> usize {
    let rows = CHUNK_ELEMENTS.div_ceil(extents.inner.min(TILE_COLUMNS)).next_multiple_of(COLUMN_BLOCK_ROWS);
    if extents.axis < 2 * rows { extents.axis } else { rows }
}

/// The totals of rows of `len` elements.
struct FoldRows<'a, T: Element, F: Fold<T>> {
    input: &'a [T],
    len: usize,
    totals: &'a mut [F::Total],
}

impl<T: Element, F: Fold<T>> Kernel for FoldRows<'_, T, F> {
    type Output = ();
    #[inline(always)]
    fn run<L: Level>(self) {
        for (row, total) in self.input.chunks_exact(self.len).zip(self.totals) {
            *total = fold_row::<T, F>(row);
        }
    }
}

/// The total of one contiguous row.
#[inline(always)]
pub(super) fn fold_row<T: Element, F: Fold<T>>(row: &[T]) -> F::Total {
    if row.len() < LANES_SHORT {
        F::flush(F::NOTHING, row.iter().fold(F::EMPTY, |block, element| F::take(block, *element)))
    } else if row.len() < SHORT_LEN_MAX {
        fold_lanes::<T, F, LANES_SHORT>(row)
    } else {
        fold_lanes::<T, F, LANES>(row)
    }
}

#[inline(always)]
fn fold_lanes<T: Element, F: Fold<T>, const WIDTH: usize>(row: &[T]) -> F::Total {
    let mut totals = [F::NOTHING; WIDTH];
    for run in row.chunks(WIDTH * BLOCK_STEPS) {
        let mut block = [F::EMPTY; WIDTH];
        let (steps, rest) = run.as_chunks::<WIDTH>();
        // Four steps at a time: the lanes are in memory, and each load and store of a lane then
        // serves four elements.
        let (fours, singles) = steps.as_chunks::<4>();
        for [a, b, c, d] in fours {
            for lane in 0..WIDTH {
                let pair = F::take(F::take(block[lane], a[lane]), b[lane]);
                block[lane] = F::take(F::take(pair, c[lane]), d[lane]);
            }
        }
        for step in singles {
            for lane in 0..WIDTH {
                block[lane] = F::take(block[lane], step[lane]);
            }
        }
        for (block, element) in block.iter_mut().zip(rest) {
            *block = F::take(*block, *element);
        }
        for lane in 0..WIDTH {
            totals[lane] = F::flush(totals[lane], block[lane]);
        }
    }
    join_lanes::<T, F>(&mut totals)
}

/// Joins the lanes in halves, so that no total passes through more than a few additions.
#[inline(always)]
fn join_lanes<T: Element, F: Fold<T>>(totals: &mut [F::Total]) -> F::Total {
    let mut width = totals.len();
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            totals[lane] = F::join(totals[lane], totals[lane + width]);
        }
    }
    totals[0]
}

/// The greatest or least key of a row, or NaN.
#[inline(always)]
pub fn max_of_row<T: OrderedElement, P: Preference>(row: &[T]) -> T::Key {
    let mut lanes = [P::worst::<T>(); LANES];
    let (steps, rest) = row.as_chunks::<LANES>();
    let (fours, singles) = steps.as_chunks::<4>();
    for [a, b, c, d] in fours {
        for lane in 0..LANES {
            let (left, right) = (P::keep(a[lane].key(), b[lane].key()), P::keep(c[lane].key(), d[lane].key()));
            lanes[lane] = P::keep(lanes[lane], P::keep(left, right));
        }
    }
    for step in singles {
        for lane in 0..LANES {
            lanes[lane] = P::keep(lanes[lane], step[lane].key());
        }
    }
    for (lane, element) in lanes.iter_mut().zip(rest) {
        *lane = P::keep(*lane, element.key());
    }
    let mut width = LANES;
    while width > 1 {
        width /= 2;
        for lane in 0..width {
            lanes[lane] = P::keep(lanes[lane], lanes[lane + width]);
        }
    }
    lanes[0]
}

/// Folds `rows` rows, `stride` elements apart, column by column into `totals`.
struct Columns<'a, T: Element, F: Fold<T>> {
    input: &'a [T],
    stride: usize,
    rows: usize,
    totals: &'a mut [F::Total],
}

impl<T: Element, F: Fold<T>> Kernel for Columns<'_, T, F> {
    type Output = ();
    #[inline(always)]
    fn run<L: Level>(self) {
        let width = self.totals.len();
        let joined = LANES / width;
        if width < self.stride || joined < 2 || self.rows < 2 * joined {
            return fold_columns::<T, F>(self.input, self.stride, self.rows, self.totals);
        }
        // Several narrow rows are treated as one wide row, so that the lanes are full.
        let wide = width * joined;
        let mut lanes = [F::NOTHING; LANES];
        let wide_rows = self.rows / joined;
        fold_columns::<T, F>(self.input, wide, wide_rows, &mut lanes[..wide]);
        let rest = self.rows - wide_rows * joined;
        fold_columns::<T, F>(&self.input[wide_rows * wide..], width, rest, self.totals);
        for (index, lane) in lanes[..wide].iter().enumerate() {
            let total = &mut self.totals[index % width];
            *total = F::join(*total, *lane);
        }
    }
}

#[inline(always)]
fn fold_columns<T: Element, F: Fold<T>>(input: &[T], stride: usize, rows: usize, totals: &mut [F::Total]) {
    let width = totals.len();
    let mut block = [F::EMPTY; TILE_COLUMNS];
    let block = &mut block[..width];
    let mut row = 0;
    while row < rows {
        block.fill(F::EMPTY);
        let end = rows.min(row + COLUMN_BLOCK_ROWS);
        while row + 4 <= end {
            let [a, b, c, d] = [0, 1, 2, 3].map(|ahead| &input[(row + ahead) * stride..][..width]);
            for column in 0..width {
                let pair = F::take(F::take(block[column], a[column]), b[column]);
                block[column] = F::take(F::take(pair, c[column]), d[column]);
            }
            row += 4;
        }
        while row < end {
            let line = &input[row * stride..][..width];
            for column in 0..width {
                block[column] = F::take(block[column], line[column]);
            }
            row += 1;
        }
        for column in 0..width {
            totals[column] = F::flush(totals[column], block[column]);
        }
    }
}
