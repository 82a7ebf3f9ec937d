//! Elements as unsigned words with the same order.

use bytemuck::Zeroable;
use half::{bf16, f16};
use panoply_core::dtype::Element;

use super::split::Splitter;
use crate::simd::Simd;

/// An element that can be sorted.
pub trait SortKey: Element + super::SortKernels {
    /// The unsigned word that represents the element.
    type Word: Word;
    /// Number of bits of the word that are used: 8, 16, 32 or 64.
    const BITS: u32;
    /// The word of this element. Smaller elements have smaller words, -0 comes before +0, and every
    /// NaN becomes the last word.
    fn encode(self) -> Self::Word;
    /// The element of a word; all NaNs are decoded to the same quiet NaN.
    fn decode(word: Self::Word) -> Self;
    /// The same element with -0 replaced by +0, so that both have the same word.
    fn merge_zeros(self) -> Self {
        self
    }
}

/// An unsigned word that is sorted.
pub trait Word: Zeroable + Copy + Ord + Send + Sync + 'static {
    /// Zero.
    const ZERO: Self;
    /// The word with every bit set.
    const LAST: Self;
    /// The word with every bit inverted, which reverses the order.
    fn invert(self) -> Self;
    /// The difference to a smaller or equal word.
    fn minus(self, smaller: Self) -> Self;
    /// The low 16 bits of the word shifted right.
    fn bits_from(self, shift: u32) -> u16;
    /// The word with these low bits.
    fn from_bits(bits: u16) -> Self;
    /// Number of bits up to the highest set bit.
    fn width(self) -> u32;
    /// The word with the position of its element in the lower bits, which makes words distinct and
    /// sorting stable.
    type Pair: Word;
    /// Joins a word and a position.
    fn pair(self, position: u32) -> Self::Pair;
    /// The position in a pair.
    fn position(pair: Self::Pair) -> u32;
    /// Sorts words on the calling thread.
    fn sort(simd: Simd, words: &mut [Self]);
    /// The functions that distribute words over a few buckets in vector registers. `None` if the
    /// type or the CPU does not support them.
    fn splitter(simd: Simd) -> Option<Splitter<Self>>;
}

macro_rules! words {
    ($($word:ty, $pair:ty, $position_bits:expr, $sort:expr, $splitter:expr;)*) => {$(
        impl Word for $word {
            const ZERO: Self = 0;
            const LAST: Self = <$word>::MAX;
            type Pair = $pair;
            #[inline(always)]
            fn invert(self) -> Self {
                !self
            }
            #[inline(always)]
            fn minus(self, smaller: Self) -> Self {
                self.wrapping_sub(smaller)
            }
            #[inline(always)]
            fn bits_from(self, shift: u32) -> u16 {
                (self >> shift) as u16
            }
            #[inline(always)]
            fn from_bits(bits: u16) -> Self {
                <$word>::from(bits)
            }
            #[inline(always)]
            fn width(self) -> u32 {
                <$word>::BITS - self.leading_zeros()
            }
            #[inline(always)]
            fn pair(self, position: u32) -> $pair {
                (<$pair>::from(self) << $position_bits) | <$pair>::from(position)
            }
            #[inline(always)]
            fn position(pair: $pair) -> u32 {
                pair as u32
            }
            fn sort(simd: Simd, words: &mut [Self]) {
                $sort(simd, words);
            }
            fn splitter(simd: Simd) -> Option<Splitter<Self>> {
                $splitter(simd)
            }
        }
    )*};
}
words! {
    u32, u64, 32, super::line::sort_words, super::line::splitter;
    u64, u128, 64, super::line::sort_words, super::line::splitter;
    u128, u128, 0, |_, words: &mut [u128]| words.sort_unstable(), |_| None;
}

macro_rules! float_keys {
    ($($float:ty, $bits:ty, $signed:ty, $word:ty;)*) => {$(
        impl SortKey for $float {
            type Word = $word;
            const BITS: u32 = <$bits>::BITS;
            #[inline(always)]
            fn encode(self) -> $word {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                let bits = self.to_bits();
                // Negative numbers count downwards, so all their bits are inverted. For others only
                // the sign bit is set, which places them above.
                let flip = ((bits as $signed) >> (<$bits>::BITS - 1)) as $bits | SIGN;
                let infinite = <$float>::INFINITY.to_bits();
                <$word>::from(if bits & !SIGN > infinite { <$bits>::MAX } else { bits ^ flip })
            }
            #[inline(always)]
            fn decode(word: $word) -> $float {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                let bits = word as $bits;
                let flip = !((bits as $signed) >> (<$bits>::BITS - 1)) as $bits | SIGN;
                let quiet = <$float>::NAN.to_bits();
                <$float>::from_bits(if bits == <$bits>::MAX { quiet } else { bits ^ flip })
            }
            #[inline(always)]
            fn merge_zeros(self) -> $float {
                let bits = self.to_bits();
                <$float>::from_bits(if bits << 1 == 0 { 0 } else { bits })
            }
        }
    )*};
}
float_keys! {
    f32, u32, i32, u32;
    f64, u64, i64, u64;
    f16, u16, i16, u32;
    bf16, u16, i16, u32;
}

macro_rules! integer_keys {
    ($($integer:ty, $bits:ty, $offset:expr;)*) => {$(
        impl SortKey for $integer {
            type Word = u32;
            const BITS: u32 = <$bits>::BITS;
            #[inline(always)]
            fn encode(self) -> u32 {
                u32::from(self as $bits ^ $offset)
            }
            #[inline(always)]
            fn decode(word: u32) -> $integer {
                (word as $bits ^ $offset) as $integer
            }
        }
    )*};
}
integer_keys! {
    i32, u32, 1 << 31;
    u32, u32, 0;
    i8, u8, 1 << 7;
    u8, u8, 0;
}
