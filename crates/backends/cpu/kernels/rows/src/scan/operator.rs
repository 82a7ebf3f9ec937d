//! The operators of a scan: sums, products, maxima and minima.

use std::marker::PhantomData;

use half::{bf16, f16};
use panoply_core::dtype::Element;

use crate::reduce::{ComputeFloat, Greatest, Least, OrderedElement, Preference, Real};

/// An operator that is accumulated along an axis of `T`. Elements are accumulated as `Local`s
/// inside a block; the `Carry` is the value of all earlier blocks.
pub trait Operator<T: Element>: Send + Sync + 'static {
    /// The accumulated value inside a block.
    type Local: Copy + Send + Sync;
    /// The value that is carried from block to block.
    type Carry: Copy + Send + Sync;
    /// The identity of `join`.
    const IDENTITY: Self::Local;
    /// The identity of `merge`.
    const NOTHING: Self::Carry;
    /// An element as a local.
    fn lift(element: T) -> Self::Local;
    /// Combines two locals, the earlier one first.
    fn join(earlier: Self::Local, later: Self::Local) -> Self::Local;
    /// The carry after a local.
    fn advance(carry: Self::Carry, local: Self::Local) -> Self::Carry;
    /// Combines two carries, the earlier one first.
    fn merge(earlier: Self::Carry, later: Self::Carry) -> Self::Carry;
    /// The element for a local after a carry.
    fn settle(carry: Self::Carry, local: Self::Local) -> T;
    /// Whether a contiguous axis is accumulated in blocks: true for sums of floats, whose additions
    /// would otherwise wait for each other.
    const IN_BLOCKS: bool = false;
    /// Whether the operator equals the AVX-512 kernel for sums of f32.
    const IS_F32_SUM: bool = false;
}

/// The running sum.
pub struct RunningSum;
/// The running product.
pub struct RunningProduct;
/// The running maximum or minimum.
pub struct RunningExtreme<P>(PhantomData<P>);

macro_rules! float_operators {
    ($($float:ty, $wide:ty, $is_f32:expr;)*) => {$(
        impl Operator<$float> for RunningSum {
            type Local = $wide;
            type Carry = f64;
            const IDENTITY: $wide = 0.0;
            const NOTHING: f64 = 0.0;
            const IN_BLOCKS: bool = true;
            const IS_F32_SUM: bool = $is_f32;
            #[inline(always)]
            fn lift(element: $float) -> $wide {
                element.widen()
            }
            #[inline(always)]
            fn join(earlier: $wide, later: $wide) -> $wide {
                earlier + later
            }
            #[inline(always)]
            fn advance(carry: f64, local: $wide) -> f64 {
                carry + local.to_f64()
            }
            #[inline(always)]
            fn merge(earlier: f64, later: f64) -> f64 {
                earlier + later
            }
            #[inline(always)]
            fn settle(carry: f64, local: $wide) -> $float {
                <$float>::narrow(<$wide>::from_f64(carry) + local)
            }
        }

        impl Operator<$float> for RunningProduct {
            type Local = f64;
            type Carry = f64;
            const IDENTITY: f64 = 1.0;
            const NOTHING: f64 = 1.0;
            #[inline(always)]
            fn lift(element: $float) -> f64 {
                element.widen().to_f64()
            }
            #[inline(always)]
            fn join(earlier: f64, later: f64) -> f64 {
                earlier * later
            }
            #[inline(always)]
            fn advance(carry: f64, local: f64) -> f64 {
                carry * local
            }
            #[inline(always)]
            fn merge(earlier: f64, later: f64) -> f64 {
                earlier * later
            }
            #[inline(always)]
            fn settle(carry: f64, local: f64) -> $float {
                <$float>::narrow(<$wide>::from_f64(carry * local))
            }
        }
    )*};
}
float_operators! {
    f32, f32, true;
    f64, f64, false;
    f16, f32, false;
    bf16, f32, false;
}

macro_rules! integer_operators {
    ($($operator:ty, $integer:ty, $combine:ident, $identity:expr;)*) => {$(
        impl Operator<$integer> for $operator {
            type Local = $integer;
            type Carry = $integer;
            const IDENTITY: $integer = $identity;
            const NOTHING: $integer = $identity;
            #[inline(always)]
            fn lift(element: $integer) -> $integer {
                element
            }
            #[inline(always)]
            fn join(earlier: $integer, later: $integer) -> $integer {
                earlier.$combine(later)
            }
            #[inline(always)]
            fn advance(carry: $integer, local: $integer) -> $integer {
                carry.$combine(local)
            }
            #[inline(always)]
            fn merge(earlier: $integer, later: $integer) -> $integer {
                earlier.$combine(later)
            }
            #[inline(always)]
            fn settle(carry: $integer, local: $integer) -> $integer {
                carry.$combine(local)
            }
        }
    )*};
}
integer_operators! {
    RunningSum, i32, wrapping_add, 0;
    RunningSum, u32, wrapping_add, 0;
    RunningSum, i8, wrapping_add, 0;
    RunningSum, u8, wrapping_add, 0;
    RunningProduct, i32, wrapping_mul, 1;
    RunningProduct, u32, wrapping_mul, 1;
    RunningProduct, i8, wrapping_mul, 1;
    RunningProduct, u8, wrapping_mul, 1;
}

macro_rules! extremes {
    ($preference:ty, $worst:ident) => {
        impl<T: OrderedElement> Operator<T> for RunningExtreme<$preference> {
            type Local = T::Key;
            type Carry = T::Key;
            const IDENTITY: T::Key = T::$worst;
            const NOTHING: T::Key = T::$worst;
            #[inline(always)]
            fn lift(element: T) -> T::Key {
                element.key()
            }
            #[inline(always)]
            fn join(earlier: T::Key, later: T::Key) -> T::Key {
                <$preference>::keep(earlier, later)
            }
            #[inline(always)]
            fn advance(carry: T::Key, local: T::Key) -> T::Key {
                <$preference>::keep(carry, local)
            }
            #[inline(always)]
            fn merge(earlier: T::Key, later: T::Key) -> T::Key {
                <$preference>::keep(earlier, later)
            }
            #[inline(always)]
            fn settle(carry: T::Key, local: T::Key) -> T {
                T::from_key(<$preference>::keep(carry, local))
            }
        }
    };
}
extremes!(Greatest, LOWEST);
extremes!(Least, HIGHEST);
