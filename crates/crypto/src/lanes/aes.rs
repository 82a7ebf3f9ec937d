//! AES in lanes: eight or sixteen messages at a time where each block waits for the one before (encryption in CBC), and 32 blocks at a time where none
//! does (decryption in CBC, CTR).

use std::arch::x86_64::*;

use zeroize::Zeroize;

use super::{CHAINED_LANES, CHAINED_LANES_WIDE};
use crate::cipher::{BLOCK_BYTES, Block};

/// Registers of four blocks each, where blocks do not wait.
const REGISTERS: usize = 8;
const GROUP_BYTES: usize = REGISTERS * 64;

/// The rounds' keys. They stay where they are when this is moved, so that no copy is left behind.
pub struct AesLanes {
    keys: Box<RoundKeys>,
    /// The number of the last round: 10, 12 or 14.
    last: u32,
    /// Whether there are registers of four blocks.
    has_fours: bool,
}

/// Wiped when they are dropped.
struct RoundKeys {
    rounds: [Block; 15],
    /// Those of decryption, in the order in which they are used.
    inverse: [Block; 15],
}

impl Drop for RoundKeys {
    fn drop(&mut self) {
        self.rounds.zeroize();
        self.inverse.zeroize();
    }
}

/// The rounds' keys as registers hold them, wiped after use. What the compiler keeps in registers is not.
struct Loaded<T: Copy>([T; 15]);

impl<T: Copy> Drop for Loaded<T> {
    fn drop(&mut self) {
        let words = size_of_val(&self.0) / size_of::<u64>();
        // SAFETY: these are vectors of plain bits, aligned to more than a word and as long as so many.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast::<u64>(), words) }.zeroize();
    }
}

impl AesLanes {
    /// From a key of 16, 24 or 32 bytes; `None` where the CPU lacks the instructions.
    pub fn new(key: &[u8]) -> Option<AesLanes> {
        let there = is_x86_feature_detected!("aes") && is_x86_feature_detected!("sse4.1");
        if !there || !matches!(key.len(), 16 | 24 | 32) {
            return None;
        }
        // SAFETY: the CPU says that the instructions are there.
        Some(unsafe { AesLanes::expanded(key) })
    }

    /// # Safety
    /// The CPU must have AES.
    #[target_feature(enable = "aes,sse4.1")]
    unsafe fn expanded(key: &[u8]) -> AesLanes {
        let (words, last) = (key.len() / 4, key.len() / 4 + 6);
        let mut schedule = [0_u32; 60];
        for (word, bytes) in schedule.iter_mut().zip(key.chunks_exact(4)) {
            *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        }
        let mut constant = 1_u32;
        for index in words..4 * (last + 1) {
            let mut word = schedule[index - 1];
            if index % words == 0 {
                word = substituted(word).rotate_right(8) ^ constant;
                constant = constant << 1 ^ if constant & 0x80 != 0 { 0x11b } else { 0 };
            } else if words == 8 && index % 8 == 4 {
                word = substituted(word);
            }
            schedule[index] = schedule[index - words] ^ word;
        }
        let mut keys = Box::new(RoundKeys { rounds: [[0; BLOCK_BYTES]; 15], inverse: [[0; BLOCK_BYTES]; 15] });
        let RoundKeys { rounds, inverse } = keys.as_mut();
        for (bytes, word) in rounds.as_flattened_mut().chunks_exact_mut(4).zip(&schedule) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        schedule.zeroize();
        for (round, bytes) in inverse.iter_mut().take(last + 1).enumerate() {
            // SAFETY: a round's key has sixteen bytes.
            let key = unsafe { _mm_loadu_si128(rounds[last - round].as_ptr().cast()) };
            let turned = if round == 0 || round == last { key } else { _mm_aesimc_si128(key) };
            // SAFETY: as above.
            unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), turned) };
        }
        AesLanes { keys, last: last as u32, has_fours: super::detected() }
    }

    /// The rounds' keys, and the number of the last round.
    pub(super) fn rounds(&self) -> (&[Block; 15], u32) {
        (&self.keys.rounds, self.last)
    }

    /// Whether sixteen messages at a time are faster than eight.
    pub fn has_wide_chains(&self) -> bool {
        self.has_fours
    }

    /// Encrypts whole blocks of eight or sixteen messages into their texts, each chained to the one before, as many as the shortest message has: what was
    /// written to `vectors` and the number that it returns is where each goes on.
    pub fn encrypt_chained<const N: usize>(
        &self,
        vectors: &mut [Block; N],
        messages: &[&[u8]; N],
        texts: &mut [&mut [u8]; N],
    ) -> usize {
        let lens = messages.iter().zip(texts.iter()).map(|(message, text)| message.len().min(text.len()));
        let blocks = lens.min().unwrap_or(0) / BLOCK_BYTES;
        // The first chunks are all of them where they are sixteen; where they are not, there are none.
        if let (true, Some(vectors), Some(messages), Some(texts)) =
            (self.has_fours, vectors.first_chunk_mut(), messages.first_chunk(), texts.first_chunk_mut())
        {
            // SAFETY: the CPU has said that the instructions are there; every message and text has so many blocks.
            unsafe { self.chained_in_fours(vectors, messages, texts, blocks) };
            return blocks;
        }
        let (vectors, _) = vectors.as_chunks_mut();
        let groups = vectors.iter_mut().zip(messages.as_chunks().0).zip(texts.as_chunks_mut().0);
        for ((vectors, messages), texts) in groups {
            // SAFETY: a value of this type is only made where the instructions are there; every message and text has so many blocks.
            unsafe { self.chained(vectors, messages, texts, blocks) };
        }
        blocks
    }

    /// # Safety
    /// The CPU must have AVX-512 and VAES; every message and text must have so many blocks.
    #[target_feature(enable = "avx512f,avx512bw,vaes")]
    unsafe fn chained_in_fours(
        &self,
        vectors: &mut [Block; CHAINED_LANES_WIDE],
        messages: &[&[u8]; CHAINED_LANES_WIDE],
        texts: &mut [&mut [u8]; CHAINED_LANES_WIDE],
        blocks: usize,
    ) {
        const FOURS: usize = CHAINED_LANES_WIDE / 4;
        let loaded: Loaded<__m512i> = Loaded(std::array::from_fn(|round| {
            // SAFETY: a round's key has sixteen bytes.
            _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(self.keys.rounds[round].as_ptr().cast()) })
        }));
        let keys = &loaded.0;
        let from: [*const u8; CHAINED_LANES_WIDE] = messages.map(<[u8]>::as_ptr);
        let to: [*mut u8; CHAINED_LANES_WIDE] = texts.each_mut().map(|text| text.as_mut_ptr());
        let mut state = [_mm512_setzero_si512(); FOURS];
        for (four, state) in state.iter_mut().enumerate() {
            // SAFETY: four vectors are 64 bytes.
            *state = unsafe { _mm512_loadu_si512(vectors[4 * four..][..4].as_ptr().cast()) };
        }
        for block in 0..blocks {
            let at = block * BLOCK_BYTES;
            for (four, state) in state.iter_mut().enumerate() {
                // SAFETY: every message has so many blocks.
                let plain = unsafe { four_blocks(&from, 4 * four, at) };
                *state = _mm512_ternarylogic_epi64::<0x96>(plain, keys[0], *state);
            }
            for key in &keys[1..self.last as usize] {
                for state in &mut state {
                    *state = _mm512_aesenc_epi128(*state, *key);
                }
            }
            for (four, state) in state.iter_mut().enumerate() {
                *state = _mm512_aesenclast_epi128(*state, keys[self.last as usize]);
                // SAFETY: every text has so many blocks.
                unsafe {
                    _mm_storeu_si128(to[4 * four].add(at).cast(), _mm512_castsi512_si128(*state));
                    _mm_storeu_si128(to[4 * four + 1].add(at).cast(), _mm512_extracti32x4_epi32::<1>(*state));
                    _mm_storeu_si128(to[4 * four + 2].add(at).cast(), _mm512_extracti32x4_epi32::<2>(*state));
                    _mm_storeu_si128(to[4 * four + 3].add(at).cast(), _mm512_extracti32x4_epi32::<3>(*state));
                }
            }
        }
        for (four, state) in state.into_iter().enumerate() {
            // SAFETY: four vectors are 64 bytes.
            unsafe { _mm512_storeu_si512(vectors[4 * four..][..4].as_mut_ptr().cast(), state) };
        }
    }

    /// # Safety
    /// The CPU must have AES; every message and text must have so many blocks.
    #[target_feature(enable = "aes,sse4.1")]
    unsafe fn chained(
        &self,
        vectors: &mut [Block; CHAINED_LANES],
        messages: &[&[u8]; CHAINED_LANES],
        texts: &mut [&mut [u8]; CHAINED_LANES],
        blocks: usize,
    ) {
        // SAFETY: a block has sixteen bytes.
        let load = |block: *const u8| unsafe { _mm_loadu_si128(block.cast()) };
        let loaded: Loaded<__m128i> = Loaded(std::array::from_fn(|round| load(self.keys.rounds[round].as_ptr())));
        let keys = &loaded.0;
        let mut state: [__m128i; CHAINED_LANES] = std::array::from_fn(|lane| load(vectors[lane].as_ptr()));
        let starts: [*mut u8; CHAINED_LANES] = texts.each_mut().map(|text| text.as_mut_ptr());
        for block in 0..blocks {
            let at = block * BLOCK_BYTES;
            for (state, message) in state.iter_mut().zip(messages) {
                // SAFETY: every message has so many blocks.
                let plain = load(unsafe { message.as_ptr().add(at) });
                *state = _mm_xor_si128(_mm_xor_si128(plain, keys[0]), *state);
            }
            for key in &keys[1..self.last as usize] {
                for state in &mut state {
                    *state = _mm_aesenc_si128(*state, *key);
                }
            }
            for (state, start) in state.iter_mut().zip(starts) {
                *state = _mm_aesenclast_si128(*state, keys[self.last as usize]);
                // SAFETY: every text has so many blocks.
                unsafe { _mm_storeu_si128(start.add(at).cast(), *state) };
            }
        }
        for (vector, state) in vectors.iter_mut().zip(state) {
            // SAFETY: a vector has sixteen bytes.
            unsafe { _mm_storeu_si128(vector.as_mut_ptr().cast(), state) };
        }
    }

    /// Decrypts the blocks of a chained text from the second on into the same places of `out`, as far as whole groups of 32 go; says how
    /// many bytes that are.
    pub fn decrypt_chained(&self, text: &[u8], out: &mut [u8]) -> usize {
        let len = text.len().min(out.len()).saturating_sub(BLOCK_BYTES) / GROUP_BYTES * GROUP_BYTES;
        if !self.has_fours {
            return 0;
        }
        if len > 0 {
            // SAFETY: the CPU has said that the instructions are there; both are a block and `len` bytes long.
            unsafe { self.unchained(&text[..BLOCK_BYTES + len], &mut out[BLOCK_BYTES..BLOCK_BYTES + len]) };
        }
        len
    }

    /// # Safety
    /// The CPU must have AVX-512 and VAES. `out` must have whole groups, and `text` a block more.
    #[target_feature(enable = "avx512f,avx512bw,vaes")]
    unsafe fn unchained(&self, text: &[u8], out: &mut [u8]) {
        let loaded: Loaded<__m512i> = Loaded(std::array::from_fn(|round| {
            // SAFETY: a round's key has sixteen bytes.
            _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(self.keys.inverse[round].as_ptr().cast()) })
        }));
        let keys = &loaded.0;
        for (group, out) in out.chunks_exact_mut(GROUP_BYTES).enumerate() {
            // SAFETY: the text has a block before the group, and all of it behind that.
            let load =
                |skipped: usize| unsafe { _mm512_loadu_si512(text.as_ptr().add(group * GROUP_BYTES + skipped).cast()) };
            let mut state: [__m512i; REGISTERS] =
                std::array::from_fn(|register| _mm512_xor_si512(load(BLOCK_BYTES + 64 * register), keys[0]));
            for key in &keys[1..self.last as usize] {
                state = state.map(|state| _mm512_aesdec_epi128(state, *key));
            }
            for (register, state) in state.into_iter().enumerate() {
                let plain =
                    _mm512_xor_si512(_mm512_aesdeclast_epi128(state, keys[self.last as usize]), load(64 * register));
                // SAFETY: a group has eight times 64 bytes.
                unsafe { _mm512_storeu_si512(out.as_mut_ptr().add(64 * register).cast(), plain) };
            }
        }
    }

    /// Encrypts or decrypts `input` into `out` in counter mode, as far as whole groups of 32 blocks go; says how many bytes that are. None
    /// where the counter's lower half would overflow.
    pub fn apply_counted(&self, start: u128, input: &[u8], out: &mut [u8]) -> usize {
        let len = input.len().min(out.len()) / GROUP_BYTES * GROUP_BYTES;
        let blocks = (len / BLOCK_BYTES) as u64;
        if !self.has_fours || len == 0 || (start as u64).checked_add(blocks).is_none() {
            return 0;
        }
        // SAFETY: the CPU has said that the instructions are there; both are at least so long.
        unsafe { self.counted(start, &input[..len], &mut out[..len]) };
        len
    }

    /// # Safety
    /// The CPU must have AVX-512 and VAES. Both slices must have the same length, of whole groups.
    #[target_feature(enable = "avx512f,avx512bw,vaes")]
    unsafe fn counted(&self, start: u128, input: &[u8], out: &mut [u8]) {
        let loaded: Loaded<__m512i> = Loaded(std::array::from_fn(|round| {
            // SAFETY: a round's key has sixteen bytes.
            _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(self.keys.rounds[round].as_ptr().cast()) })
        }));
        let keys = &loaded.0;
        // The counter is big-endian; its halves are turned when it is used.
        let turn = _mm512_set4_epi32(0x0001_0203, 0x0405_0607, 0x0809_0a0b, 0x0c0d_0e0f);
        let (high, low) = ((start >> 64) as i64, start as i64);
        let step = |blocks: i64| _mm512_set_epi64(0, blocks + 3, 0, blocks + 2, 0, blocks + 1, 0, blocks);
        let four = _mm512_set_epi64(high, low, high, low, high, low, high, low);
        let mut counters: [__m512i; REGISTERS] =
            std::array::from_fn(|register| _mm512_add_epi64(four, step(4 * register as i64)));
        let group = _mm512_set_epi64(0, 32, 0, 32, 0, 32, 0, 32);
        for (input, out) in input.chunks_exact(GROUP_BYTES).zip(out.chunks_exact_mut(GROUP_BYTES)) {
            let mut state = counters.map(|counter| _mm512_xor_si512(_mm512_shuffle_epi8(counter, turn), keys[0]));
            for key in &keys[1..self.last as usize] {
                state = state.map(|state| _mm512_aesenc_epi128(state, *key));
            }
            state = state.map(|state| _mm512_aesenclast_epi128(state, keys[self.last as usize]));
            for (register, state) in state.into_iter().enumerate() {
                // SAFETY: a group has eight times 64 bytes.
                unsafe {
                    let plain = _mm512_loadu_si512(input.as_ptr().add(64 * register).cast());
                    _mm512_storeu_si512(out.as_mut_ptr().add(64 * register).cast(), _mm512_xor_si512(plain, state));
                }
            }
            counters = counters.map(|counter| _mm512_add_epi64(counter, group));
        }
    }
}

/// The blocks at `at` of four messages from `first` on.
///
/// # Safety
/// The CPU must have AVX-512. The blocks must be there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn four_blocks(from: &[*const u8; CHAINED_LANES_WIDE], first: usize, at: usize) -> __m512i {
    // SAFETY: the caller says so.
    unsafe {
        let one = |lane: usize| _mm_loadu_si128(from[first + lane].add(at).cast());
        let two = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(one(0)), one(1));
        _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(two, one(2)), one(3))
    }
}

/// The substitution of each byte, in constant time.
#[target_feature(enable = "aes,sse4.1")]
fn substituted(word: u32) -> u32 {
    _mm_extract_epi32::<0>(_mm_aeskeygenassist_si128::<0>(_mm_set1_epi32(word as i32))) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stay_in_their_own_memory_when_they_are_moved() {
        assert!(size_of::<AesLanes>() <= 2 * size_of::<usize>(), "a pointer, and the number of rounds");
    }
}
