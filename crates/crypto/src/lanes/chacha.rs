//! ChaCha20-Poly1305 in lanes: sixteen blocks of the cipher at a time, and four where few are left; [`poly1305`](super::poly1305) has
//! the tags. A message's first block is the key of its tag: of sixteen messages these are made together.

use std::arch::x86_64::*;

use zeroize::Zeroize;

use super::aes::{AHEAD_BYTES, ask_ahead};
use super::poly1305::{Poly1305, Powers, TAG_BYTES, raise_eight};

const BLOCK_BYTES: usize = 64;
/// Sixteen blocks.
const GROUP_BYTES: usize = 16 * BLOCK_BYTES;
/// So much is enciphered before its part of the tag is made, or deciphered behind that, so that it is still near.
const PIECE_BYTES: usize = 4 * GROUP_BYTES;
/// How far ahead memory is asked for where a message is opened.
const OPENED_AHEAD_BYTES: usize = PIECE_BYTES + GROUP_BYTES;
const CONSTANTS: [u32; 4] = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// Messages whose tags' keys are made together.
pub const KEYED_LANES: usize = 16;

/// The key of one message's tag, and powers of its first half where the CPU multiplies numbers of 52 bits.
pub struct TagKey {
    words: [u64; 4],
    powers: Powers,
}

/// The keys of several messages' tags. They stay where they are when this is moved, so that no copy is left behind, and are wiped when it is dropped.
pub struct TagKeys(Box<[TagKey; KEYED_LANES]>);

impl TagKeys {
    /// That of one of the messages.
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

/// A key. It stays where it is when this is moved, so that no copy is left behind.
pub struct ChaChaLanes {
    key: Box<Words>,
    has_ifma: bool,
}

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
        Some(ChaChaLanes { key: made, has_ifma: is_x86_feature_detected!("avx512ifma") })
    }

    /// The same without products of 52 bits, as on a CPU that lacks them.
    pub fn without_wide_products(self) -> ChaChaLanes {
        ChaChaLanes { has_ifma: false, ..self }
    }

    /// The keys of the tags of messages with these nonces, sixteen at most.
    pub fn tag_keys(&self, nonces: &[[u8; 12]]) -> TagKeys {
        // SAFETY: a value of this type is only made where the instructions are there.
        unsafe { self.first_blocks(nonces) }
    }

    /// Seals `message` into `text`, which is as long; returns the tag. `key`, here and below: that of the tag, where it was made.
    pub fn seal(
        &self,
        nonce: &[u8; 12],
        associated: &[u8],
        message: &[u8],
        text: &mut [u8],
        key: Option<&TagKey>,
    ) -> [u8; TAG_BYTES] {
        assert_eq!(message.len(), text.len(), "a text is as long as its message");
        // SAFETY: a value of this type is only made where the instructions are there; both are so long.
        unsafe { self.run::<true>(nonce, associated, message.as_ptr(), text.as_mut_ptr(), text.len(), key) }
    }

    /// Opens `text` into `message`, which is as long; returns the tag that it should have. Where it has another, nobody may see the message.
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

    /// The same as [`ChaChaLanes::seal`] in the message's place.
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

    /// The same as [`ChaChaLanes::open`] in the text's place.
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

    /// A block of each nonce in each of the lanes.
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
                // SAFETY: the CPU has said that the instructions are there.
                unsafe { raise_eight(&words, eight.each_mut().map(|key| &mut key.powers)) };
                words.as_flattened_mut().zeroize();
            }
        }
        keys
    }

    /// # Safety
    /// The CPU must have AVX-512. So many bytes must be there to be read and written: apart, or the same.
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
        // The first block is the key of the tag: where that is made, the second is the first of the message.
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
            // Whole blocks of the tag, but for the last piece.
            let end = len.min(begin + PIECE_BYTES + if begin == 0 { first } else { 0 });
            // SAFETY: a piece lies within what the caller answers for; what is written is not read through these.
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
                    // What is opened is read a piece before it is deciphered.
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

/// Blocks of the cipher. Wiped when they are dropped.
struct Stream {
    key: [u32; 8],
    /// The words of each lane's nonce, and how far its counter is from the first lane's.
    nonces: [[u32; 16]; 3],
    steps: [u32; 16],
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
        let nonces = std::array::from_fn(|index| [u32::from_le_bytes(words[index]); 16]);
        let steps = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        Stream { key: *key, nonces, steps, counter: 0, blocks: [_mm512_setzero_si512(); 16] }
    }

    /// The next blocks: four where so many bytes are no more than that, else sixteen. Tells how many bytes they have.
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

    /// Enciphers or deciphers at most as many bytes as there are from this block on.
    ///
    /// # Safety
    /// The CPU must have AVX-512. So many bytes must be there to be read and written.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn apply(&self, first: usize, from: *const u8, to: *mut u8, len: usize) {
        for (block, place) in self.blocks[first..].iter().zip((0..len).step_by(BLOCK_BYTES)) {
            let mask = u64::MAX >> (BLOCK_BYTES - (len - place).min(BLOCK_BYTES));
            // SAFETY: the mask leaves out what is behind the ends of both, and no block is empty.
            unsafe {
                let taken = _mm512_maskz_loadu_epi8(mask, from.add(place).cast());
                _mm512_mask_storeu_epi8(to.add(place).cast(), mask, _mm512_xor_si512(taken, *block));
            }
        }
    }

    /// The same of sixteen whole blocks, the next ones, which are not kept.
    ///
    /// # Safety
    /// The CPU must have AVX-512. A group must be there to be read and written.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn apply_sixteen<const AHEAD: usize>(&mut self, from: *const u8, to: *mut u8) {
        let blocks = self.sixteen();
        self.counter = self.counter.wrapping_add(16);
        let mut block = 0;
        while block < 16 {
            let place = block * BLOCK_BYTES;
            ask_ahead::<AHEAD>(from, to, place);
            // SAFETY: the caller says so.
            unsafe {
                let taken = _mm512_loadu_si512(from.add(place).cast());
                _mm512_storeu_si512(to.add(place).cast(), _mm512_xor_si512(taken, blocks[block]));
            }
            block += 1;
        }
    }

    /// A register for each of the state's rows, with a block in each of its quarters.
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

    /// A register for each of the state's words, with a block in each of its lanes.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn sixteen(&self) -> [__m512i; 16] {
        let ([k0, k1, k2, k3, k4, k5, k6, k7], [c0, c1, c2, c3]) = (self.key, CONSTANTS);
        let words = [c0, c1, c2, c3, k0, k1, k2, k3, k4, k5, k6, k7, self.counter];
        let mut start = [_mm512_setzero_si512(); 16];
        for (start, word) in start.iter_mut().zip(words) {
            *start = _mm512_set1_epi32(word as i32);
        }
        // SAFETY: each has sixteen words.
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
    // SAFETY: there is room for half a register.
    unsafe { _mm256_storeu_si256(key.as_mut_ptr().cast(), _mm512_castsi512_si256(block)) };
    key
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
