//! Transposes eight registers of eight words.

use std::arch::x86_64::*;

/// From eight words per lane to one register per word.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn crossed(rows: [__m512i; 8]) -> [__m512i; 8] {
    // Piece `piece` of `pairs[2 * group + word]` is word `2 * piece + word` of lanes `2 * group`
    // and the next.
    let pairs: [__m512i; 8] = std::array::from_fn(|at| match at % 2 {
        0 => _mm512_unpacklo_epi64(rows[at], rows[at + 1]),
        _ => _mm512_unpackhi_epi64(rows[at - 1], rows[at]),
    });
    // The pieces of both words of four lanes: the first two and the last two.
    let half = |word: usize, group: usize| {
        let (one, other) = (pairs[2 * group + word], pairs[2 * group + 2 + word]);
        (_mm512_shuffle_i32x4::<0x44>(one, other), _mm512_shuffle_i32x4::<0xee>(one, other))
    };
    let ((a, b), (c, d)) = (half(0, 0), half(0, 2));
    let ((e, f), (g, h)) = (half(1, 0), half(1, 2));
    [
        _mm512_shuffle_i32x4::<0x88>(a, c),
        _mm512_shuffle_i32x4::<0x88>(e, g),
        _mm512_shuffle_i32x4::<0xdd>(a, c),
        _mm512_shuffle_i32x4::<0xdd>(e, g),
        _mm512_shuffle_i32x4::<0x88>(b, d),
        _mm512_shuffle_i32x4::<0x88>(f, h),
        _mm512_shuffle_i32x4::<0xdd>(b, d),
        _mm512_shuffle_i32x4::<0xdd>(f, h),
    ]
}
