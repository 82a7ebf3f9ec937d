//! ChaCha20-Poly1305 in lanes: sixteen blocks of the cipher at a time, and four where few are left; [`poly1305`](super::poly1305) has
//! the tags.

use std::arch::x86_64::*;

use zeroize::Zeroize;

use super::poly1305::{Poly1305, TAG_BYTES};

const BLOCK_BYTES: usize = 64;
/// Sixteen blocks.
const GROUP_BYTES: usize = 16 * BLOCK_BYTES;
/// So much is enciphered before its part of the tag is made, so that it is still near.
const PIECE_BYTES: usize = 8 * GROUP_BYTES;
const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// A key. It stays where it is when this is moved, so that no copy is left behind.
pub struct ChaChaLanes(Box<Words>);

/// Wiped when it is dropped.
struct Words([u32; 8]);

impl Drop for Words {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// Whether this CPU has what these lanes need.
pub fn detected_for_chacha() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
}

impl ChaChaLanes {
    /// From a key of 32 bytes; `None` where the CPU lacks the instructions.
    pub fn new(key: &[u8]) -> Option<ChaChaLanes> {
        let key: &[u8; 32] = key.try_into().ok().filter(|_| detected_for_chacha())?;
        let (words, _) = key.as_chunks();
        let mut made = Box::new(Words([0; 8]));
        for (made, word) in made.0.iter_mut().zip(words) {
            *made = u32::from_le_bytes(*word);
        }
        Some(ChaChaLanes(made))
    }

    /// Seals `message` into `text`, which is as long; returns the tag.
    pub fn seal(&self, nonce: &[u8; 12], associated: &[u8], message: &[u8], text: &mut [u8]) -> [u8; TAG_BYTES] {
        debug_assert_eq!(message.len(), text.len());
        // SAFETY: a value of this type is only made where the instructions are there.
        unsafe { self.run(nonce, associated, message, text, true) }
    }

    /// Opens `text` into `message`, which is as long; returns the tag that it should have. Where it has another, nobody may see the message.
    pub fn open(&self, nonce: &[u8; 12], associated: &[u8], text: &[u8], message: &mut [u8]) -> [u8; TAG_BYTES] {
        debug_assert_eq!(message.len(), text.len());
        // SAFETY: as above.
        unsafe { self.run(nonce, associated, text, message, false) }
    }

    #[target_feature(enable = "avx512f,avx512bw")]
    fn run(&self, nonce: &[u8; 12], associated: &[u8], input: &[u8], out: &mut [u8], seals: bool) -> [u8; TAG_BYTES] {
        let len = input.len().min(out.len());
        let (input, out) = (&input[..len], &mut out[..len]);
        let mut stream = Stream::new(&self.0.0, nonce);
        // The first block is the key of the tag.
        let held = stream.next(len.saturating_add(BLOCK_BYTES));
        let mut tag = Poly1305::new(&stream.tag_key());
        tag.take_padded(associated);
        let first = (held - BLOCK_BYTES).min(len);
        stream.apply(1, &input[..first], &mut out[..first]);
        let mut begin = 0;
        let mut end = first;
        loop {
            // Whole blocks of the tag, but for the last piece.
            while end < len && end - begin < PIECE_BYTES {
                let more = stream.next(len - end).min(len - end);
                stream.apply(0, &input[end..end + more], &mut out[end..end + more]);
                end += more;
            }
            tag.take_padded(if seals { &out[begin..end] } else { &input[begin..end] });
            begin = end;
            if end == len {
                return tag.finish(associated.len(), len);
            }
        }
    }
}

/// Blocks of the cipher. Wiped when they are dropped.
struct Stream {
    key: [u32; 8],
    nonce: [u32; 3],
    counter: u32,
    blocks: [__m512i; 16],
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.key.zeroize();
        for block in &mut self.blocks {
            // SAFETY: this is a reference; a volatile write is not left out. Zero bits are a vector.
            unsafe { std::ptr::write_volatile(block, std::mem::zeroed()) };
        }
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    }
}

impl Stream {
    #[target_feature(enable = "avx512f")]
    fn new(key: &[u32; 8], nonce: &[u8; 12]) -> Stream {
        let (words, _) = nonce.as_chunks();
        let nonce = std::array::from_fn(|index| u32::from_le_bytes(words[index]));
        Stream { key: *key, nonce, counter: 0, blocks: [_mm512_setzero_si512(); 16] }
    }

    /// The next blocks: four where so many bytes are no more than that, else sixteen. Tells how many bytes they have.
    #[target_feature(enable = "avx512f")]
    fn next(&mut self, wanted: usize) -> usize {
        let count = if wanted <= 4 * BLOCK_BYTES { 4 } else { 16 };
        if count == 4 {
            self.four()
        } else {
            self.sixteen()
        }
        self.counter = self.counter.wrapping_add(count);
        count as usize * BLOCK_BYTES
    }

    /// The first half of the first block.
    #[target_feature(enable = "avx512f")]
    fn tag_key(&self) -> [u64; 4] {
        let mut key = [0; 4];
        // SAFETY: there is room for half a register.
        unsafe { _mm256_storeu_si256(key.as_mut_ptr().cast(), _mm512_castsi512_si256(self.blocks[0])) };
        key
    }

    /// Enciphers or deciphers at most as many bytes as there are from this block on.
    #[target_feature(enable = "avx512f,avx512bw")]
    fn apply(&self, first: usize, input: &[u8], out: &mut [u8]) {
        for ((block, input), out) in
            self.blocks[first..].iter().zip(input.chunks(BLOCK_BYTES)).zip(out.chunks_mut(BLOCK_BYTES))
        {
            let mask = u64::MAX >> (BLOCK_BYTES - input.len().min(out.len()));
            // SAFETY: the mask leaves out what is behind the ends of both, and no chunk is empty.
            unsafe {
                let taken = _mm512_maskz_loadu_epi8(mask, input.as_ptr().cast());
                _mm512_mask_storeu_epi8(out.as_mut_ptr().cast(), mask, _mm512_xor_si512(taken, *block));
            }
        }
    }

    /// A register for each of the state's rows, with a block in each of its quarters.
    #[target_feature(enable = "avx512f")]
    fn four(&mut self) {
        let ([k0, k1, k2, k3, k4, k5, k6, k7], [n0, n1, n2]) = (self.key, self.nonce);
        let counters = _mm512_set_epi32(0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0);
        let last = _mm512_add_epi32(row([self.counter, n0, n1, n2]), counters);
        let start = [row(CONSTANTS), row([k0, k1, k2, k3]), row([k4, k5, k6, k7]), last];
        let mut state = start;
        for _ in 0..10 {
            quarter(&mut state, 0, 1, 2, 3);
            state[1] = _mm512_shuffle_epi32::<0b00_11_10_01>(state[1]);
            state[2] = _mm512_shuffle_epi32::<0b01_00_11_10>(state[2]);
            state[3] = _mm512_shuffle_epi32::<0b10_01_00_11>(state[3]);
            quarter(&mut state, 0, 1, 2, 3);
            state[1] = _mm512_shuffle_epi32::<0b10_01_00_11>(state[1]);
            state[2] = _mm512_shuffle_epi32::<0b01_00_11_10>(state[2]);
            state[3] = _mm512_shuffle_epi32::<0b00_11_10_01>(state[3]);
        }
        for (state, start) in state.iter_mut().zip(start) {
            *state = _mm512_add_epi32(*state, start);
        }
        let turned = quarters_turned(state);
        self.blocks[..4].copy_from_slice(&turned);
    }

    /// A register for each of the state's words, with a block in each of its lanes.
    #[target_feature(enable = "avx512f")]
    fn sixteen(&mut self) {
        let lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        let ([k0, k1, k2, k3, k4, k5, k6, k7], [n0, n1, n2]) = (self.key, self.nonce);
        let [c0, c1, c2, c3] = CONSTANTS;
        let words = [c0, c1, c2, c3, k0, k1, k2, k3, k4, k5, k6, k7, self.counter, n0, n1, n2];
        let mut start = [lanes; 16];
        for (place, (start, word)) in start.iter_mut().zip(words).enumerate() {
            let all = _mm512_set1_epi32(word as i32);
            *start = if place == 12 { _mm512_add_epi32(all, lanes) } else { all };
        }
        let mut state = start;
        for _ in 0..10 {
            quarter(&mut state, 0, 4, 8, 12);
            quarter(&mut state, 1, 5, 9, 13);
            quarter(&mut state, 2, 6, 10, 14);
            quarter(&mut state, 3, 7, 11, 15);
            quarter(&mut state, 0, 5, 10, 15);
            quarter(&mut state, 1, 6, 11, 12);
            quarter(&mut state, 2, 7, 8, 13);
            quarter(&mut state, 3, 4, 9, 14);
        }
        for (state, start) in state.iter_mut().zip(start) {
            *state = _mm512_add_epi32(*state, start);
        }
        self.blocks = turned(state);
    }
}

/// Four words, in each of the register's quarters.
#[inline]
#[target_feature(enable = "avx512f")]
fn row(words: [u32; 4]) -> __m512i {
    let [a, b, c, d] = words;
    _mm512_broadcast_i32x4(_mm_set_epi32(d as i32, c as i32, b as i32, a as i32))
}

/// A quarter of a round.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarter<const N: usize>(state: &mut [__m512i; N], a: usize, b: usize, c: usize, d: usize) {
    state[a] = _mm512_add_epi32(state[a], state[b]);
    state[d] = _mm512_rol_epi32::<16>(_mm512_xor_si512(state[d], state[a]));
    state[c] = _mm512_add_epi32(state[c], state[d]);
    state[b] = _mm512_rol_epi32::<12>(_mm512_xor_si512(state[b], state[c]));
    state[a] = _mm512_add_epi32(state[a], state[b]);
    state[d] = _mm512_rol_epi32::<8>(_mm512_xor_si512(state[d], state[a]));
    state[c] = _mm512_add_epi32(state[c], state[d]);
    state[b] = _mm512_rol_epi32::<7>(_mm512_xor_si512(state[b], state[c]));
}

/// From a register for each word to a register for each block.
#[inline]
#[target_feature(enable = "avx512f")]
fn turned(words: [__m512i; 16]) -> [__m512i; 16] {
    // Of four words those of blocks 0, 4, 8, 12, of blocks 1, 5, 9, 13, and so on.
    let mut fours = [[_mm512_setzero_si512(); 4]; 4];
    for (number, four) in words.as_chunks::<4>().0.iter().enumerate() {
        let [a, b, c, d] = *four;
        let (low, high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (low_too, high_too) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        fours[0][number] = _mm512_unpacklo_epi64(low, low_too);
        fours[1][number] = _mm512_unpackhi_epi64(low, low_too);
        fours[2][number] = _mm512_unpacklo_epi64(high, high_too);
        fours[3][number] = _mm512_unpackhi_epi64(high, high_too);
    }
    let mut blocks = [_mm512_setzero_si512(); 16];
    for (first, four) in fours.into_iter().enumerate() {
        for (step, block) in quarters_turned(four).into_iter().enumerate() {
            blocks[4 * step + first] = block;
        }
    }
    blocks
}

/// The first quarters of four registers, the second ones, and so on.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarters_turned(rows: [__m512i; 4]) -> [__m512i; 4] {
    let [a, b, c, d] = rows;
    let (front, back) = (_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0xee>(a, b));
    let (front_too, back_too) = (_mm512_shuffle_i32x4::<0x44>(c, d), _mm512_shuffle_i32x4::<0xee>(c, d));
    [
        _mm512_shuffle_i32x4::<0x88>(front, front_too),
        _mm512_shuffle_i32x4::<0xdd>(front, front_too),
        _mm512_shuffle_i32x4::<0x88>(back, back_too),
        _mm512_shuffle_i32x4::<0xdd>(back, back_too),
    ]
}
