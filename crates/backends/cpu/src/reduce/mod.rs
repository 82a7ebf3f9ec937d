//! Reductions along one axis: sum, mean, maximum, minimum and the index of either.
//!
//! * **Rounding.** Floats are added in f32 lanes (f64 for f64) for at most [`BLOCK_STEPS`] steps, then the lanes are
//!   added to f64 totals. How an axis is cut into blocks and chunks depends on the extents alone, so the answer is the
//!   same for every number of threads and every SIMD level.
//! * **Integers.** Sums wrap in their own type. Means add up in i64 and are rounded once, to f32.
//! * **NaN.** Maximum and minimum are NaN as soon as one element is; the index of either is that of the first NaN.
//!   Of equal elements the first is the one indexed.
//! * **Empty axis.** Sums are 0 and means NaN. Maxima, minima and indices do not exist; callers must not ask.

mod arg;
mod fold;
mod traverse;

use half::{bf16, f16};
use panoply_core::dtype::{Complex64, Element};

use crate::extents::Extents;
use crate::simd::Simd;
use crate::team::Team;
use fold::{ExactMean, Extreme, FloatSum, WideSum, WrappingSum};

pub use arg::{arg_max, arg_min};
pub(crate) use fold::{Greatest, Least, Preference};
pub use fold::{Ordered, Real, Wide};
pub(crate) use traverse::max_of_row;

/// The most additions that a lane makes before it is added to its f64 total.
const BLOCK_STEPS: usize = 16;

/// An element type that can be summed.
pub trait Sum: Element {
    /// Writes the sum over the axis to `out`, which has one element for each line.
    fn sum(simd: Simd, team: &Team, input: &[Self], extents: Extents, out: &mut [Self]);
}

/// An element type that has a mean.
pub trait Mean: Element {
    /// The type of the mean: f32 for integers, the type itself otherwise.
    type Output: Element;
    /// Writes the mean over the axis to `out`, which has one element for each line.
    fn mean(simd: Simd, team: &Team, input: &[Self], extents: Extents, out: &mut [Self::Output]);
}

/// Writes the greatest element along the axis to `out`. The axis must not be empty.
pub fn max<T: Ordered>(simd: Simd, team: &Team, input: &[T], extents: Extents, out: &mut [T]) {
    traverse::reduce::<T, Extreme<Greatest>>(simd, team, input, extents, 1, out);
}

/// Writes the least element along the axis to `out`. The axis must not be empty.
pub fn min<T: Ordered>(simd: Simd, team: &Team, input: &[T], extents: Extents, out: &mut [T]) {
    traverse::reduce::<T, Extreme<Least>>(simd, team, input, extents, 1, out);
}

macro_rules! float_sums {
    ($($float:ty),*) => {$(
        impl Sum for $float {
            fn sum(simd: Simd, team: &Team, input: &[Self], extents: Extents, out: &mut [Self]) {
                traverse::reduce::<$float, FloatSum>(simd, team, input, extents, 1, out);
            }
        }
        impl Mean for $float {
            type Output = $float;
            fn mean(simd: Simd, team: &Team, input: &[Self], extents: Extents, out: &mut [Self]) {
                traverse::reduce::<$float, FloatSum>(simd, team, input, extents, extents.axis, out);
            }
        }
    )*};
}
float_sums!(f32, f16, bf16, f64);

macro_rules! integer_sums {
    ($($integer:ty),*) => {$(
        impl Sum for $integer {
            fn sum(simd: Simd, team: &Team, input: &[Self], extents: Extents, out: &mut [Self]) {
                traverse::reduce::<$integer, WrappingSum>(simd, team, input, extents, 1, out);
            }
        }
        impl Mean for $integer {
            type Output = f32;
            fn mean(simd: Simd, team: &Team, input: &[Self], extents: Extents, out: &mut [f32]) {
                traverse::reduce::<$integer, ExactMean>(simd, team, input, extents, extents.axis, out);
            }
        }
    )*};
}
integer_sums!(i32, u32, i8, u8);

/// Complex numbers are added part by part: as pairs of f32 along a tensor twice as wide.
fn parts(extents: Extents) -> Extents {
    Extents { inner: extents.inner * 2, ..extents }
}

impl Sum for Complex64 {
    fn sum(simd: Simd, team: &Team, input: &[Self], extents: Extents, out: &mut [Self]) {
        f32::sum(simd, team, bytemuck::cast_slice(input), parts(extents), bytemuck::cast_slice_mut(out));
    }
}

impl Mean for Complex64 {
    type Output = Complex64;
    fn mean(simd: Simd, team: &Team, input: &[Self], extents: Extents, out: &mut [Self]) {
        f32::mean(simd, team, bytemuck::cast_slice(input), parts(extents), bytemuck::cast_slice_mut(out));
    }
}

/// The sum of a row in f64, for kernels that need it.
#[inline(always)]
pub(crate) fn row_total<T: Real>(values: &[T]) -> f64 {
    traverse::fold_row::<T, FloatSum>(values)
}

/// The sum of values that are computed in their own type.
#[inline(always)]
pub(crate) fn wide_total<W: Wide>(values: &[W]) -> f64 {
    traverse::fold_row::<W, WideSum>(values)
}
