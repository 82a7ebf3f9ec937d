//! Running sums, products, maxima and minima along one axis: inclusive or exclusive, forwards or backwards.
//!
//! * **Rounding.** On a contiguous axis floats are summed in f32 (f64 for f64) within blocks of [`BLOCK`] elements; what
//!   came before a block is carried in f64 and rounded once when it is added. On other axes, and for products, the
//!   running value is f64 throughout. Blocks and chunks depend on the extents alone: the answer is the same for every
//!   number of threads and every SIMD level.
//! * **Integers** wrap in their own type.
//! * **NaN** spreads: everything after it (in the direction of the scan) is NaN, for maxima and minima too.
//! * **Exclusive** scans start with what changes nothing: 0, 1, or the lowest or highest value of the type (infinities
//!   for floats).

mod columns;
mod operator;
mod rows;
#[cfg(target_arch = "x86_64")]
mod vector;

use panoply_core::dtype::Element;

use crate::extents::Extents;
use crate::reduce::{Greatest, Least, Ordered};
use crate::simd::Simd;
use crate::team::Team;
use operator::{Operator, RunningExtreme, RunningProduct, RunningSum};

/// Elements in a block of a contiguous axis.
const BLOCK: usize = 64;

/// Which way a scan runs, and whether an element counts for its own place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Direction {
    /// From the last element to the first.
    pub reverse: bool,
    /// Each place gets what came before it, without its own element.
    pub exclusive: bool,
}

/// An element type whose running sums, products, maxima and minima can be taken.
pub trait Scannable: Element {
    /// Writes the running sum.
    fn scan_sum(simd: Simd, team: &Team, input: &[Self], extents: Extents, direction: Direction, out: &mut [Self]);
    /// Writes the running product.
    fn scan_product(simd: Simd, team: &Team, input: &[Self], extents: Extents, direction: Direction, out: &mut [Self]);
    /// Writes the running maximum.
    fn scan_max(simd: Simd, team: &Team, input: &[Self], extents: Extents, direction: Direction, out: &mut [Self]);
    /// Writes the running minimum.
    fn scan_min(simd: Simd, team: &Team, input: &[Self], extents: Extents, direction: Direction, out: &mut [Self]);
}

impl<T: Ordered> Scannable for T
where
    RunningSum: Operator<T>,
    RunningProduct: Operator<T>,
{
    fn scan_sum(simd: Simd, team: &Team, input: &[T], extents: Extents, direction: Direction, out: &mut [T]) {
        scan::<T, RunningSum>(simd, team, input, extents, direction, out);
    }
    fn scan_product(simd: Simd, team: &Team, input: &[T], extents: Extents, direction: Direction, out: &mut [T]) {
        scan::<T, RunningProduct>(simd, team, input, extents, direction, out);
    }
    fn scan_max(simd: Simd, team: &Team, input: &[T], extents: Extents, direction: Direction, out: &mut [T]) {
        scan::<T, RunningExtreme<Greatest>>(simd, team, input, extents, direction, out);
    }
    fn scan_min(simd: Simd, team: &Team, input: &[T], extents: Extents, direction: Direction, out: &mut [T]) {
        scan::<T, RunningExtreme<Least>>(simd, team, input, extents, direction, out);
    }
}

fn scan<T: Element, O: Operator<T>>(
    simd: Simd,
    team: &Team,
    input: &[T],
    extents: Extents,
    direction: Direction,
    out: &mut [T],
) {
    assert_eq!(input.len(), extents.elements());
    assert_eq!(input.len(), out.len());
    if input.is_empty() {
    } else if extents.inner == 1 {
        rows::scan::<T, O>(simd, team, input, extents, direction, out);
    } else {
        columns::scan::<T, O>(simd, team, input, extents, direction, out);
    }
}
