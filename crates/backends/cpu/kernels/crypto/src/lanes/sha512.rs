//! SHA-384 and SHA-512 of eight messages.

use std::arch::x86_64::*;

use super::constants::{ROUNDS, STARTS};
use super::crossed::crossed;

/// Hashes eight messages of `blocks` blocks each; writes the first `count` digests of
/// `digest_bytes`. `start` is the index of the algorithm's eight start values.
///
/// # Safety
///
/// The CPU must have AVX-512 F and BW. `place(lane, number)` must point to 128 bytes that can be
/// read.
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) unsafe fn hash(
    start: usize,
    digest_bytes: usize,
    blocks: usize,
    place: impl Fn(usize, usize) -> *const u8,
    count: usize,
    out: &mut [u8],
) {
    let state = hashed(start, blocks, |number| {
        let half = |half: usize| -> [__m512i; 8] {
            // SAFETY: guaranteed by the caller; each half has 64 of the 128 bytes.
            std::array::from_fn(|lane| unsafe { _mm512_loadu_si512(place(lane, number).add(64 * half).cast()) })
        };
        let (low, high) = (turned(half(0)), turned(half(1)));
        std::array::from_fn(|word| if word < 8 { low[word] } else { high[word - 8] })
    });
    let words: [[u64; 8]; 8] = state.map(|word| {
        let mut lanes = [0; 8];
        // SAFETY: eight words are 64 bytes.
        unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), word) };
        lanes
    });
    for (lane, digest) in out.chunks_exact_mut(digest_bytes).take(count).enumerate() {
        for (bytes, word) in digest.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word[lane].to_be_bytes());
        }
    }
}

/// SHA-512 of eight messages that fit into one padded block: takes its words, returns the digests'
/// words.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(super) fn hash_block(words: [__m512i; 16]) -> [__m512i; 8] {
    hashed(0, 1, |_| words)
}

/// One round. The next round uses the names rotated by one. `$constant` is the sum of its word and
/// its constant.
macro_rules! round {
    ($constant:expr, $a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident) => {
        let s1 = xor3(_mm512_ror_epi64::<14>($e), _mm512_ror_epi64::<18>($e), _mm512_ror_epi64::<41>($e));
        // f where e has ones, else g.
        let choice = _mm512_ternarylogic_epi64::<0xca>($e, $f, $g);
        let first = add(add(add($h, $constant), choice), s1);
        let s0 = xor3(_mm512_ror_epi64::<28>($a), _mm512_ror_epi64::<34>($a), _mm512_ror_epi64::<39>($a));
        let majority = _mm512_ternarylogic_epi64::<0xe8>($a, $b, $c);
        $d = add($d, first);
        $h = add(first, add(s0, majority));
    };
}

/// Eight rounds, after which the names have their original meaning again. `$word` gives the sum of
/// a round's word and its constant.
macro_rules! eight_rounds {
    ($word:expr, $first:expr, $a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident) => {
        round!($word($first), $a $b $c $d $e $f $g $h);
        round!($word($first + 1), $h $a $b $c $d $e $f $g);
        round!($word($first + 2), $g $h $a $b $c $d $e $f);
        round!($word($first + 3), $f $g $h $a $b $c $d $e);
        round!($word($first + 4), $e $f $g $h $a $b $c $d);
        round!($word($first + 5), $d $e $f $g $h $a $b $c);
        round!($word($first + 6), $c $d $e $f $g $h $a $b);
        round!($word($first + 7), $b $c $d $e $f $g $h $a);
    };
}

/// The digest words of messages of `blocks` blocks; `words` loads a block. One function, so that
/// the words stay in registers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn hashed(start: usize, blocks: usize, words: impl Fn(usize) -> [__m512i; 16]) -> [__m512i; 8] {
    let mut state: [__m512i; 8] = std::array::from_fn(|word| _mm512_set1_epi64(STARTS[start + word] as i64));
    for number in 0..blocks {
        let mut w = words(number);
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = state;
        for constants in ROUNDS[..64].as_chunks::<16>().0 {
            // The word of the round sixteen later replaces this round's.
            let mut word = |i: usize| {
                let sum = add(w[i], _mm512_set1_epi64(constants[i] as i64));
                let (w1, w14) = (w[(i + 1) % 16], w[(i + 14) % 16]);
                let s0 = xor3(_mm512_ror_epi64::<1>(w1), _mm512_ror_epi64::<8>(w1), _mm512_srli_epi64::<7>(w1));
                let s1 = xor3(_mm512_ror_epi64::<19>(w14), _mm512_ror_epi64::<61>(w14), _mm512_srli_epi64::<6>(w14));
                w[i] = add(add(w[i], s0), add(w[(i + 9) % 16], s1));
                sum
            };
            eight_rounds!(word, 0, a b c d e f g h);
            eight_rounds!(word, 8, a b c d e f g h);
        }
        // The last sixteen rounds extend no words.
        let word = |i: usize| add(w[i], _mm512_set1_epi64(ROUNDS[64 + i] as i64));
        eight_rounds!(word, 0, a b c d e f g h);
        eight_rounds!(word, 8, a b c d e f g h);
        for (sum, word) in state.iter_mut().zip([a, b, c, d, e, f, g, h]) {
            *sum = add(*sum, word);
        }
    }
    state
}

#[inline]
#[target_feature(enable = "avx512f")]
fn add(a: __m512i, b: __m512i) -> __m512i {
    _mm512_add_epi64(a, b)
}

#[inline]
#[target_feature(enable = "avx512f")]
fn xor3(a: __m512i, b: __m512i, c: __m512i) -> __m512i {
    _mm512_ternarylogic_epi64::<0x96>(a, b, c)
}

/// Transposes big-endian words: from eight words per lane to one register per word.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn turned(rows: [__m512i; 8]) -> [__m512i; 8] {
    let swap = _mm512_set4_epi32(0x0809_0a0b, 0x0c0d_0e0f, 0x0001_0203, 0x0405_0607);
    crossed(rows.map(|row| _mm512_shuffle_epi8(row, swap)))
}
