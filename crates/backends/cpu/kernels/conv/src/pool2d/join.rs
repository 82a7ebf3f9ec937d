//! The operations that combine the numbers of a window.

/// Number types in which windows are computed.
pub trait WindowNumber: Copy + Default + PartialOrd + std::ops::Add<Output = Self> {
    /// This number divided by a count.
    fn over(self, count: usize) -> Self;
    /// True for NaN.
    fn nan(self) -> bool;
}

macro_rules! number {
    ($($scalar:ty),*) => {$(
        impl WindowNumber for $scalar {
            #[inline(always)]
            fn over(self, count: usize) -> $scalar {
                self / count as $scalar
            }
            #[inline(always)]
            fn nan(self) -> bool {
                self.is_nan()
            }
        }
    )*};
}

number!(f32, f64);

/// An operation that combines two numbers and does not depend on their order, even with NaN.
pub(super) trait Join<T> {
    /// Whether the result is to be divided by a count.
    const COUNTS: bool;
    /// Combines both numbers.
    fn join(a: T, b: T) -> T;
}

/// The maximum; NaN if either number is NaN.
pub(super) struct Max;

/// The sum, which is divided by the count later.
pub(super) struct Average;

impl<T: WindowNumber> Join<T> for Max {
    const COUNTS: bool = false;

    #[inline(always)]
    fn join(a: T, b: T) -> T {
        let larger = if a > b { a } else { b };
        // If `a` is NaN, the comparison above chose `b`.
        if a.nan() { a } else { larger }
    }
}

impl<T: WindowNumber> Join<T> for Average {
    const COUNTS: bool = true;

    #[inline(always)]
    fn join(a: T, b: T) -> T {
        a + b
    }
}
