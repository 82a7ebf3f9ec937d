//! Total orders as plain integers: the smaller the key, the better the element.
//!
//! A key has the rank in the upper bits and the element's index in the lower bits. Comparing two
//! keys thus compares the values first, then the indices: ties go to the smaller index without any
//! further code.
//!
//! The order of numbers is the usual one with two additions: -0 equals +0, and every NaN is equal
//! to every other NaN and larger than +∞.

use panoply_core::dtype::{Element, bf16, f16};

/// An element that has a rank: an unsigned integer that is smaller for smaller values.
pub trait RankedElement: Element + super::TopKKernels {
    /// The rank of a value.
    type Rank: Rank;

    /// The rank of `self` in ascending order.
    fn rank(self) -> Self::Rank;
}

/// An unsigned integer that can be joined with an index into a key.
pub trait Rank: Copy + Ord + Default + Send + Sync {
    /// Rank and index in one integer.
    type Key: CandidateKey;

    /// The rank in the opposite order.
    fn reversed(self) -> Self;

    /// The key of an element at `index`.
    fn key(self, index: u32) -> Self::Key;

    /// The rank inside a key.
    fn of_key(key: Self::Key) -> Self;

    /// The index inside a key.
    fn index_of_key(key: Self::Key) -> u32;
}

/// An integer that orders candidates, the best first.
pub trait CandidateKey: Copy + Ord + Send + Sync {
    /// A key that no better key exceeds; the bound while there are fewer than k candidates.
    const WORST: Self;
}

impl CandidateKey for u64 {
    const WORST: u64 = u64::MAX;
}

impl CandidateKey for u128 {
    const WORST: u128 = u128::MAX;
}

macro_rules! ranks {
    ($($rank:ty => $key:ty),*) => {$(
        impl Rank for $rank {
            type Key = $key;

            #[inline(always)]
            fn reversed(self) -> $rank {
                !self
            }

            #[inline(always)]
            fn key(self, index: u32) -> $key {
                (<$key>::from(self) << 32) | <$key>::from(index)
            }

            #[inline(always)]
            fn of_key(key: $key) -> $rank {
                (key >> 32) as $rank
            }

            #[inline(always)]
            fn index_of_key(key: $key) -> u32 {
                key as u32
            }
        }
    )*};
}

ranks!(u8 => u64, u16 => u64, u32 => u64, u64 => u128);

/// Floats: the sign-magnitude bits become two's complement. The two zeros are merged before, and
/// all NaNs too.
macro_rules! float_rank {
    ($($float:ty, $rank:ty, $signed:ty, $infinity:expr);*) => {$(
        impl RankedElement for $float {
            type Rank = $rank;

            #[inline(always)]
            fn rank(self) -> $rank {
                const SIGN: $rank = 1 << (<$rank>::BITS - 1);
                let bits = self.to_bits();
                let magnitude = bits & !SIGN;
                let flip = ((bits as $signed) >> (<$rank>::BITS - 1)) as $rank | SIGN;
                let ordered = if magnitude == 0 { SIGN } else { bits ^ flip };
                if magnitude > $infinity { <$rank>::MAX } else { ordered }
            }
        }
    )*};
}

float_rank!(
    f32, u32, i32, 0x7f80_0000;
    f64, u64, i64, 0x7ff0_0000_0000_0000;
    f16, u16, i16, 0x7c00;
    bf16, u16, i16, 0x7f80
);

macro_rules! integer_rank {
    ($($integer:ty, $rank:ty, $flip:expr);*) => {$(
        impl RankedElement for $integer {
            type Rank = $rank;

            #[inline(always)]
            fn rank(self) -> $rank {
                (self as $rank) ^ $flip
            }
        }
    )*};
}

integer_rank!(i32, u32, 1 << 31; u32, u32, 0; i8, u8, 1 << 7; u8, u8, 0);

/// The `f32` whose rank is `rank`: the inverse of [`RankedElement::rank`] up to the sign of zero
/// and the payload of NaN.
#[inline(always)]
pub fn f32_of_rank(rank: u32) -> f32 {
    if rank == u32::MAX {
        return f32::NAN;
    }
    const SIGN: u32 = 1 << 31;
    f32::from_bits(if rank & SIGN != 0 { rank ^ SIGN } else { !rank })
}
