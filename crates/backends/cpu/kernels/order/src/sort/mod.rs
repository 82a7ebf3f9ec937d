//! Sorting along one axis, in ascending or descending order, and the sorting permutation.
//!
//! * **Order.** The order is total: NaN is greater than every number, so it comes last in ascending
//!   order (as in numpy) and first in descending order. -0 and +0 are equal.
//! * **Stability.** [`arg_sort`] is always stable: equal elements, zeros of either sign and NaNs
//!   keep their order, also in descending order. [`sort`] moves values only: every NaN becomes the
//!   same quiet NaN, and -0 comes before +0. If the exact bits matter, gather by [`arg_sort`] with
//!   [`take_along`].
//! * **Method.** 8-bit elements, and 16-bit elements on long lines, are counted. Others become
//!   unsigned words that are sorted by quicksort in vector registers. Long lines are first divided
//!   by all threads: `split` distributes over a few buckets in vector registers for a small team,
//!   `spread` over cache-sized buckets for a large one.

mod counting;
mod key;
mod line;
mod split;
mod spread;
#[cfg(target_arch = "x86_64")]
mod vector;
#[cfg(target_arch = "x86_64")]
mod vector_word;

use half::{bf16, f16};
use panoply_core::dtype::Element;
use panoply_cpu_machine::compile_once;

use crate::extents::Extents;
use crate::lanes::{Kernel, Level, dispatch};
use crate::parts::DisjointSlice;
use crate::scratch;
use crate::simd::Simd;
use crate::team::Team;
pub use key::{SortKey, Word};
use spread::WordSource;

/// Minimum elements of lines that are sorted by the whole team, one line after the other.
pub const LONG_LINE_LEN: usize = 1 << 17;
/// Maximum elements of tensors that stay on the calling thread.
const ALONE_ELEMENTS_MAX: usize = 1 << 12;
/// Columns that are gathered together into rows: a cache line of f32.
const TILE_COLUMNS: usize = 16;
/// Minimum length of lines of 8-bit elements that are counted; shorter ones are cheaper to sort.
const COUNT_8_BIT_LEN: usize = 64;
/// Minimum length of lines of 16-bit elements that are counted; shorter ones are cheaper to sort.
const COUNT_16_BIT_LEN: usize = 1 << 16;

/// Sorts every line along the axis.
pub fn sort<T: SortKey>(simd: Simd, team: &Team, input: &[T], extents: Extents, descending: bool, out: &mut [T]) {
    T::sort_lines(simd, team, input, extents, descending, out);
}

fn sort_lines<T: SortKey>(simd: Simd, team: &Team, input: &[T], extents: Extents, descending: bool, out: &mut [T]) {
    assert_eq!(input.len(), out.len());
    for_each_line(team, input, extents, out, &|team, line, out| sort_line(simd, team, line, descending, out));
}

/// Writes, for every line along the axis, the positions of its elements in sorted order. The axis
/// must have at most 2^32 elements.
pub fn arg_sort<T: SortKey>(simd: Simd, team: &Team, input: &[T], extents: Extents, descending: bool, out: &mut [u32]) {
    T::arg_sort_lines(simd, team, input, extents, descending, out);
}

compile_once! {
    /// The sorting of an element type.
    pub trait SortKernels: SortKey {
        fn sort_lines(
            simd: Simd,
            team: &Team,
            input: &[Self],
            extents: Extents,
            descending: bool,
            out: &mut [Self],
        ) = sort_lines;
        fn arg_sort_lines(
            simd: Simd,
            team: &Team,
            input: &[Self],
            extents: Extents,
            descending: bool,
            out: &mut [u32],
        ) = arg_sort_lines;
    } for f32, f16, bf16, f64, i32, u32, i8, u8
}

fn arg_sort_lines<T: SortKey>(
    simd: Simd,
    team: &Team,
    input: &[T],
    extents: Extents,
    descending: bool,
    out: &mut [u32],
) {
    assert_eq!(input.len(), out.len());
    for_each_line(team, input, extents, out, &|team, line, out| arg_sort_line(simd, team, line, descending, out));
}

/// Sets each element of `out` to the element of `input` on the same line whose position is the
/// element of `positions` there. Positions must be smaller than the axis.
pub fn take_along<T: Element>(team: &Team, input: &[T], extents: Extents, positions: &[u32], out: &mut [T]) {
    assert_eq!(input.len(), extents.elements());
    assert_eq!(input.len(), positions.len());
    assert_eq!(input.len(), out.len());
    let Extents { axis, inner, .. } = extents;
    let shared = DisjointSlice::new(out);
    team.run_ranges(input.len() / inner.max(1), LONG_LINE_LEN.div_ceil(inner.max(1)), &|rows| {
        for row in rows {
            let slab = &input[row / axis * axis * inner..][..axis * inner];
            // SAFETY: every row belongs to one range.
            let out = unsafe { shared.range(row * inner..(row + 1) * inner) };
            for (column, (out, position)) in out.iter_mut().zip(&positions[row * inner..]).enumerate() {
                *out = slab[*position as usize * inner + column];
            }
        }
    });
}

/// The processing of one line, with its part of the output.
type LineBody<'a, T, U> = dyn Fn(&Team, &[T], &mut [U]) + Sync + 'a;

/// Calls `body` with every line of `input` and its part of `out`, both contiguous. A long line gets
/// the whole team; short lines are split among the threads.
fn for_each_line<T: Element, U: Element>(
    team: &Team,
    input: &[T],
    extents: Extents,
    out: &mut [U],
    body: &LineBody<'_, T, U>,
) {
    let Extents { axis, inner, .. } = extents;
    assert_eq!(input.len(), extents.elements());
    if input.is_empty() {
        return;
    }
    let shared = DisjointSlice::new(out);
    let tile_columns = if axis >= LONG_LINE_LEN { 1 } else { TILE_COLUMNS.min(inner) };
    let tiles = inner.div_ceil(tile_columns);
    let run_tile = |team: &Team, tile: usize, lines: &mut (Vec<T>, Vec<U>)| {
        let (slab, first) = (tile / tiles, tile % tiles * tile_columns);
        let start = slab * axis * inner;
        if inner == 1 {
            // SAFETY: every tile is a line of its own.
            return body(team, &input[start..start + axis], unsafe { shared.range(start..start + axis) });
        }
        let columns = tile_columns.min(inner - first);
        let (line, sorted) = lines;
        scratch::resize(line, columns * axis, input[0]);
        scratch::resize(sorted, columns * axis, U::zeroed());
        for row in 0..axis {
            for column in 0..columns {
                line[column * axis + row] = input[start + row * inner + first + column];
            }
        }
        for (line, sorted) in line.chunks_exact(axis).zip(sorted.chunks_exact_mut(axis)) {
            body(team, line, sorted);
        }
        for row in 0..axis {
            let place = start + row * inner + first;
            // SAFETY: the columns of different tiles are disjoint.
            let out = unsafe { shared.range(place..place + columns) };
            out.iter_mut().enumerate().for_each(|(column, out)| *out = sorted[column * axis + row]);
        }
    };
    let count = extents.outer * tiles;
    if axis >= LONG_LINE_LEN {
        let mut lines = (Vec::new(), Vec::new());
        (0..count).for_each(|tile| run_tile(team, tile, &mut lines));
    } else {
        let grain = ALONE_ELEMENTS_MAX.div_ceil(axis * tile_columns);
        team.run_ranges(count, grain, &|range| {
            let (alone, mut lines) = (Team::single(), (Vec::new(), Vec::new()));
            range.for_each(|tile| run_tile(&alone, tile, &mut lines));
        });
    }
}

fn sort_line<T: SortKey>(simd: Simd, team: &Team, line: &[T], descending: bool, out: &mut [T]) {
    let counted = match T::BITS {
        8 => line.len() >= COUNT_8_BIT_LEN,
        16 => line.len() >= COUNT_16_BIT_LEN,
        _ => false,
    };
    if counted {
        return counting::sort(team, line, descending, out);
    }
    let source = Keys { simd, line, descending };
    let decode = |words: &[T::Word], out: &mut [T]| dispatch(simd, Decode { words, descending, out });
    if size_of::<T>() != size_of::<T::Word>() {
        let mut own = scratch::zeroed::<T::Word>(line.len());
        source.fill(0, &mut own);
        T::Word::sort(simd, &mut own);
        return decode(&own, out);
    }
    // SAFETY: the word has the size of the element and, because both are plain numbers of one size,
    // its alignment. Any bits are a valid word and a valid element.
    let words = unsafe { std::slice::from_raw_parts_mut(out.as_mut_ptr().cast::<T::Word>(), out.len()) };
    if line.len() >= LONG_LINE_LEN {
        spread::sort(simd, team, &source, words, &|_, words| {
            dispatch(simd, DecodeInPlace::<T>::new(words, descending))
        });
    } else {
        source.fill(0, words);
        T::Word::sort(simd, words);
        dispatch(simd, DecodeInPlace::<T>::new(words, descending));
    }
}

fn arg_sort_line<T: SortKey>(simd: Simd, team: &Team, line: &[T], descending: bool, out: &mut [u32]) {
    type Pair<T> = <<T as SortKey>::Word as Word>::Pair;
    let source = Positions { simd, line, descending };
    let mut pairs = scratch::zeroed::<Pair<T>>(line.len());
    if line.len() >= LONG_LINE_LEN {
        let shared = DisjointSlice::new(out);
        spread::sort(simd, team, &source, &mut pairs, &|start, pairs| {
            // SAFETY: the sorted parts do not overlap.
            let out = unsafe { shared.range(start..start + pairs.len()) };
            out.iter_mut().zip(pairs).for_each(|(out, pair)| *out = T::Word::position(*pair));
        });
    } else {
        source.fill(0, &mut pairs);
        Pair::<T>::sort(simd, &mut pairs);
        out.iter_mut().zip(&pairs).for_each(|(out, pair)| *out = T::Word::position(*pair));
    }
}

/// The elements of a line as words.
struct Keys<'a, T> {
    simd: Simd,
    line: &'a [T],
    descending: bool,
}

impl<T: SortKey> WordSource<T::Word> for Keys<'_, T> {
    fn fill(&self, start: usize, words: &mut [T::Word]) {
        let line = &self.line[start..start + words.len()];
        dispatch(self.simd, Encode { line, descending: self.descending, words });
    }
}

/// The elements of a line as words with their positions.
struct Positions<'a, T> {
    simd: Simd,
    line: &'a [T],
    descending: bool,
}

impl<T: SortKey> WordSource<<T::Word as Word>::Pair> for Positions<'_, T> {
    fn fill(&self, start: usize, pairs: &mut [<T::Word as Word>::Pair]) {
        let line = &self.line[start..start + pairs.len()];
        dispatch(self.simd, EncodePairs { line, start, descending: self.descending, pairs });
    }
}

#[inline(always)]
fn direct<W: Word>(word: W, descending: bool) -> W {
    if descending { word.invert() } else { word }
}

struct Encode<'a, T: SortKey> {
    line: &'a [T],
    descending: bool,
    words: &'a mut [T::Word],
}

impl<T: SortKey> Kernel for Encode<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<L: Level>(self) {
        for (word, element) in self.words.iter_mut().zip(self.line) {
            *word = direct(element.encode(), self.descending);
        }
    }
}

struct EncodePairs<'a, T: SortKey> {
    line: &'a [T],
    start: usize,
    descending: bool,
    pairs: &'a mut [<T::Word as Word>::Pair],
}

impl<T: SortKey> Kernel for EncodePairs<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<L: Level>(self) {
        for (index, (pair, element)) in self.pairs.iter_mut().zip(self.line).enumerate() {
            let word = direct(element.merge_zeros().encode(), self.descending);
            *pair = word.pair((self.start + index) as u32);
        }
    }
}

struct Decode<'a, T: SortKey> {
    words: &'a [T::Word],
    descending: bool,
    out: &'a mut [T],
}

impl<T: SortKey> Kernel for Decode<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<L: Level>(self) {
        for (out, word) in self.out.iter_mut().zip(self.words) {
            *out = T::decode(direct(*word, self.descending));
        }
    }
}

/// Converts words in place to elements of the same size.
struct DecodeInPlace<'a, T: SortKey> {
    words: &'a mut [T::Word],
    descending: bool,
}

impl<'a, T: SortKey> DecodeInPlace<'a, T> {
    fn new(words: &'a mut [T::Word], descending: bool) -> Self {
        assert_eq!(size_of::<T>(), size_of::<T::Word>());
        DecodeInPlace { words, descending }
    }
}

impl<T: SortKey> Kernel for DecodeInPlace<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<L: Level>(self) {
        for word in self.words {
            let element = T::decode(direct(*word, self.descending));
            // SAFETY: the word's memory is one of the output's elements, which has the same size
            // (asserted in `new`).
            unsafe { (word as *mut T::Word).cast::<T>().write(element) };
        }
    }
}
