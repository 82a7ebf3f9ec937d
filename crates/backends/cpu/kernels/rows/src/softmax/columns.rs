//! Softmax along an axis that is not contiguous: neighbouring columns are processed in vector
//! lanes.

use super::{GRAIN_ELEMENTS, Soft};
use crate::extents::Extents;
use crate::lanes::{Kernel, Level, dispatch};
use crate::parts::DisjointSlice;
use crate::reduce::{ComputeFloat, Greatest, OrderedElement, Preference};
use crate::simd::Simd;
use crate::team::Team;

use super::exponential::Exponential;

/// Columns that are processed together.
const TILE_COLUMNS: usize = 128;

pub(super) fn softmax<T: Soft>(simd: Simd, team: &Team, input: &[T], extents: Extents, log: bool, out: &mut [T]) {
    let Extents { outer, axis, inner } = extents;
    let tiles = inner.div_ceil(TILE_COLUMNS);
    let shared = DisjointSlice::new(out);
    let grain = GRAIN_ELEMENTS.div_ceil(axis * inner.min(TILE_COLUMNS));
    team.run_ranges(outer * tiles, grain, &|tasks| {
        for task in tasks {
            let first = task % tiles * TILE_COLUMNS;
            let width = TILE_COLUMNS.min(inner - first);
            let start = task / tiles * axis * inner + first;
            dispatch(simd, Tile { input, out: &shared, start, width, extents, log });
        }
    });
}

struct Tile<'a, T> {
    input: &'a [T],
    out: &'a DisjointSlice<'a, T>,
    start: usize,
    width: usize,
    extents: Extents,
    log: bool,
}

impl<T: Soft> Kernel for Tile<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<L: Level>(self) {
        let Tile { input, width, .. } = self;
        let places = (0..self.extents.axis).map(|row| self.start + row * self.extents.inner);
        let mut max = [<T as OrderedElement>::LOWEST; TILE_COLUMNS];
        for place in places.clone() {
            for (max, element) in max.iter_mut().zip(&input[place..place + width]) {
                *max = Greatest::keep(*max, element.widen());
            }
        }
        let mut totals = [0.0_f64; TILE_COLUMNS];
        for place in places.clone() {
            for ((total, max), element) in totals.iter_mut().zip(&max).zip(&input[place..place + width]) {
                *total += (element.widen() - *max).exp::<L>().to_f64();
            }
        }
        for total in &mut totals[..width] {
            *total = if self.log { total.ln() } else { 1.0 / *total };
        }
        for place in places {
            // SAFETY: the columns of different tiles are disjoint.
            let out = unsafe { self.out.range(place..place + width) };
            let line = out.iter_mut().zip(&input[place..place + width]);
            for ((out, element), (max, total)) in line.zip(max.iter().zip(&totals)) {
                let below = element.widen() - *max;
                let end = T::Wide::from_f64(*total);
                *out = T::narrow(if self.log { below - end } else { below.exp::<L>() * end });
            }
        }
    }
}
