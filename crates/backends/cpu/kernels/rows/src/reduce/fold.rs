//! The operations of a reduction on one element, one lane and one total.

use std::marker::PhantomData;

use half::{bf16, f16};
use panoply_core::dtype::Element;

use crate::lanes::{narrow_bf16, narrow_f16, widen_bf16, widen_f16};

/// A reduction of elements of type `T`. A lane collects elements in a `Block`; blocks are flushed
/// into a `Total`.
pub trait Fold<T: Element>: Send + Sync {
    /// The state of a lane for a few steps.
    type Block: Copy + Send;
    /// The accumulated blocks of a line.
    type Total: Copy + Send + Sync;
    /// The type of the result.
    type Output: Element;
    /// The block of no elements.
    const EMPTY: Self::Block;
    /// The total of no blocks.
    const NOTHING: Self::Total;
    /// The block with one more element.
    fn take(block: Self::Block, element: T) -> Self::Block;
    /// The total with the block added.
    fn flush(total: Self::Total, block: Self::Block) -> Self::Total;
    /// Combines two totals; the left one covers the earlier elements.
    fn join(left: Self::Total, right: Self::Total) -> Self::Total;
    /// The result. Sums are divided by `divisor`, which is one except for means.
    fn finish(total: Self::Total, divisor: usize) -> Self::Output;
}

/// A float and the type in which it is computed.
pub trait Real: Element {
    /// f32 for f32, f16 and bf16; f64 for f64.
    type Wide: ComputeFloat;
    /// The same number in the type in which it is computed.
    fn widen(self) -> Self::Wide;
    /// The nearest element.
    fn narrow(wide: Self::Wide) -> Self;
}

/// A type in which floats are computed.
pub trait ComputeFloat: Element + PartialOrd + std::ops::Add<Output = Self> {
    /// Zero.
    const ZERO: Self;
    /// As an f64, exactly.
    fn to_f64(self) -> f64;
    /// The nearest number of this type.
    fn from_f64(value: f64) -> Self;
}

macro_rules! wides {
    ($($wide:ty),*) => {$(
        impl ComputeFloat for $wide {
            const ZERO: Self = 0.0;
            #[inline(always)]
            fn to_f64(self) -> f64 {
                f64::from(self)
            }
            #[inline(always)]
            fn from_f64(value: f64) -> Self {
                value as $wide
            }
        }
    )*};
}
wides!(f32, f64);

macro_rules! reals {
    ($($real:ty => $wide:ty, $widen:expr, $narrow:expr;)*) => {$(
        impl Real for $real {
            type Wide = $wide;
            #[inline(always)]
            fn widen(self) -> $wide {
                $widen(self)
            }
            #[inline(always)]
            fn narrow(wide: $wide) -> $real {
                $narrow(wide)
            }
        }
    )*};
}
reals! {
    f32 => f32, std::convert::identity, std::convert::identity;
    f64 => f64, std::convert::identity, std::convert::identity;
    f16 => f32, widen_f16, narrow_f16;
    bf16 => f32, widen_bf16, narrow_bf16;
}

/// The sum of floats, divided before it is rounded.
pub struct FloatSum;

impl<T: Real> Fold<T> for FloatSum {
    type Block = T::Wide;
    type Total = f64;
    type Output = T;
    const EMPTY: T::Wide = T::Wide::ZERO;
    const NOTHING: f64 = 0.0;
    #[inline(always)]
    fn take(block: T::Wide, element: T) -> T::Wide {
        block + element.widen()
    }
    #[inline(always)]
    fn flush(total: f64, block: T::Wide) -> f64 {
        total + block.to_f64()
    }
    #[inline(always)]
    fn join(left: f64, right: f64) -> f64 {
        left + right
    }
    #[inline(always)]
    fn finish(total: f64, divisor: usize) -> T {
        T::narrow(T::Wide::from_f64(total / divisor as f64))
    }
}

/// The sum of floats that are computed in their own type.
pub struct WideSum;

impl<W: ComputeFloat> Fold<W> for WideSum {
    type Block = W;
    type Total = f64;
    type Output = W;
    const EMPTY: W = W::ZERO;
    const NOTHING: f64 = 0.0;
    #[inline(always)]
    fn take(block: W, element: W) -> W {
        block + element
    }
    #[inline(always)]
    fn flush(total: f64, block: W) -> f64 {
        total + block.to_f64()
    }
    #[inline(always)]
    fn join(left: f64, right: f64) -> f64 {
        left + right
    }
    #[inline(always)]
    fn finish(total: f64, _divisor: usize) -> W {
        W::from_f64(total)
    }
}

/// The sum of integers in their own type.
pub struct WrappingSum;

/// The mean of integers, exact except for the final rounding to f32.
pub struct ExactMean;

macro_rules! integer_folds {
    ($($integer:ty),*) => {$(
        impl Fold<$integer> for WrappingSum {
            type Block = $integer;
            type Total = $integer;
            type Output = $integer;
            const EMPTY: $integer = 0;
            const NOTHING: $integer = 0;
            #[inline(always)]
            fn take(block: $integer, element: $integer) -> $integer {
                block.wrapping_add(element)
            }
            #[inline(always)]
            fn flush(total: $integer, block: $integer) -> $integer {
                total.wrapping_add(block)
            }
            #[inline(always)]
            fn join(left: $integer, right: $integer) -> $integer {
                left.wrapping_add(right)
            }
            #[inline(always)]
            fn finish(total: $integer, _divisor: usize) -> $integer {
                total
            }
        }

        impl Fold<$integer> for ExactMean {
            type Block = i64;
            type Total = i64;
            type Output = f32;
            const EMPTY: i64 = 0;
            const NOTHING: i64 = 0;
            #[inline(always)]
            fn take(block: i64, element: $integer) -> i64 {
                block + i64::from(element)
            }
            #[inline(always)]
            fn flush(total: i64, block: i64) -> i64 {
                total + block
            }
            #[inline(always)]
            fn join(left: i64, right: i64) -> i64 {
                left + right
            }
            #[inline(always)]
            fn finish(total: i64, divisor: usize) -> f32 {
                (total as f64 / divisor as f64) as f32
            }
        }
    )*};
}
integer_folds!(i32, u32, i8, u8);

/// An ordered element type, and the type of its comparison keys.
pub trait OrderedElement: Element + super::ExtremeKernels {
    /// A type that compares quickly in vectors and represents every element exactly.
    type Key: Copy + PartialOrd + Send + Sync;
    /// At or below every element.
    const LOWEST: Self::Key;
    /// At or above every element.
    const HIGHEST: Self::Key;
    /// The element as a key.
    fn key(self) -> Self::Key;
    /// The element of a key.
    fn from_key(key: Self::Key) -> Self;
}

macro_rules! ordered {
    ($($element:ty => $key:ty, $lowest:expr, $highest:expr, $to:expr, $from:expr;)*) => {$(
        impl OrderedElement for $element {
            type Key = $key;
            const LOWEST: $key = $lowest;
            const HIGHEST: $key = $highest;
            #[inline(always)]
            fn key(self) -> $key {
                $to(self)
            }
            #[inline(always)]
            fn from_key(key: $key) -> $element {
                $from(key)
            }
        }
    )*};
}
ordered! {
    f32 => f32, f32::NEG_INFINITY, f32::INFINITY, std::convert::identity, std::convert::identity;
    f64 => f64, f64::NEG_INFINITY, f64::INFINITY, std::convert::identity, std::convert::identity;
    f16 => f32, f32::NEG_INFINITY, f32::INFINITY, widen_f16, narrow_f16;
    bf16 => f32, f32::NEG_INFINITY, f32::INFINITY, widen_bf16, narrow_bf16;
    i32 => i32, i32::MIN, i32::MAX, std::convert::identity, std::convert::identity;
    u32 => u32, u32::MIN, u32::MAX, std::convert::identity, std::convert::identity;
    i8 => i8, i8::MIN, i8::MAX, std::convert::identity, std::convert::identity;
    u8 => u8, u8::MIN, u8::MAX, std::convert::identity, std::convert::identity;
}

/// The preference of a search among two keys.
pub trait Preference: Send + Sync {
    /// A key that no key is worse than.
    fn worst<T: OrderedElement>() -> T::Key;
    /// Whether `candidate` is strictly better than `best`. Never true when either is NaN.
    fn better<K: PartialOrd>(candidate: K, best: K) -> bool;

    /// The key to keep: the better one, or NaN if either is NaN.
    #[inline(always)]
    fn keep<K: PartialOrd + Copy>(best: K, candidate: K) -> K {
        if Self::better(candidate, best) | is_nan(candidate) { candidate } else { best }
    }

    /// Whether a later `candidate` replaces `best` in a search for the first: it is better, or the
    /// first NaN.
    #[inline(always)]
    fn replaces<K: PartialOrd + Copy>(candidate: K, best: K) -> bool {
        Self::better(candidate, best) | (is_nan(candidate) & !is_nan(best))
    }
}

/// Whether a key is NaN; always false for integers.
#[inline(always)]
#[allow(clippy::eq_op)] // Only NaN differs from itself.
pub fn is_nan<K: PartialOrd + Copy>(key: K) -> bool {
    key != key
}

/// Prefers the greater key.
pub struct Greatest;

impl Preference for Greatest {
    #[inline(always)]
    fn worst<T: OrderedElement>() -> T::Key {
        T::LOWEST
    }
    #[inline(always)]
    fn better<K: PartialOrd>(candidate: K, best: K) -> bool {
        candidate > best
    }
}

/// Prefers the smaller key.
pub struct Least;

impl Preference for Least {
    #[inline(always)]
    fn worst<T: OrderedElement>() -> T::Key {
        T::HIGHEST
    }
    #[inline(always)]
    fn better<K: PartialOrd>(candidate: K, best: K) -> bool {
        candidate < best
    }
}

/// The greatest or least element.
pub struct Extreme<P>(PhantomData<P>);

macro_rules! extreme {
    ($preference:ty, $worst:ident) => {
        impl<T: OrderedElement> Fold<T> for Extreme<$preference> {
            type Block = T::Key;
            type Total = T::Key;
            type Output = T;
            const EMPTY: T::Key = T::$worst;
            const NOTHING: T::Key = T::$worst;
            #[inline(always)]
            fn take(block: T::Key, element: T) -> T::Key {
                <$preference>::keep(block, element.key())
            }
            #[inline(always)]
            fn flush(total: T::Key, block: T::Key) -> T::Key {
                <$preference>::keep(total, block)
            }
            #[inline(always)]
            fn join(left: T::Key, right: T::Key) -> T::Key {
                <$preference>::keep(left, right)
            }
            #[inline(always)]
            fn finish(total: T::Key, _divisor: usize) -> T {
                T::from_key(total)
            }
        }
    };
}
extreme!(Greatest, LOWEST);
extreme!(Least, HIGHEST);
