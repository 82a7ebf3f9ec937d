//! Eight numbers modulo 2^255 - 19, one in each lane, as ten signed limbs of alternately 26 and 25
//! bits. A carried number has limbs of at most 2^25 and 2^24, or little more. Products accept sums
//! of up to three carried numbers, squares only carried ones.

use std::arch::x86_64::*;

use super::number::U256;
use super::table::{LANES, from_limbs, in_limbs, loaded, stored};

pub(super) const LIMBS: usize = 10;
pub(super) type Field = [__m512i; LIMBS];

/// The first bit of a limb.
fn start(limb: usize) -> usize {
    limb * 25 + limb.div_ceil(2)
}

/// Converts numbers below 2^256.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn entered(numbers: &[U256; LANES]) -> Field {
    // The highest limb has one bit too many.
    let mut limbs = in_limbs(numbers, start);
    limbs[9].iter_mut().zip(numbers).for_each(|(limb, number)| *limb = (number[3] >> 38) as i64);
    carried(loaded(&limbs))
}

/// Converts carried numbers back to numbers below the modulus.
#[target_feature(enable = "avx512f")]
pub(super) fn left(f: &Field) -> [U256; LANES] {
    // The number lies between -2^255 and 2^255, so between -2 and 1 moduli. Whether adding 19
    // carries beyond the lowest 255 bits decides how often the modulus is subtracted.
    let mut f = *f;
    let mut quotient = shifted(add(times_19(f[9]), _mm512_set1_epi64(1 << 24)), 25);
    for (limb, value) in f.iter().enumerate() {
        quotient = shifted(add(*value, quotient), bits(limb));
    }
    f[0] = add(f[0], times_19(quotient));
    for limb in 0..LIMBS {
        let carry = shifted(f[limb], bits(limb));
        f[limb] = _mm512_and_si512(f[limb], _mm512_set1_epi64((1 << bits(limb)) - 1));
        if limb + 1 < LIMBS {
            f[limb + 1] = add(f[limb + 1], carry);
        }
    }
    from_limbs(&stored(&f), start)
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn sum(f: &Field, g: &Field) -> Field {
    std::array::from_fn(|limb| add(f[limb], g[limb]))
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn difference(f: &Field, g: &Field) -> Field {
    std::array::from_fn(|limb| _mm512_sub_epi64(f[limb], g[limb]))
}

/// The sum of ten terms.
macro_rules! column {
    ($term:ident, $k:literal) => {{
        let first = add(add($term!($k, 0), $term!($k, 1)), add($term!($k, 2), $term!($k, 3)));
        let last = add(add($term!($k, 6), $term!($k, 7)), add($term!($k, 8), $term!($k, 9)));
        add(add(first, add($term!($k, 4), $term!($k, 5))), last)
    }};
}

macro_rules! columns {
    ($term:ident) => {
        [
            column!($term, 0),
            column!($term, 1),
            column!($term, 2),
            column!($term, 3),
            column!($term, 4),
            column!($term, 5),
            column!($term, 6),
            column!($term, 7),
            column!($term, 8),
            column!($term, 9),
        ]
    };
}

/// The product. Only the lower halves of the lanes are used.
#[inline(never)]
#[target_feature(enable = "avx512f")]
pub(super) fn product(f: &Field, g: &Field) -> Field {
    let nineteen = _mm512_set1_epi64(19);
    let wrapped: Field = std::array::from_fn(|limb| _mm512_mul_epi32(g[limb], nineteen));
    let twice: Field = std::array::from_fn(|limb| add(f[limb], f[limb]));
    // A limb of 25 bits begins half a bit lower than limbs of 25.5 bits would: the product of two
    // such limbs counts twice.
    macro_rules! term {
        ($k:literal, $i:literal) => {{
            const J: usize = (10 + $k - $i) % 10;
            let f = if $i % 2 == 1 && J % 2 == 1 { twice[$i] } else { f[$i] };
            _mm512_mul_epi32(f, if $i > $k { wrapped[J] } else { g[J] })
        }};
    }
    carried(columns!(term))
}

#[inline(never)]
#[target_feature(enable = "avx512f")]
pub(super) fn square(f: &Field) -> Field {
    let nineteen = _mm512_set1_epi64(19);
    let wrapped: Field = std::array::from_fn(|limb| _mm512_mul_epi32(f[limb], nineteen));
    let twice: Field = std::array::from_fn(|limb| add(f[limb], f[limb]));
    let wrapped_twice: Field = std::array::from_fn(|limb| add(wrapped[limb], wrapped[limb]));
    macro_rules! term {
        ($k:literal, $i:literal) => {{
            const J: usize = (10 + $k - $i) % 10;
            let (is_doubled, wraps) = ($i % 2 == 1 && J % 2 == 1, $i > $k || J > $k);
            let g = match (is_doubled, wraps) {
                (false, false) => f[J],
                (false, true) => wrapped[J],
                (true, false) => twice[J],
                (true, true) => wrapped_twice[J],
            };
            if $i < J {
                _mm512_mul_epi32(twice[$i], g)
            } else if $i == J {
                _mm512_mul_epi32(f[$i], g)
            } else {
                _mm512_setzero_si512()
            }
        }};
    }
    carried(columns!(term))
}

/// The inverse, or zero for zero: the power 2^255 - 21.
#[target_feature(enable = "avx512f")]
pub(super) fn inverse(f: &Field) -> Field {
    let f2 = square(f);
    let f9 = product(&squared_often(&f2, 2), f);
    let f11 = product(&f9, &f2);
    // `n5` is the power 2^5 - 1, and so on.
    let n5 = product(&square(&f11), &f9);
    let n10 = product(&squared_often(&n5, 5), &n5);
    let n20 = product(&squared_often(&n10, 10), &n10);
    let n40 = product(&squared_often(&n20, 20), &n20);
    let n50 = product(&squared_often(&n40, 10), &n10);
    let n100 = product(&squared_often(&n50, 50), &n50);
    let n200 = product(&squared_often(&n100, 100), &n100);
    let n250 = product(&squared_often(&n200, 50), &n50);
    product(&squared_often(&n250, 5), &f11)
}

#[target_feature(enable = "avx512f")]
fn squared_often(f: &Field, times: usize) -> Field {
    let mut f = *f;
    for _ in 0..times {
        f = square(&f);
    }
    f
}

/// One number in every lane.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn constant(number: u32) -> Field {
    std::array::from_fn(|limb| _mm512_set1_epi64(if limb == 0 { i64::from(number) } else { 0 }))
}

/// Carries limbs of up to 62 bits, in two interleaved chains.
#[inline]
#[target_feature(enable = "avx512f")]
fn carried(mut f: Field) -> Field {
    macro_rules! carry {
        ($limb:literal) => {{
            const BITS: u32 = 26 - $limb % 2;
            let carry = shifted(add(f[$limb], _mm512_set1_epi64(1 << (BITS - 1))), BITS);
            f[$limb] = _mm512_sub_epi64(f[$limb], _mm512_slli_epi64::<BITS>(carry));
            f[($limb + 1) % 10] = add(f[($limb + 1) % 10], if $limb == 9 { times_19(carry) } else { carry });
        }};
    }
    carry!(0);
    carry!(4);
    carry!(1);
    carry!(5);
    carry!(2);
    carry!(6);
    carry!(3);
    carry!(7);
    carry!(4);
    carry!(8);
    carry!(9);
    carry!(0);
    f
}

fn bits(limb: usize) -> u32 {
    26 - limb as u32 % 2
}

#[inline]
#[target_feature(enable = "avx512f")]
fn add(a: __m512i, b: __m512i) -> __m512i {
    _mm512_add_epi64(a, b)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn shifted(a: __m512i, bits: u32) -> __m512i {
    _mm512_srav_epi64(a, _mm512_set1_epi64(i64::from(bits)))
}

#[inline]
#[target_feature(enable = "avx512f")]
fn times_19(a: __m512i) -> __m512i {
    add(a, add(_mm512_slli_epi64::<1>(a), _mm512_slli_epi64::<4>(a)))
}
