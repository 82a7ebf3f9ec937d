//! How two numbers of a window become one.

/// Numbers that windows are computed in.
pub trait Number: Copy + Default + PartialOrd + std::ops::Add<Output = Self> {
    /// This number divided by a count.
    fn over(self, count: usize) -> Self;
    /// True for NaN.
    fn nan(self) -> bool;
}

macro_rules! number {
    ($($scalar:ty),*) => {$(
        impl Number for $scalar {
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

/// A way to join two numbers that does not depend on their order, NaN included.
pub(super) trait Join<T> {
    /// Whether the result is to be divided by a count.
    const COUNTS: bool;
    /// Both as one.
    fn join(a: T, b: T) -> T;
}

/// The larger one; NaN if either is.
pub(super) struct Max;

/// The sum; the count comes later.
pub(super) struct Average;

impl<T: Number> Join<T> for Max {
    const COUNTS: bool = false;

    #[inline(always)]
    fn join(a: T, b: T) -> T {
        let larger = if a > b { a } else { b };
        // Where `a` is NaN, the comparison above chose `b`.
        if a.nan() { a } else { larger }
    }
}

impl<T: Number> Join<T> for Average {
    const COUNTS: bool = true;

    #[inline(always)]
    fn join(a: T, b: T) -> T {
        a + b
    }
}
