//! Running sums, products, maxima and minima along one axis: inclusive or exclusive, forwards or
//! backwards.
//!
//! * **Rounding.** On a contiguous axis, floats are summed in f32 (f64 for f64) within blocks of
//!   [`BLOCK`] elements. The sum of all earlier blocks is carried in f64 and rounded once when it
//!   is added. On other axes, and for products, the running value is f64 throughout. Blocks and
//!   chunks depend on the extents alone: the result is the same for every number of threads and
//!   every SIMD level.
//! * **Integers** wrap in their own type.
//! * **NaN** propagates: everything after it (in the direction of the scan) is NaN, for maxima and
//!   minima too.
//! * **Exclusive** scans start with the identity: 0, 1, or the lowest or highest value of the type
//!   (infinities for floats).

mod columns;
mod operator;
mod rows;
#[cfg(target_arch = "x86_64")]
mod vector;

use half::{bf16, f16};
use panoply_core::dtype::Element;

use crate::extents::Extents;
use crate::reduce::{Greatest, Least};
use crate::simd::Simd;
use crate::team::Team;
use operator::{Operator, RunningExtreme, RunningProduct, RunningSum};

/// Elements in a block of a contiguous axis.
const BLOCK: usize = 64;

/// The direction of a scan, and whether it includes the element itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Direction {
    /// Whether the scan runs from the last element to the first.
    pub reverse: bool,
    /// Whether each result excludes the element at its own position.
    pub exclusive: bool,
}

/// An element type with running sums, products, maxima and minima.
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

// Not for every `T: OrderedElement`: implementations for types are compiled here, once.
macro_rules! scannable {
    ($($element:ty),*) => {$(
        impl Scannable for $element {
            fn scan_sum(simd: Simd, team: &Team, input: &[Self], extents: Extents, direction: Direction, out: &mut [Self]) {
                scan::<Self, RunningSum>(simd, team, input, extents, direction, out);
            }
            fn scan_product(simd: Simd, team: &Team, input: &[Self], extents: Extents, direction: Direction, out: &mut [Self]) {
                scan::<Self, RunningProduct>(simd, team, input, extents, direction, out);
            }
            fn scan_max(simd: Simd, team: &Team, input: &[Self], extents: Extents, direction: Direction, out: &mut [Self]) {
                scan::<Self, RunningExtreme<Greatest>>(simd, team, input, extents, direction, out);
            }
            fn scan_min(simd: Simd, team: &Team, input: &[Self], extents: Extents, direction: Direction, out: &mut [Self]) {
                scan::<Self, RunningExtreme<Least>>(simd, team, input, extents, direction, out);
            }
        }
    )*};
}
scannable!(f32, f16, bf16, f64, i32, u32, i8, u8);

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
