//! Checks by the carry-less products of x86-64: 128 bits at a time, or 512.

use std::arch::x86_64::*;

use super::folding::{Folding, Multiply};

/// Messages below this length are folded 128 bits at a time.
const WIDE_BYTES_MIN: usize = 256;

/// The check of a message. `None` if the CPU has no carry-less products.
pub(super) fn check(folding: &Folding, message: &[u8]) -> Option<u64> {
    let narrow = is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("ssse3");
    let wide = message.len() >= WIDE_BYTES_MIN
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw");
    if !narrow {
        return None;
    }
    // SAFETY: the instructions were found just now.
    Some(unsafe {
        match (wide, folding.is_turned) {
            (true, false) => wide_check::<false>(folding, message),
            (true, true) => wide_check::<true>(folding, message),
            (false, false) => narrow_check::<false>(folding, message),
            (false, true) => narrow_check::<true>(folding, message),
        }
    })
}

/// Products by `PCLMULQDQ`. Only made where the CPU has it.
struct Unit(());

impl Multiply for Unit {
    #[inline(always)]
    fn multiply(&self, a: u64, b: u64) -> u128 {
        #[target_feature(enable = "pclmulqdq")]
        #[inline]
        fn product(a: u64, b: u64) -> u128 {
            number(_mm_clmulepi64_si128(_mm_set_epi64x(0, a as i64), _mm_set_epi64x(0, b as i64), 0))
        }
        // SAFETY: a `Unit` is only made where the CPU has the instruction.
        unsafe { product(a, b) }
    }
}

#[target_feature(enable = "pclmulqdq,ssse3")]
fn narrow_check<const TURNED: bool>(folding: &Folding, message: &[u8]) -> u64 {
    let unit = Unit(());
    let (lines, rest) = message.as_chunks::<64>();
    let Some((first, lines)) = lines.split_first() else {
        return folding.by_products(message, &unit);
    };
    let quarters = |line: &[u8; 64]| {
        let (blocks, _) = line.as_chunks::<16>();
        [load::<TURNED>(&blocks[0]), load::<TURNED>(&blocks[1]), load::<TURNED>(&blocks[2]), load::<TURNED>(&blocks[3])]
    };
    let mut sums = quarters(first);
    sums[0] = _mm_xor_si128(sums[0], _mm_set_epi64x(0, folding.begin as i64));
    let by_64 = pair(folding.by_64);
    for line in lines {
        let next = quarters(line);
        for (sum, next) in sums.iter_mut().zip(next) {
            *sum = _mm_xor_si128(fold(*sum, by_64), next);
        }
    }
    let state = joined(folding, sums);
    let (blocks, tail) = rest.as_chunks::<16>();
    finish::<TURNED>(folding, state, blocks, tail, &unit)
}

#[target_feature(enable = "pclmulqdq,ssse3,vpclmulqdq,avx512f,avx512bw")]
fn wide_check<const TURNED: bool>(folding: &Folding, message: &[u8]) -> u64 {
    let (turns, rest) = message.as_chunks::<256>();
    let Some((first, turns)) = turns.split_first() else {
        return narrow_check::<TURNED>(folding, message);
    };
    let lines = |turn: &[u8; 256]| {
        let (lines, _) = turn.as_chunks::<64>();
        [
            load_wide::<TURNED>(&lines[0]),
            load_wide::<TURNED>(&lines[1]),
            load_wide::<TURNED>(&lines[2]),
            load_wide::<TURNED>(&lines[3]),
        ]
    };
    let mut sums = lines(first);
    sums[0] = _mm512_xor_si512(sums[0], _mm512_zextsi128_si512(_mm_set_epi64x(0, folding.begin as i64)));
    let by_256 = _mm512_broadcast_i32x4(pair(folding.by_256));
    for turn in turns {
        let next = lines(turn);
        for (sum, next) in sums.iter_mut().zip(next) {
            *sum = fold_wide(*sum, by_256, next);
        }
    }
    let by_64 = _mm512_broadcast_i32x4(pair(folding.by_64));
    let mut sum = sums[0];
    for next in &sums[1..] {
        sum = fold_wide(sum, by_64, *next);
    }
    let (lines, rest) = rest.as_chunks::<64>();
    for line in lines {
        sum = fold_wide(sum, by_64, load_wide::<TURNED>(line));
    }
    let quarters = [
        _mm512_castsi512_si128(sum),
        _mm512_extracti32x4_epi32::<1>(sum),
        _mm512_extracti32x4_epi32::<2>(sum),
        _mm512_extracti32x4_epi32::<3>(sum),
    ];
    let state = joined(folding, quarters);
    let (blocks, tail) = rest.as_chunks::<16>();
    finish::<TURNED>(folding, state, blocks, tail, &Unit(()))
}

/// Four sums of neighbouring blocks as one.
#[target_feature(enable = "pclmulqdq")]
#[inline]
fn joined(folding: &Folding, sums: [__m128i; 4]) -> __m128i {
    let by_16 = pair(folding.by_16);
    let mut state = sums[0];
    for next in &sums[1..] {
        state = _mm_xor_si128(fold(state, by_16), *next);
    }
    state
}

/// The check, from what was folded so far and the bytes behind.
#[target_feature(enable = "pclmulqdq,ssse3")]
#[inline]
fn finish<const TURNED: bool>(
    folding: &Folding,
    mut state: __m128i,
    blocks: &[[u8; 16]],
    tail: &[u8],
    unit: &Unit,
) -> u64 {
    let by_16 = pair(folding.by_16);
    for block in blocks {
        state = _mm_xor_si128(fold(state, by_16), load::<TURNED>(block));
    }
    folding.finish(folding.last(number(state), tail, unit))
}

#[inline(always)]
fn pair(factors: [u64; 2]) -> __m128i {
    // SAFETY: 16 bytes become 16 bytes, and every value is valid for both types.
    unsafe { std::mem::transmute(factors) }
}

#[inline(always)]
fn number(block: __m128i) -> u128 {
    // SAFETY: 16 bytes become 16 bytes, and every value is valid for both types.
    unsafe { std::mem::transmute(block) }
}

#[target_feature(enable = "pclmulqdq")]
#[inline]
fn fold(state: __m128i, factors: __m128i) -> __m128i {
    _mm_xor_si128(_mm_clmulepi64_si128(state, factors, 0x00), _mm_clmulepi64_si128(state, factors, 0x11))
}

#[target_feature(enable = "vpclmulqdq,avx512f")]
#[inline]
fn fold_wide(state: __m512i, factors: __m512i, next: __m512i) -> __m512i {
    let first = _mm512_clmulepi64_epi128(state, factors, 0x00);
    let second = _mm512_clmulepi64_epi128(state, factors, 0x11);
    _mm512_ternarylogic_epi64::<0x96>(first, second, next)
}

/// The reversed bits of each half of a byte: as the lower and as the upper half of the result.
const LOW_TURNED: [u8; 16] = [0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15];

#[target_feature(enable = "ssse3")]
#[inline]
fn load<const TURNED: bool>(bytes: &[u8; 16]) -> __m128i {
    // SAFETY: 16 bytes become 16 bytes, and every value is valid for both types.
    let block: __m128i = unsafe { std::mem::transmute(*bytes) };
    if !TURNED {
        return block;
    }
    // SAFETY: as above.
    let table: __m128i = unsafe { std::mem::transmute(LOW_TURNED) };
    let half = _mm_set1_epi8(0x0f);
    let low = _mm_shuffle_epi8(table, _mm_and_si128(block, half));
    let high = _mm_shuffle_epi8(table, _mm_and_si128(_mm_srli_epi16(block, 4), half));
    _mm_or_si128(_mm_slli_epi16(low, 4), high)
}

#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn load_wide<const TURNED: bool>(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: 64 bytes become 64 bytes, and every value is valid for both types.
    let line: __m512i = unsafe { std::mem::transmute(*bytes) };
    if !TURNED {
        return line;
    }
    // SAFETY: 16 bytes become 16 bytes, and every value is valid for both types.
    let table = _mm512_broadcast_i32x4(unsafe { std::mem::transmute::<[u8; 16], __m128i>(LOW_TURNED) });
    let half = _mm512_set1_epi8(0x0f);
    let low = _mm512_shuffle_epi8(table, _mm512_and_si512(line, half));
    let high = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16::<4>(line), half));
    _mm512_or_si512(_mm512_slli_epi16::<4>(low), high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_and_width_agrees_with_bytes() {
        if !(is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("ssse3")) {
            eprintln!("skipped: this CPU has no carry-less products");
            return;
        }
        let bytes: Vec<u8> = (0..1500_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for folding in super::super::FOLDINGS {
            for len in 0..=bytes.len() {
                let message = &bytes[bytes.len() - len..];
                let expected = folding.by_bytes(message);
                assert_eq!(check(folding, message), Some(expected), "{} {len}", folding.bits);
                // SAFETY: the instructions were found above.
                let narrow = unsafe {
                    if folding.is_turned {
                        narrow_check::<true>(folding, message)
                    } else {
                        narrow_check::<false>(folding, message)
                    }
                };
                assert_eq!(narrow, expected, "{} {len}", folding.bits);
            }
        }
    }
}
