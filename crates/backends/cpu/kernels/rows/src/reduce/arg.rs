//! The index of the greatest or least element.
//!
//! A row is searched in blocks: the block's best key is found in vector lanes, and only a block
//! that improves on the best so far is read again to find the position. A column keeps its own key
//! and index.

use super::fold::{Greatest, Least, OrderedElement, Preference, is_nan};
use super::traverse::{ALONE_ELEMENTS_MAX, TILE_COLUMNS, max_of_row};
use crate::extents::Extents;
use crate::lanes::{Kernel, Level, dispatch};
use crate::parts::DisjointSlice;
use crate::scratch;
use crate::simd::Simd;
use crate::team::Team;

/// Elements in a block of a row.
const BLOCK_ELEMENTS: usize = 2048;
/// Elements in a chunk that one task searches.
const CHUNK_ELEMENTS: usize = 1 << 18;

/// The index of the first greatest element.
pub(super) fn arg_max<T: OrderedElement>(simd: Simd, team: &Team, input: &[T], extents: Extents, out: &mut [u32]) {
    search::<T, Greatest>(simd, team, input, extents, out);
}

/// The index of the first least element.
pub(super) fn arg_min<T: OrderedElement>(simd: Simd, team: &Team, input: &[T], extents: Extents, out: &mut [u32]) {
    search::<T, Least>(simd, team, input, extents, out);
}

fn search<T: OrderedElement, P: Preference>(simd: Simd, team: &Team, input: &[T], extents: Extents, out: &mut [u32]) {
    assert_eq!(input.len(), extents.elements());
    assert_eq!(out.len(), extents.lines());
    if input.is_empty() {
        out.fill(0);
    } else if extents.inner == 1 {
        search_rows::<T, P>(simd, team, input, extents, out);
    } else {
        search_columns::<T, P>(simd, team, input, extents, out);
    }
}

fn search_rows<T: OrderedElement, P: Preference>(
    simd: Simd,
    team: &Team,
    input: &[T],
    extents: Extents,
    out: &mut [u32],
) {
    let len = extents.axis;
    let chunks = if len < 2 * CHUNK_ELEMENTS { 1 } else { len.div_ceil(CHUNK_ELEMENTS) };
    let chunk_len = if chunks == 1 { len } else { CHUNK_ELEMENTS };
    let mut found = scratch::filled((P::worst::<T>(), 0_u32), extents.outer * chunks);
    let shared = DisjointSlice::new(&mut found);
    let grain = if input.len() <= ALONE_ELEMENTS_MAX { extents.outer } else { ALONE_ELEMENTS_MAX.div_ceil(chunk_len) };
    team.run_ranges(extents.outer * chunks, grain, &|tasks| {
        // SAFETY: the ranges of one job do not overlap.
        let found = unsafe { shared.range(tasks.clone()) };
        for (task, found) in tasks.zip(found) {
            let start = task % chunks * chunk_len;
            let row = &input[task / chunks * len..][start..len.min(start + chunk_len)];
            let (key, index) = dispatch(simd, SearchRow::<T, P> { row, preference: Default::default() });
            *found = (key, (start + index) as u32);
        }
    });
    for (out, found) in out.iter_mut().zip(found.chunks_exact(chunks)) {
        let first = found[0];
        *out = found[1..].iter().fold(first, |best, next| if P::replaces(next.0, best.0) { *next } else { best }).1;
    }
}

struct SearchRow<'a, T, P> {
    row: &'a [T],
    preference: std::marker::PhantomData<P>,
}

impl<T: OrderedElement, P: Preference> Kernel for SearchRow<'_, T, P> {
    type Output = (T::Key, usize);
    #[inline(always)]
    fn run<L: Level>(self) -> (T::Key, usize) {
        let mut best = self.row[0].key();
        let mut index = 0;
        for (number, block) in self.row.chunks(BLOCK_ELEMENTS).enumerate() {
            let key = max_of_row::<T, P>(block);
            if P::replaces(key, best) {
                let same = |element: &T| element.key() == key || is_nan(key) & is_nan(element.key());
                index = number * BLOCK_ELEMENTS + block.iter().position(same).unwrap_or(0);
                best = key;
            }
            if is_nan(best) {
                break;
            }
        }
        (best, index)
    }
}

fn search_columns<T: OrderedElement, P: Preference>(
    simd: Simd,
    team: &Team,
    input: &[T],
    extents: Extents,
    out: &mut [u32],
) {
    let Extents { outer, axis, inner } = extents;
    let tiles = inner.div_ceil(TILE_COLUMNS);
    let chunk_rows = super::traverse::column_chunk_rows(extents);
    let chunks = axis.div_ceil(chunk_rows);
    let mut found = scratch::filled((P::worst::<T>(), 0_u32), outer * chunks * inner);
    let shared = DisjointSlice::new(&mut found);
    let body = |task: usize| {
        let (tile, chunk, slab) = (task % tiles, task / tiles % chunks, task / tiles / chunks);
        let columns = tile * TILE_COLUMNS..inner.min((tile + 1) * TILE_COLUMNS);
        let rows = chunk * chunk_rows..axis.min((chunk + 1) * chunk_rows);
        let part = &input[(slab * axis + rows.start) * inner + columns.start..];
        let start = (slab * chunks + chunk) * inner + columns.start;
        // SAFETY: the slabs, chunks and tiles of different tasks are disjoint.
        let found = unsafe { shared.range(start..start + columns.len()) };
        let preference = Default::default();
        dispatch(simd, SearchColumns::<T, P> { input: part, stride: inner, rows: rows.len(), found, preference });
        found.iter_mut().for_each(|found| found.1 += rows.start as u32);
    };
    let tasks = outer * chunks * tiles;
    let grain =
        if input.len() <= ALONE_ELEMENTS_MAX { tasks } else { (ALONE_ELEMENTS_MAX * tasks).div_ceil(input.len()) };
    team.run_ranges(tasks, grain, &|range| range.for_each(body));
    for (line, out) in out.iter_mut().enumerate() {
        let first = line / inner * chunks * inner + line % inner;
        let later = (1..chunks).map(|chunk| found[first + chunk * inner]);
        *out = later.fold(found[first], |best, next| if P::replaces(next.0, best.0) { next } else { best }).1;
    }
}

/// Searches `rows` rows, `stride` elements apart, column by column.
struct SearchColumns<'a, T: OrderedElement, P> {
    input: &'a [T],
    stride: usize,
    rows: usize,
    found: &'a mut [(T::Key, u32)],
    preference: std::marker::PhantomData<P>,
}

impl<T: OrderedElement, P: Preference> Kernel for SearchColumns<'_, T, P> {
    type Output = ();
    #[inline(always)]
    fn run<L: Level>(self) {
        let width = self.found.len();
        let mut keys = [P::worst::<T>(); TILE_COLUMNS];
        let mut indices = [0_u32; TILE_COLUMNS];
        let (keys, indices) = (&mut keys[..width], &mut indices[..width]);
        for (key, element) in keys.iter_mut().zip(self.input) {
            *key = element.key();
        }
        for row in 1..self.rows {
            let line = &self.input[row * self.stride..][..width];
            for column in 0..width {
                let key = line[column].key();
                let replace = P::replaces(key, keys[column]);
                keys[column] = if replace { key } else { keys[column] };
                indices[column] = if replace { row as u32 } else { indices[column] };
            }
        }
        for (found, (key, index)) in self.found.iter_mut().zip(keys.iter().zip(indices.iter())) {
            *found = (*key, *index);
        }
    }
}
