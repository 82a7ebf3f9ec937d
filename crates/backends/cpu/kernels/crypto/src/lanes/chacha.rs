//! ChaCha20-Poly1305 in lanes: sixteen blocks of the cipher at a time, and four if few are left;
//! [`poly1305`](super::poly1305) has the tags. A message's first block is the key of its tag: these
//! blocks are computed together for sixteen messages.

use std::arch::x86_64::*;

use panoply_core::locked::SecretBox;
use zeroize::Zeroize;

use super::aes::{AHEAD_BYTES, ask_ahead};
use super::poly1305::{Poly1305, Powers, TAG_BYTES, raise_eight};

const BLOCK_BYTES: usize = 64;
/// Sixteen blocks.
const GROUP_BYTES: usize = 16 * BLOCK_BYTES;
/// This many bytes are encrypted before their part of the tag is computed, or decrypted after it,
/// so that they are still in the cache.
const PIECE_BYTES: usize = 4 * GROUP_BYTES;
/// Prefetch distance when a message is opened.
const OPENED_AHEAD_BYTES: usize = PIECE_BYTES + GROUP_BYTES;
const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// Number of messages whose tag keys are computed together.
pub const KEYED_LANES: usize = 16;

/// The key of one message's tag, and powers of its first half if the CPU has IFMA (products of
/// 52-bit integers).
pub struct TagKey {
    words: [u64; 4],
    powers: Powers,
}

/// The keys of several messages' tags. Their memory does not move when this value is moved, so no
/// copy is left behind; it is wiped when dropped.
pub struct TagKeys(Box<[TagKey; KEYED_LANES]>);

impl TagKeys {
    /// The tag key of one of the messages.
    pub fn get(&self, place: usize) -> Option<&TagKey> {
        self.0.get(place)
    }
}

impl Drop for TagKeys {
    fn drop(&mut self) {
        for key in self.0.iter_mut() {
            key.words.zeroize();
            key.powers.wipe();
        }
    }
}

/// A key. Its memory does not move when this value is moved, so no copy is left behind.
pub struct ChaChaLanes {
    key: SecretBox<Words>,
    has_ifma: bool,
}

/// Wiped when dropped.
struct Words([u32; 8]);

impl Drop for Words {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// Whether this CPU has the instructions for these lanes.
pub fn detected_for_chacha() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
}

impl ChaChaLanes {
    /// Takes a key of 32 bytes. `None` if the CPU lacks the instructions.
    pub fn new(key: &[u8]) -> Option<ChaChaLanes> {
        let key: &[u8; 32] = key.try_into().ok().filter(|_| detected_for_chacha())?;
        super::entries::enter();
        let (words, _) = key.as_chunks();
        let mut made = SecretBox::new(Words([0; 8]));
        for (made, word) in made.0.iter_mut().zip(words) {
            *made = u32::from_le_bytes(*word);
        }
        Some(ChaChaLanes { key: made, has_ifma: is_x86_feature_detected!("avx512ifma") })
    }

    /// The same without IFMA, as on a CPU that lacks it.
    pub fn without_wide_products(self) -> ChaChaLanes {
        ChaChaLanes { has_ifma: false, ..self }
    }

    /// The tag keys of messages with these nonces, at most sixteen.
    pub fn tag_keys(&self, nonces: &[[u8; 12]]) -> TagKeys {
        // SAFETY: a value of this type exists only if the CPU has the instructions.
        unsafe { self.first_blocks(nonces) }
    }

    /// Seals `message` into `text`, which has the same length, and returns the tag. `key`, here and
    /// below, is the precomputed key of the tag, if any.
    pub fn seal(
        &self,
        nonce: &[u8; 12],
        associated: &[u8],
        message: &[u8],
        text: &mut [u8],
        key: Option<&TagKey>,
    ) -> [u8; TAG_BYTES] {
        assert_eq!(message.len(), text.len(), "a text is as long as its message");
        // SAFETY: a value of this type exists only if the CPU has the instructions; both slices
        // have this length.
        unsafe { self.run::<true>(nonce, associated, message.as_ptr(), text.as_mut_ptr(), text.len(), key) }
    }

    /// Opens `text` into `message`, which has the same length, and returns the expected tag. If the
    /// text's tag differs, the caller must not release the message.
    pub fn open(
        &self,
        nonce: &[u8; 12],
        associated: &[u8],
        text: &[u8],
        message: &mut [u8],
        key: Option<&TagKey>,
    ) -> [u8; TAG_BYTES] {
        assert_eq!(message.len(), text.len(), "a text is as long as its message");
        // SAFETY: as above.
        unsafe { self.run::<false>(nonce, associated, text.as_ptr(), message.as_mut_ptr(), text.len(), key) }
    }

    /// Like [`ChaChaLanes::seal`], in place.
    pub fn seal_in_place(
        &self,
        nonce: &[u8; 12],
        associated: &[u8],
        message: &mut [u8],
        key: Option<&TagKey>,
    ) -> [u8; TAG_BYTES] {
        let start = message.as_mut_ptr();
        // SAFETY: as above; every byte is read before it is written.
        unsafe { self.run::<true>(nonce, associated, start, start, message.len(), key) }
    }

    /// Like [`ChaChaLanes::open`], in place.
    pub fn open_in_place(
        &self,
        nonce: &[u8; 12],
        associated: &[u8],
        text: &mut [u8],
        key: Option<&TagKey>,
    ) -> [u8; TAG_BYTES] {
        let start = text.as_mut_ptr();
        // SAFETY: as above.
        unsafe { self.run::<false>(nonce, associated, start, start, text.len(), key) }
    }

    /// Computes the first block of each nonce, one nonce in each lane.
    #[target_feature(enable = "avx512f,avx512bw")]
    fn first_blocks(&self, nonces: &[[u8; 12]]) -> TagKeys {
        let mut stream = Stream::new(&self.key.0, &[0; 12]);
        stream.steps = [0; KEYED_LANES];
        for (lane, nonce) in nonces.iter().take(KEYED_LANES).enumerate() {
            for (words, word) in stream.nonces.iter_mut().zip(nonce.as_chunks().0) {
                words[lane] = u32::from_le_bytes(*word);
            }
        }
        stream.next(GROUP_BYTES);
        let mut keys = TagKeys(Box::new([const { TagKey { words: [0; 4], powers: Powers::NONE } }; KEYED_LANES]));
        for (key, block) in keys.0.iter_mut().zip(&stream.blocks) {
            key.words = front_half(*block);
        }
        if self.has_ifma {
            for eight in keys.0.as_chunks_mut::<8>().0.iter_mut().take(nonces.len().div_ceil(8)) {
                let mut words = eight.each_ref().map(|key| key.words);
                // SAFETY: the CPU has IFMA.
                unsafe { raise_eight(&words, eight.each_mut().map(|key| &mut key.powers)) };
                words.as_flattened_mut().zeroize();
            }
        }
        keys
    }

    /// # Safety
    /// The CPU must have AVX-512. `len` bytes must be readable at `from` and writable at `to`;
    /// both may be the same, but must not overlap otherwise.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn run<const SEALS: bool>(
        &self,
        nonce: &[u8; 12],
        associated: &[u8],
        from: *const u8,
        to: *mut u8,
        len: usize,
        key: Option<&TagKey>,
    ) -> [u8; TAG_BYTES] {
        let mut stream = Stream::new(&self.key.0, nonce);
        // The first block is the key of the tag; if that is precomputed, the message begins with
        // the second block.
        stream.counter = u32::from(key.is_some());
        let held = if key.is_some() { 0 } else { stream.next(len.saturating_add(BLOCK_BYTES)) };
        let mut tag = match key {
            Some(key) => Poly1305::new(&key.words, Some(&key.powers), self.has_ifma),
            None => Poly1305::new(&front_half(stream.blocks[0]), None, self.has_ifma),
        };
        tag.take_padded(associated);
        let first = held.saturating_sub(BLOCK_BYTES).min(len);
        let mut begin = 0;
        while begin < len {
            // Whole blocks of the tag, except for the last piece.
            let end = len.min(begin + PIECE_BYTES + if begin == 0 { first } else { 0 });
            // SAFETY: a piece lies within the bytes that the caller guarantees; written bytes are
            // not read through these slices.
            unsafe {
                if !SEALS {
                    tag.take_padded(std::slice::from_raw_parts(from.add(begin), end - begin));
                }
                let mut place = begin;
                if begin == 0 {
                    stream.apply(1, from, to, first);
                    place = first;
                }
                while end - place >= GROUP_BYTES {
                    // When opening, the tag reads each piece before it is decrypted.
                    if SEALS {
                        stream.apply_sixteen::<AHEAD_BYTES>(from.add(place), to.add(place));
                    } else {
                        stream.apply_sixteen::<OPENED_AHEAD_BYTES>(from.add(place), to.add(place));
                    }
                    place += GROUP_BYTES;
                }
                while place < end {
                    let more = stream.next(end - place).min(end - place);
                    stream.apply(0, from.add(place), to.add(place), more);
                    place += more;
                }
                if SEALS {
                    tag.take_padded(std::slice::from_raw_parts(to.add(begin), end - begin));
                }
            }
            begin = end;
        }
        tag.finish(associated.len(), len)
    }
}

/// Key stream blocks. Wiped when dropped.
struct Stream {
    key: [u32; 8],
    /// The nonce words of each lane, and the offset of its counter from the first lane's.
    nonces: [[u32; 16]; 3],
    steps: [u32; 16],
    counter: u32,
    blocks: [__m512i; 16],
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.key.zeroize();
        for block in &mut self.blocks {
            // SAFETY: `block` is a valid reference; a volatile write is not optimised away. Zero
            // bits are a valid vector.
            unsafe { std::ptr::write_volatile(block, std::mem::zeroed()) };
        }
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    }
}

impl Stream {
    #[target_feature(enable = "avx512f")]
    fn new(key: &[u32; 8], nonce: &[u8; 12]) -> Stream {
        let (words, _) = nonce.as_chunks();
        let nonces = std::array::from_fn(|index| [u32::from_le_bytes(words[index]); 16]);
        let steps = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        Stream { key: *key, nonces, steps, counter: 0, blocks: [_mm512_setzero_si512(); 16] }
    }

    /// Computes the next blocks: four if `wanted` bytes need no more, else sixteen. Returns their
    /// bytes.
    #[target_feature(enable = "avx512f")]
    fn next(&mut self, wanted: usize) -> usize {
        let count = if wanted <= 4 * BLOCK_BYTES { 4 } else { 16 };
        if count == 4 {
            self.four();
        } else {
            self.blocks = self.sixteen();
        }
        self.counter = self.counter.wrapping_add(count);
        count as usize * BLOCK_BYTES
    }

    /// Encrypts or decrypts at most as many bytes as there are from block `first` on.
    ///
    /// # Safety
    /// The CPU must have AVX-512. `len` bytes must be readable at `from` and writable at `to`.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn apply(&self, first: usize, from: *const u8, to: *mut u8, len: usize) {
        for (block, place) in self.blocks[first..].iter().zip((0..len).step_by(BLOCK_BYTES)) {
            let mask = u64::MAX >> (BLOCK_BYTES - (len - place).min(BLOCK_BYTES));
            // SAFETY: the mask excludes bytes behind both ends, and no block is empty.
            unsafe {
                let taken = _mm512_maskz_loadu_epi8(mask, from.add(place).cast());
                _mm512_mask_storeu_epi8(to.add(place).cast(), mask, _mm512_xor_si512(taken, *block));
            }
        }
    }

    /// Encrypts or decrypts with the next sixteen whole blocks, which are not stored.
    ///
    /// # Safety
    /// The CPU must have AVX-512. A group must be readable at `from` and writable at `to`.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn apply_sixteen<const AHEAD: usize>(&mut self, from: *const u8, to: *mut u8) {
        let blocks = self.sixteen();
        self.counter = self.counter.wrapping_add(16);
        let mut block = 0;
        while block < 16 {
            let place = block * BLOCK_BYTES;
            ask_ahead::<AHEAD>(from, to, place);
            // SAFETY: guaranteed by the caller.
            unsafe {
                let taken = _mm512_loadu_si512(from.add(place).cast());
                _mm512_storeu_si512(to.add(place).cast(), _mm512_xor_si512(taken, blocks[block]));
            }
            block += 1;
        }
    }

    /// Four blocks: a register for each row of the state, with one block in each of its quarters.
    #[target_feature(enable = "avx512f")]
    fn four(&mut self) {
        let ([k0, k1, k2, k3, k4, k5, k6, k7], [n0, n1, n2]) = (self.key, self.nonces.map(|words| words[0]));
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

    /// Sixteen blocks: a register for each word of the state, with one block in each lane.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn sixteen(&self) -> [__m512i; 16] {
        let ([k0, k1, k2, k3, k4, k5, k6, k7], [c0, c1, c2, c3]) = (self.key, CONSTANTS);
        let words = [c0, c1, c2, c3, k0, k1, k2, k3, k4, k5, k6, k7, self.counter];
        let mut start = [_mm512_setzero_si512(); 16];
        for (start, word) in start.iter_mut().zip(words) {
            *start = _mm512_set1_epi32(word as i32);
        }
        // SAFETY: each array has sixteen words.
        let load = |words: &[u32; 16]| unsafe { _mm512_loadu_si512(words.as_ptr().cast()) };
        start[12] = _mm512_add_epi32(start[12], load(&self.steps));
        for (start, words) in start[13..].iter_mut().zip(&self.nonces) {
            *start = load(words);
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
        turned(state)
    }
}

/// The first half of a block.
#[inline]
#[target_feature(enable = "avx512f")]
fn front_half(block: __m512i) -> [u64; 4] {
    let mut key = [0; 4];
    // SAFETY: `key` has space for half a register.
    unsafe { _mm256_storeu_si256(key.as_mut_ptr().cast(), _mm512_castsi512_si256(block)) };
    key
}

/// Four words, repeated in each quarter of the register.
#[inline]
#[target_feature(enable = "avx512f")]
fn row(words: [u32; 4]) -> __m512i {
    let [a, b, c, d] = words;
    _mm512_broadcast_i32x4(_mm_set_epi32(d as i32, c as i32, b as i32, a as i32))
}

/// A quarter round.
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

/// Transposes from one register per word to one register per block.
#[inline]
#[target_feature(enable = "avx512f")]
fn turned(words: [__m512i; 16]) -> [__m512i; 16] {
    // For four words: those of blocks 0, 4, 8, 12, of blocks 1, 5, 9, 13, and so on.
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

/// Transposes the quarters of four registers.
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
