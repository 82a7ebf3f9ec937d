//! SHA-256 of sixteen messages.

use std::arch::x86_64::*;

use super::constants::{ROUNDS, STARTS};

/// Hashes sixteen messages of `blocks` blocks each; writes the first `count` digests.
///
/// # Safety
/// The CPU must have AVX-512 F and BW. `place(lane, number)` must point to 64 bytes that can be read.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn hash(blocks: usize, place: impl Fn(usize, usize) -> *const u8, count: usize, out: &mut [u8]) {
    let mut state: [__m512i; 8] = std::array::from_fn(|word| _mm512_set1_epi32((STARTS[word] >> 32) as i32));
    for number in 0..blocks {
        // SAFETY: as the caller promises.
        let words = std::array::from_fn(|lane| unsafe { _mm512_loadu_si512(place(lane, number).cast()) });
        compress(&mut state, turned(words));
    }
    let words: [[u32; 16]; 8] = state.map(|word| {
        let mut lanes = [0; 16];
        // SAFETY: sixteen words are 64 bytes.
        unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), word) };
        lanes
    });
    for (lane, digest) in out.chunks_exact_mut(32).take(count).enumerate() {
        for (bytes, word) in digest.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word[lane].to_be_bytes());
        }
    }
}

/// One round, with the words that the names stand for now; the next round has them one further.
macro_rules! round {
    ($w:ident, $t:expr, $i:expr, $a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident) => {
        let s1 = xor3(_mm512_ror_epi32::<6>($e), _mm512_ror_epi32::<11>($e), _mm512_ror_epi32::<25>($e));
        // Where e has ones f, else g.
        let choice = _mm512_ternarylogic_epi32::<0xca>($e, $f, $g);
        let constant = add($w[$i], _mm512_set1_epi32((ROUNDS[$t] >> 32) as i32));
        let first = add(add($h, s1), add(choice, constant));
        let s0 = xor3(_mm512_ror_epi32::<2>($a), _mm512_ror_epi32::<13>($a), _mm512_ror_epi32::<22>($a));
        let majority = _mm512_ternarylogic_epi32::<0xe8>($a, $b, $c);
        $d = add($d, first);
        $h = add(first, add(s0, majority));
        // The word of the sixteenth round from here.
        let (w1, w14) = ($w[($i + 1) % 16], $w[($i + 14) % 16]);
        let s0 = xor3(_mm512_ror_epi32::<7>(w1), _mm512_ror_epi32::<18>(w1), _mm512_srli_epi32::<3>(w1));
        let s1 = xor3(_mm512_ror_epi32::<17>(w14), _mm512_ror_epi32::<19>(w14), _mm512_srli_epi32::<10>(w14));
        $w[$i] = add(add($w[$i], s0), add($w[($i + 9) % 16], s1));
    };
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn compress(state: &mut [__m512i; 8], mut w: [__m512i; 16]) {
    let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
    for t in (0..64).step_by(16) {
        round!(w, t, 0, a b c d e f g h);
        round!(w, t + 1, 1, h a b c d e f g);
        round!(w, t + 2, 2, g h a b c d e f);
        round!(w, t + 3, 3, f g h a b c d e);
        round!(w, t + 4, 4, e f g h a b c d);
        round!(w, t + 5, 5, d e f g h a b c);
        round!(w, t + 6, 6, c d e f g h a b);
        round!(w, t + 7, 7, b c d e f g h a);
        round!(w, t + 8, 8, a b c d e f g h);
        round!(w, t + 9, 9, h a b c d e f g);
        round!(w, t + 10, 10, g h a b c d e f);
        round!(w, t + 11, 11, f g h a b c d e);
        round!(w, t + 12, 12, e f g h a b c d);
        round!(w, t + 13, 13, d e f g h a b c);
        round!(w, t + 14, 14, c d e f g h a b);
        round!(w, t + 15, 15, b c d e f g h a);
    }
    for (sum, word) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
        *sum = add(*sum, word);
    }
}

#[inline]
#[target_feature(enable = "avx512f")]
fn add(a: __m512i, b: __m512i) -> __m512i {
    _mm512_add_epi32(a, b)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn xor3(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    _mm512_ternarylogic_epi32::<0x96>(a, b, c)
}

/// From the sixteen words of each lane to the lanes of each word, big-endian.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn turned(rows: [__m512i; 16]) -> [__m512i; 16] {
    let swap = _mm512_set4_epi32(0x0c0d_0e0f, 0x0809_0a0b, 0x0405_0607, 0x0001_0203);
    let rows = rows.map(|row| _mm512_shuffle_epi8(row, swap));
    // Pairs of rows, then fours: each piece of 128 bits has one word of four lanes.
    let fours: [__m512i; 16] = std::array::from_fn(|at| {
        let (group, word) = (at / 4 * 4, at % 4);
        let (low, high) = match word / 2 {
            0 => (
                _mm512_unpacklo_epi32(rows[group], rows[group + 1]),
                _mm512_unpacklo_epi32(rows[group + 2], rows[group + 3]),
            ),
            _ => (
                _mm512_unpackhi_epi32(rows[group], rows[group + 1]),
                _mm512_unpackhi_epi32(rows[group + 2], rows[group + 3]),
            ),
        };
        if word % 2 == 0 { _mm512_unpacklo_epi64(low, high) } else { _mm512_unpackhi_epi64(low, high) }
    });
    // Piece `piece` of `fours[4 * group + word]` is word `4 * piece + word` of the lanes of the group.
    std::array::from_fn(|at| {
        let (piece, word) = (at / 4, at % 4);
        let of = |group: usize| fours[4 * group + word];
        let (low, high) = match piece {
            0 => (_mm512_shuffle_i32x4::<0x00>(of(0), of(1)), _mm512_shuffle_i32x4::<0x00>(of(2), of(3))),
            1 => (_mm512_shuffle_i32x4::<0x55>(of(0), of(1)), _mm512_shuffle_i32x4::<0x55>(of(2), of(3))),
            2 => (_mm512_shuffle_i32x4::<0xaa>(of(0), of(1)), _mm512_shuffle_i32x4::<0xaa>(of(2), of(3))),
            _ => (_mm512_shuffle_i32x4::<0xff>(of(0), of(1)), _mm512_shuffle_i32x4::<0xff>(of(2), of(3))),
        };
        // Each of the two has every piece twice.
        _mm512_shuffle_i32x4::<0x88>(low, high)
    })
}
