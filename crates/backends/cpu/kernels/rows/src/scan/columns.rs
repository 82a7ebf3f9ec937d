//! Scans along an axis that is not contiguous: neighbouring columns are processed in vector lanes.

use panoply_core::dtype::Element;

use super::Direction;
use super::operator::Operator;
use crate::extents::Extents;
use crate::lanes::{Kernel, Level, dispatch};
use crate::parts::DisjointSlice;
use crate::simd::Simd;
use crate::team::Team;

/// Columns that are processed together; their carries stay in the first-level cache.
const TILE_COLUMNS: usize = 256;
/// Minimum elements of one task.
const GRAIN_ELEMENTS: usize = 1 << 15;

pub(super) fn scan<T: Element, O: Operator<T>>(
    simd: Simd,
    team: &Team,
    input: &[T],
    extents: Extents,
    direction: Direction,
    out: &mut [T],
) {
    let Extents { outer, axis, inner } = extents;
    let tiles = inner.div_ceil(TILE_COLUMNS);
    let shared = DisjointSlice::new(out);
    let grain = GRAIN_ELEMENTS.div_ceil(axis * inner.min(TILE_COLUMNS));
    team.run_ranges(outer * tiles, grain, &|tasks| {
        for task in tasks {
            let first = task % tiles * TILE_COLUMNS;
            let width = TILE_COLUMNS.min(inner - first);
            let start = task / tiles * axis * inner + first;
            let tile =
                Tile::<T, O> { input, out: &shared, start, width, extents, direction, operator: Default::default() };
            dispatch(simd, tile);
        }
    });
}

struct Tile<'a, T: Element, O> {
    input: &'a [T],
    out: &'a DisjointSlice<'a, T>,
    start: usize,
    width: usize,
    extents: Extents,
    direction: Direction,
    operator: std::marker::PhantomData<O>,
}

impl<T: Element, O: Operator<T>> Kernel for Tile<'_, T, O> {
    type Output = ();
    #[inline(always)]
    fn run<L: Level>(self) {
        let mut carries = [O::NOTHING; TILE_COLUMNS];
        let carries = &mut carries[..self.width];
        for step in 0..self.extents.axis {
            let row = if self.direction.reverse { self.extents.axis - 1 - step } else { step };
            let place = self.start + row * self.extents.inner;
            let line = &self.input[place..place + self.width];
            // SAFETY: the columns of different tiles are disjoint.
            let out = unsafe { self.out.range(place..place + self.width) };
            for ((out, element), carry) in out.iter_mut().zip(line).zip(carries.iter_mut()) {
                let before = *carry;
                *carry = O::advance(before, O::lift(*element));
                *out = O::settle(if self.direction.exclusive { before } else { *carry }, O::IDENTITY);
            }
        }
    }
}
