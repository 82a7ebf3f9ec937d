//! Reductions along one axis: sum, mean, maximum, minimum, and the index of the maximum or minimum.
//!
//! * **Rounding.** Floats are added in f32 lanes (f64 for f64) for at most [`BLOCK_STEPS`] steps,
//!   then the lanes are added to f64 totals. The split of an axis into blocks and chunks depends on
//!   the extents alone, so the result is the same for every number of threads and every SIMD level.
//! * **Integers.** Sums wrap in their own type. Means are summed in i64 and rounded once, to f32.
//! * **NaN.** Maximum and minimum are NaN if any element is NaN; the index is then that of the
//!   first NaN. Of equal elements, the index is that of the first.
//! * **Empty axis.** Sums are 0 and means NaN. Maxima, minima and indices do not exist; callers
//!   must not request them.

mod arg;
mod fold;
mod traverse;

use half::{bf16, f16};
use panoply_core::dtype::{Complex64, Element};
use panoply_cpu_machine::compile_once;

use crate::extents::Extents;
use crate::simd::Simd;
use crate::team::Team;
use fold::{ExactMean, Extreme, FloatSum, WideSum, WrappingSum};

pub use fold::{ComputeFloat, OrderedElement, Real};
pub use fold::{Greatest, Least, Preference};
pub use traverse::max_of_row;

/// Maximum additions in a lane before it is added to its f64 total.
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
pub fn max<T: OrderedElement>(simd: Simd, team: &Team, input: &[T], extents: Extents, out: &mut [T]) {
    T::greatest(simd, team, input, extents, out);
}

/// Writes the least element along the axis to `out`. The axis must not be empty.
pub fn min<T: OrderedElement>(simd: Simd, team: &Team, input: &[T], extents: Extents, out: &mut [T]) {
    T::least(simd, team, input, extents, out);
}

/// Writes the index of the first greatest element (or first NaN) along the axis to `out`. The axis
/// must not be empty and must have at most 2^32 elements.
pub fn arg_max<T: OrderedElement>(simd: Simd, team: &Team, input: &[T], extents: Extents, out: &mut [u32]) {
    T::index_of_greatest(simd, team, input, extents, out);
}

/// Writes the index of the first least element (or first NaN) along the axis to `out`. The axis
/// must not be empty and must have at most 2^32 elements.
pub fn arg_min<T: OrderedElement>(simd: Simd, team: &Team, input: &[T], extents: Extents, out: &mut [u32]) {
    T::index_of_least(simd, team, input, extents, out);
}

compile_once! {
    /// The searches for extremes of an element type.
    pub trait ExtremeKernels: OrderedElement {
        fn greatest(simd: Simd, team: &Team, input: &[Self], extents: Extents, out: &mut [Self]) = extreme_max;
        fn least(simd: Simd, team: &Team, input: &[Self], extents: Extents, out: &mut [Self]) = extreme_min;
        fn index_of_greatest(simd: Simd, team: &Team, input: &[Self], extents: Extents, out: &mut [u32]) = arg::arg_max;
        fn index_of_least(simd: Simd, team: &Team, input: &[Self], extents: Extents, out: &mut [u32]) = arg::arg_min;
    } for f32, f16, bf16, f64, i32, u32, i8, u8
}

fn extreme_max<T: OrderedElement>(simd: Simd, team: &Team, input: &[T], extents: Extents, out: &mut [T]) {
    traverse::reduce::<T, Extreme<Greatest>>(simd, team, input, extents, 1, out);
}

fn extreme_min<T: OrderedElement>(simd: Simd, team: &Team, input: &[T], extents: Extents, out: &mut [T]) {
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

/// The extents of complex numbers as pairs of f32: real and imaginary parts are summed separately.
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
pub fn row_total<T: Real>(values: &[T]) -> f64 {
    traverse::fold_row::<T, FloatSum>(values)
}

/// The sum of values that are computed in their own type.
#[inline(always)]
pub fn wide_total<W: ComputeFloat>(values: &[W]) -> f64 {
    traverse::fold_row::<W, WideSum>(values)
}
