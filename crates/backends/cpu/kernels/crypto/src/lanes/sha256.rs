//! SHA-256 of many messages, sixteen at a time: about eight times as fast as one message, and twice
//! as fast as one message with SHA instructions.
//!
//! Messages may differ in length: a lane whose message has ended takes the next one. The longest
//! start first, so that lanes end at about the same time, and a message too long for lanes to pay
//! is hashed alone.

use std::arch::x86_64::*;

use panoply_core::op::crypto::HashAlgorithm;

use super::constants::{ROUNDS, STARTS};
use crate::hash::hash;

pub(super) const LANES: usize = 16;
const BLOCK_BYTES: usize = 64;
const DIGEST_BYTES: usize = 32;
/// One block in every lane takes about as long as this many blocks of one message, without and with
/// SHA instructions.
const STEP_BLOCKS: [usize; 2] = [3, 9];

type State = [[u32; LANES]; 8];

/// Hashes all messages into `out`, digest after digest.
///
/// # Safety
/// The CPU must have AVX-512 F and BW.
pub(super) unsafe fn hash_many(messages: &[&[u8]], out: &mut [u8]) {
    let mut order: Vec<usize> = (0..messages.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(messages[*index].len()));
    let mut blocks_left: usize = messages.iter().map(|message| blocks_of(message.len())).sum();
    let step_blocks = STEP_BLOCKS[usize::from(is_x86_feature_detected!("sha"))];
    let mut alone = 0;
    while let Some(index) = order.get(alone) {
        let blocks = blocks_of(messages[*index].len());
        if blocks * step_blocks <= blocks_left {
            break;
        }
        (alone, blocks_left) = (alone + 1, blocks_left - blocks);
    }
    for index in &order[..alone] {
        hash(HashAlgorithm::Sha256, messages[*index], &mut out[index * DIGEST_BYTES..(index + 1) * DIGEST_BYTES]);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { hash_in_lanes(messages, &order[alone..], out) }
}

/// # Safety
/// As for `hash_many`.
unsafe fn hash_in_lanes(messages: &[&[u8]], order: &[usize], out: &mut [u8]) {
    let mut state: State = [[0; LANES]; 8];
    let mut lanes: [Option<Lane<'_>>; LANES] = [const { None }; LANES];
    let mut next = order.iter();
    loop {
        for (place, lane) in lanes.iter_mut().enumerate().filter(|(_, lane)| lane.is_none()) {
            let Some(index) = next.next() else { break };
            *lane = Some(Lane::new(*index, messages[*index]));
            state.iter_mut().zip(STARTS).for_each(|(word, start)| word[place] = (start >> 32) as u32);
        }
        // Lanes without a message repeat another lane's.
        let Some(some) = lanes.iter().flatten().next().map(Lane::rest) else { return };
        let rests: [&[u8]; LANES] = std::array::from_fn(|place| lanes[place].as_ref().map_or(some, Lane::rest));
        let blocks = rests.iter().map(|rest| rest.len() / BLOCK_BYTES).min().unwrap_or(0);
        // SAFETY: the caller guarantees the instructions; every lane has `blocks` blocks.
        unsafe { compress(&mut state, &rests.map(<[u8]>::as_ptr), blocks) };
        for (place, lane) in lanes.iter_mut().enumerate() {
            let Some(own) = lane else { continue };
            own.at += blocks * BLOCK_BYTES;
            if own.rest().is_empty() {
                let digest = &mut out[own.index * DIGEST_BYTES..(own.index + 1) * DIGEST_BYTES];
                for (bytes, word) in digest.chunks_exact_mut(4).zip(&state) {
                    bytes.copy_from_slice(&word[place].to_be_bytes());
                }
                *lane = None;
            }
        }
    }
}

/// Blocks of a message with its padding: a one bit, and its length in eight bytes.
fn blocks_of(len: usize) -> usize {
    (len + 1 + 8).div_ceil(BLOCK_BYTES)
}

/// A message in progress: its whole blocks in place, then its end with the padding.
struct Lane<'a> {
    index: usize,
    whole: &'a [u8],
    tail: [u8; 2 * BLOCK_BYTES],
    tail_len: usize,
    /// Number of hashed bytes of both.
    at: usize,
}

impl<'a> Lane<'a> {
    fn new(index: usize, message: &'a [u8]) -> Lane<'a> {
        let (whole, rest) = message.split_at(message.len() / BLOCK_BYTES * BLOCK_BYTES);
        let mut tail = [0; 2 * BLOCK_BYTES];
        tail[..rest.len()].copy_from_slice(rest);
        tail[rest.len()] = 0x80;
        let tail_len = blocks_of(message.len()) * BLOCK_BYTES - whole.len();
        tail[tail_len - 8..tail_len].copy_from_slice(&(message.len() as u64 * 8).to_be_bytes());
        Lane { index, whole, tail, tail_len, at: 0 }
    }

    /// The remaining contiguous bytes; empty at the end.
    fn rest(&self) -> &[u8] {
        match self.whole.get(self.at..) {
            Some(rest) if !rest.is_empty() => rest,
            _ => &self.tail[self.at - self.whole.len()..self.tail_len],
        }
    }
}

/// One round. The next round uses the names rotated by one.
macro_rules! round {
    ($w:ident, $t:expr, $i:expr, $a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident) => {
        let s1 = xor3(_mm512_ror_epi32::<6>($e), _mm512_ror_epi32::<11>($e), _mm512_ror_epi32::<25>($e));
        // f where e has ones, else g.
        let choice = _mm512_ternarylogic_epi32::<0xca>($e, $f, $g);
        let constant = add($w[$i], _mm512_set1_epi32((ROUNDS[$t] >> 32) as i32));
        let first = add(add($h, s1), add(choice, constant));
        let s0 = xor3(_mm512_ror_epi32::<2>($a), _mm512_ror_epi32::<13>($a), _mm512_ror_epi32::<22>($a));
        let majority = _mm512_ternarylogic_epi32::<0xe8>($a, $b, $c);
        $d = add($d, first);
        $h = add(first, add(s0, majority));
    };
}

/// The word of the round sixteen later.
macro_rules! extend {
    ($w:ident, $i:expr) => {
        let (w1, w14) = ($w[($i + 1) % 16], $w[($i + 14) % 16]);
        let s0 = xor3(_mm512_ror_epi32::<7>(w1), _mm512_ror_epi32::<18>(w1), _mm512_srli_epi32::<3>(w1));
        let s1 = xor3(_mm512_ror_epi32::<17>(w14), _mm512_ror_epi32::<19>(w14), _mm512_srli_epi32::<10>(w14));
        $w[$i] = add(add($w[$i], s0), add($w[($i + 9) % 16], s1));
    };
}

/// Eight rounds, after which the names have their original meaning again; with `extend`, also the
/// words of the rounds sixteen later.
macro_rules! eight {
    ($w:ident, $t:expr, $i:expr, $words:ident, $($extend:ident)?) => {
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = $words;
        round!($w, $t, $i, a b c d e f g h);
        $($extend!($w, $i);)?
        round!($w, $t + 1, $i + 1, h a b c d e f g);
        $($extend!($w, $i + 1);)?
        round!($w, $t + 2, $i + 2, g h a b c d e f);
        $($extend!($w, $i + 2);)?
        round!($w, $t + 3, $i + 3, f g h a b c d e);
        $($extend!($w, $i + 3);)?
        round!($w, $t + 4, $i + 4, e f g h a b c d);
        $($extend!($w, $i + 4);)?
        round!($w, $t + 5, $i + 5, d e f g h a b c);
        $($extend!($w, $i + 5);)?
        round!($w, $t + 6, $i + 6, c d e f g h a b);
        $($extend!($w, $i + 6);)?
        round!($w, $t + 7, $i + 7, b c d e f g h a);
        $($extend!($w, $i + 7);)?
        $words = [a, b, c, d, e, f, g, h];
    };
}

/// Compresses `blocks` blocks in every lane.
///
/// # Safety
/// The CPU must have AVX-512 F and BW. Every pointer must have `blocks` readable blocks.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn compress(state: &mut State, places: &[*const u8; LANES], blocks: usize) {
    // SAFETY: sixteen words are 64 bytes.
    let mut words: [__m512i; 8] =
        std::array::from_fn(|word| unsafe { _mm512_loadu_si512(state[word].as_ptr().cast()) });
    for number in 0..blocks {
        let row = |lane: usize| {
            // SAFETY: the caller guarantees the block.
            unsafe { _mm512_loadu_si512(places[lane].add(number * BLOCK_BYTES).cast()) }
        };
        let mut w = turned(std::array::from_fn(row));
        let mut mixed = words;
        for t in (0..48).step_by(16) {
            eight!(w, t, 0, mixed, extend);
            eight!(w, t + 8, 8, mixed, extend);
        }
        eight!(w, 48, 0, mixed,);
        eight!(w, 56, 8, mixed,);
        for (sum, word) in words.iter_mut().zip(mixed) {
            *sum = add(*sum, word);
        }
    }
    for (place, word) in state.iter_mut().zip(words) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_si512(place.as_mut_ptr().cast(), word) };
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

/// Transposes big-endian words: from sixteen words per lane to one register per word.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn turned(mut rows: [__m512i; 16]) -> [__m512i; 16] {
    let swap = _mm512_set4_epi32(0x0c0d_0e0f, 0x0809_0a0b, 0x0405_0607, 0x0001_0203);
    // A loop, since `map` is a call here, to code without these registers.
    for row in &mut rows {
        *row = _mm512_shuffle_epi8(*row, swap);
    }
    let pairs: [__m512i; 16] = std::array::from_fn(|at| match at % 2 {
        0 => _mm512_unpacklo_epi32(rows[at], rows[at + 1]),
        _ => _mm512_unpackhi_epi32(rows[at - 1], rows[at]),
    });
    // Piece `piece` of `fours[4 * group + word]` is word `4 * piece + word` of the four lanes from
    // `4 * group` on.
    let fours: [__m512i; 16] = std::array::from_fn(|at| {
        let (first, half) = (at / 4 * 4, at % 4 / 2);
        match at % 2 {
            0 => _mm512_unpacklo_epi64(pairs[first + half], pairs[first + half + 2]),
            _ => _mm512_unpackhi_epi64(pairs[first + half], pairs[first + half + 2]),
        }
    });
    std::array::from_fn(|at| {
        let of = |group: usize| fours[4 * group + at % 4];
        let (low, high) = match at / 4 {
            0 => (_mm512_shuffle_i32x4::<0x00>(of(0), of(1)), _mm512_shuffle_i32x4::<0x00>(of(2), of(3))),
            1 => (_mm512_shuffle_i32x4::<0x55>(of(0), of(1)), _mm512_shuffle_i32x4::<0x55>(of(2), of(3))),
            2 => (_mm512_shuffle_i32x4::<0xaa>(of(0), of(1)), _mm512_shuffle_i32x4::<0xaa>(of(2), of(3))),
            _ => (_mm512_shuffle_i32x4::<0xff>(of(0), of(1)), _mm512_shuffle_i32x4::<0xff>(of(2), of(3))),
        };
        _mm512_shuffle_i32x4::<0x88>(low, high)
    })
}
