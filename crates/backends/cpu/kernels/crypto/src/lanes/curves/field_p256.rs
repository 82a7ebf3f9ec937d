//! Eight numbers modulo p = 2^256 - 2^224 + 2^192 + 2^96 - 1, one in each lane, in Montgomery form:
//! nine limbs of 29 bits, the highest signed; a product is divided by 2^261. A carried number lies
//! between -4 p and 2 p.
//!
//! Products accept limbs between -2^29 and 2^29, such as those of carried numbers and their
//! differences. No branch and no address depends on a number.

use std::arch::x86_64::*;

use super::number::{Modulus, U256};
use super::table::{LANES, from_limbs, in_limbs, loaded, stored};

pub(super) const LIMBS: usize = 9;
pub(super) type Field = [__m512i; LIMBS];

const BITS: u32 = 29;
/// The same field for single numbers.
pub(super) const MODULUS: Modulus = Modulus::new([u64::MAX, 0xffff_ffff, 0, 0xffff_ffff_0000_0001]);
/// Factors that convert to this Montgomery form: from the form of [`MODULUS`], and from plain
/// numbers.
const FROM_ENTERED: U256 = MODULUS.power_of_two(5);
const FROM_PLAIN: U256 = MODULUS.power_of_two(261);

fn start(limb: usize) -> usize {
    limb * BITS as usize
}

/// Converts numbers in the Montgomery form of [`MODULUS`].
#[target_feature(enable = "avx512f")]
pub(super) fn from_entered(numbers: &[U256; LANES]) -> Field {
    loaded(&in_limbs(&numbers.map(|number| MODULUS.product(&number, &FROM_ENTERED)), start))
}

/// Converts numbers below 2^256.
#[target_feature(enable = "avx512f")]
pub(super) fn entered(numbers: &[U256; LANES]) -> Field {
    loaded(&in_limbs(&numbers.map(|number| MODULUS.product(&number, &FROM_PLAIN)), start))
}

/// Converts carried numbers back to plain numbers below the modulus.
#[target_feature(enable = "avx512f")]
pub(super) fn left(f: &Field) -> [U256; LANES] {
    from_limbs(&stored(&lowered(f)), start).map(|number| MODULUS.below(number, 0))
}

/// A mask of the numbers (carried ones or differences of such) that are zero.
#[target_feature(enable = "avx512f")]
pub(super) fn are_zero(f: &Field) -> __mmask8 {
    let f = lowered(f);
    let p: Field = loaded(&in_limbs(&[MODULUS.modulus; LANES], start));
    let (mut any, mut other) = (_mm512_setzero_si512(), _mm512_setzero_si512());
    for limb in 0..LIMBS {
        any = _mm512_or_si512(any, f[limb]);
        other = _mm512_or_si512(other, _mm512_xor_si512(f[limb], p[limb]));
    }
    _mm512_testn_epi64_mask(any, any) | _mm512_testn_epi64_mask(other, other)
}

/// The number divided by 2^261: from zero up to the modulus, which only zero becomes.
#[target_feature(enable = "avx512f")]
fn lowered(f: &Field) -> Field {
    let zero = _mm512_setzero_si512();
    reduced(std::array::from_fn(|limb| if limb < LIMBS { f[limb] } else { zero }))
}

/// One in Montgomery form.
#[target_feature(enable = "avx512f")]
pub(super) fn one() -> Field {
    entered(&[super::number::ONE; LANES])
}

#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn difference(f: &Field, g: &Field) -> Field {
    std::array::from_fn(|limb| _mm512_sub_epi64(f[limb], g[limb]))
}

/// f - g - 2 h, carried.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn less_twice(f: &Field, g: &Field, h: &Field) -> Field {
    carried(std::array::from_fn(|limb| {
        let less = _mm512_sub_epi64(f[limb], g[limb]);
        _mm512_sub_epi64(less, add(h[limb], h[limb]))
    }))
}

/// `f` in lanes of the mask, `g` in others.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn chosen(mask: __mmask8, f: &Field, g: &Field) -> Field {
    std::array::from_fn(|limb| _mm512_mask_blend_epi64(mask, g[limb], f[limb]))
}

/// Products of limbs, unreduced.
type WideProduct = [__m512i; 2 * LIMBS];

macro_rules! wide {
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
            column!($term, 10),
            column!($term, 11),
            column!($term, 12),
            column!($term, 13),
            column!($term, 14),
            column!($term, 15),
            column!($term, 16),
            _mm512_setzero_si512(),
        ]
    };
}

/// The sum of up to nine terms.
macro_rules! column {
    ($term:ident, $k:literal) => {{
        let first = add(add($term!($k, 0), $term!($k, 1)), add($term!($k, 2), $term!($k, 3)));
        let last = add(add($term!($k, 4), $term!($k, 5)), add($term!($k, 6), $term!($k, 7)));
        add(add(first, last), $term!($k, 8))
    }};
}

#[inline]
#[target_feature(enable = "avx512f")]
fn wide(f: &Field, g: &Field) -> WideProduct {
    macro_rules! term {
        ($k:literal, $i:literal) => {
            if $i <= $k && $k - $i < LIMBS as i32 {
                _mm512_mul_epi32(f[$i], g[($k as usize).wrapping_sub($i) % LIMBS])
            } else {
                _mm512_setzero_si512()
            }
        };
    }
    wide!(term)
}

/// The product. Only the lower halves of the lanes are used.
#[inline(never)]
#[target_feature(enable = "avx512f")]
pub(super) fn product(f: &Field, g: &Field) -> Field {
    reduced(wide(f, g))
}

/// a b - c d.
#[inline(never)]
#[target_feature(enable = "avx512f")]
pub(super) fn difference_of_products(a: &Field, b: &Field, c: &Field, d: &Field) -> Field {
    let (first, second) = (wide(a, b), wide(c, d));
    reduced(std::array::from_fn(|place| _mm512_sub_epi64(first[place], second[place])))
}

#[inline(never)]
#[target_feature(enable = "avx512f")]
pub(super) fn square(f: &Field) -> Field {
    let twice: Field = std::array::from_fn(|limb| add(f[limb], f[limb]));
    macro_rules! term {
        ($k:literal, $i:literal) => {
            if 2 * $i < $k && $k - $i < LIMBS as i32 {
                _mm512_mul_epi32(twice[$i], f[($k as usize).wrapping_sub($i) % LIMBS])
            } else if 2 * $i == $k {
                _mm512_mul_epi32(f[$i], f[$i])
            } else {
                _mm512_setzero_si512()
            }
        };
    }
    reduced(wide!(term))
}

/// The inverse, or zero for zero: the power p - 2.
#[target_feature(enable = "avx512f")]
pub(super) fn inverse(f: &Field) -> Field {
    // `n2` is the power 2^2 - 1, and so on.
    let n2 = product(&square(f), f);
    let n3 = product(&square(&n2), f);
    let n6 = product(&squared_often(&n3, 3), &n3);
    let n12 = product(&squared_often(&n6, 6), &n6);
    let n15 = product(&squared_often(&n12, 3), &n3);
    let n30 = product(&squared_often(&n15, 15), &n15);
    let n32 = product(&squared_often(&n30, 2), &n2);
    // The words of the exponent from the highest on: all ones, one, three of zeros and one of ones,
    // all ones, and all ones but the second bit.
    let high = product(&squared_often(&n32, 32), f);
    let high = product(&squared_often(&high, 128), &n32);
    let high = product(&squared_often(&high, 32), &n32);
    let high = product(&squared_often(&high, 30), &n30);
    product(&squared_often(&high, 2), f)
}

#[target_feature(enable = "avx512f")]
fn squared_often(f: &Field, times: usize) -> Field {
    let mut f = *f;
    for _ in 0..times {
        f = square(&f);
    }
    f
}

/// Divides by 2^261. Since p ends in 96 ones, each limb itself is the multiple of p that makes it
/// zero; of p only four bits matter beyond.
#[inline]
#[target_feature(enable = "avx512f")]
fn reduced(mut t: WideProduct) -> Field {
    let mask = _mm512_set1_epi64((1 << BITS) - 1);
    macro_rules! step {
        ($($i:literal)*) => {
            $(
                let times = _mm512_and_si512(t[$i], mask);
                t[$i + 1] = add(t[$i + 1], _mm512_srai_epi64::<BITS>(t[$i]));
                t[$i + 3] = add(t[$i + 3], _mm512_slli_epi64::<9>(times));
                t[$i + 6] = add(t[$i + 6], _mm512_slli_epi64::<18>(times));
                t[$i + 7] = _mm512_sub_epi64(t[$i + 7], _mm512_slli_epi64::<21>(times));
                t[$i + 8] = add(t[$i + 8], _mm512_slli_epi64::<24>(times));
            )*
        };
    }
    step!(0 1 2 3 4 5 6 7 8);
    carried([t[9], t[10], t[11], t[12], t[13], t[14], t[15], t[16], t[17]])
}

#[inline]
#[target_feature(enable = "avx512f")]
fn carried(mut f: Field) -> Field {
    let mask = _mm512_set1_epi64((1 << BITS) - 1);
    macro_rules! carry {
        ($($i:literal)*) => {
            $(
                f[$i + 1] = add(f[$i + 1], _mm512_srai_epi64::<BITS>(f[$i]));
                f[$i] = _mm512_and_si512(f[$i], mask);
            )*
        };
    }
    carry!(0 1 2 3 4 5 6 7);
    f
}

#[inline]
#[target_feature(enable = "avx512f")]
fn add(a: __m512i, b: __m512i) -> __m512i {
    _mm512_add_epi64(a, b)
}
