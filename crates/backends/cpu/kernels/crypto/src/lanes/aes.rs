//! AES in lanes: 8 or 16 messages at a time (CBC encryption), or 16 blocks (CBC decryption, CTR).

use std::arch::x86_64::*;

use panoply_core::locked::SecretBox;
use zeroize::Zeroize;

use super::{CHAINED_LANES, CHAINED_LANES_WIDE};
use crate::cipher::{AesBlock, BLOCK_BYTES};

/// Registers of four messages each, for dependent blocks.
const FOURS: usize = CHAINED_LANES_WIDE / 4;
/// Registers of four blocks each, for independent blocks.
const REGISTERS: usize = 4;
const GROUP_BYTES: usize = REGISTERS * 64;
/// Prefetch distance.
pub(super) const AHEAD_BYTES: usize = 2 << 10;
/// Prefetch distance in each of sixteen messages.
const CHAINED_AHEAD_BYTES: usize = 256;

/// The round keys. Their memory does not move when this value is moved, so no copy is left behind.
pub struct AesLanes {
    keys: SecretBox<RoundKeys>,
    /// The number of the last round: 10, 12 or 14.
    last: u32,
    /// Whether the CPU has registers of four blocks.
    has_fours: bool,
}

/// Wiped when dropped.
struct RoundKeys {
    rounds: [AesBlock; 15],
    /// The decryption round keys, in order of use.
    inverse: [AesBlock; 15],
}

impl Drop for RoundKeys {
    fn drop(&mut self) {
        self.rounds.zeroize();
        self.inverse.zeroize();
    }
}

/// The round keys in registers, wiped after use, except copies made by the compiler.
struct KeyVectors<T: Copy>([T; 15]);

impl<T: Copy> Drop for KeyVectors<T> {
    fn drop(&mut self) {
        let words = size_of_val(&self.0) / size_of::<u64>();
        // SAFETY: these are vectors of plain bits, aligned to more than a word, with `words` words.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast::<u64>(), words) }.zeroize();
    }
}

impl AesLanes {
    /// Takes a key of 16, 24 or 32 bytes. `None` if the CPU lacks the instructions.
    pub fn new(key: &[u8]) -> Option<AesLanes> {
        let there = is_x86_feature_detected!("aes") && is_x86_feature_detected!("sse4.1");
        if !there || !matches!(key.len(), 16 | 24 | 32) {
            return None;
        }
        super::entries::enter();
        // SAFETY: the features were checked above.
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
        let mut keys = SecretBox::new(RoundKeys { rounds: [[0; BLOCK_BYTES]; 15], inverse: [[0; BLOCK_BYTES]; 15] });
        let RoundKeys { rounds, inverse } = &mut *keys;
        for (bytes, word) in rounds.as_flattened_mut().chunks_exact_mut(4).zip(&schedule) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        schedule.zeroize();
        for (round, bytes) in inverse.iter_mut().take(last + 1).enumerate() {
            // SAFETY: a round key has sixteen bytes.
            let key = unsafe { _mm_loadu_si128(rounds[last - round].as_ptr().cast()) };
            let turned = if round == 0 || round == last { key } else { _mm_aesimc_si128(key) };
            // SAFETY: as above.
            unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), turned) };
        }
        AesLanes { keys, last: last as u32, has_fours: super::detected() && is_x86_feature_detected!("bmi2") }
    }

    /// The round keys, and the number of the last round.
    pub(super) fn rounds(&self) -> (&[AesBlock; 15], u32) {
        (&self.keys.rounds, self.last)
    }

    /// Whether sixteen messages at a time are faster than eight.
    pub fn has_wide_chains(&self) -> bool {
        self.has_fours
    }

    /// Encrypts the whole blocks of the shortest message, for eight or sixteen messages in CBC
    /// mode. Returns their number; `vectors` holds the vectors for the next blocks.
    pub fn encrypt_chained<const N: usize>(
        &self,
        vectors: &mut [AesBlock; N],
        messages: &[&[u8]; N],
        texts: &mut [&mut [u8]; N],
    ) -> usize {
        let lens = messages.iter().zip(texts.iter()).map(|(message, text)| message.len().min(text.len()));
        let blocks = lens.min().unwrap_or(0) / BLOCK_BYTES;
        // The first chunks are complete if `N` is sixteen; otherwise they do not exist.
        if let (true, Some(vectors), Some(messages), Some(texts)) =
            (self.has_fours, vectors.first_chunk_mut(), messages.first_chunk(), texts.first_chunk_mut())
        {
            // SAFETY: the CPU has the instructions; every message and text has `blocks` blocks.
            unsafe {
                match self.last {
                    10 => self.chained_in_fours::<10>(vectors, messages, texts, blocks),
                    12 => self.chained_in_fours::<12>(vectors, messages, texts, blocks),
                    _ => self.chained_in_fours::<14>(vectors, messages, texts, blocks),
                }
            }
            return blocks;
        }
        let (vectors, _) = vectors.as_chunks_mut();
        let groups = vectors.iter_mut().zip(messages.as_chunks().0).zip(texts.as_chunks_mut().0);
        for ((vectors, messages), texts) in groups {
            // SAFETY: this type exists only if the CPU has AES; all slices have `blocks` blocks.
            unsafe { self.chained(vectors, messages, texts, blocks) };
        }
        blocks
    }

    /// # Safety
    /// The CPU must have AVX-512 and VAES; every message and text must have `blocks` blocks.
    #[target_feature(enable = "avx512f,avx512bw,vaes")]
    unsafe fn chained_in_fours<const LAST: usize>(
        &self,
        vectors: &mut [AesBlock; CHAINED_LANES_WIDE],
        messages: &[&[u8]; CHAINED_LANES_WIDE],
        texts: &mut [&mut [u8]; CHAINED_LANES_WIDE],
        blocks: usize,
    ) {
        let from: [*const u8; CHAINED_LANES_WIDE] = messages.map(<[u8]>::as_ptr);
        let to: [*mut u8; CHAINED_LANES_WIDE] = texts.each_mut().map(|text| text.as_mut_ptr());
        let mut state = [_mm512_setzero_si512(); FOURS];
        let mut four = 0;
        while four < FOURS {
            // SAFETY: four vectors are 64 bytes.
            state[four] = unsafe { _mm512_loadu_si512(vectors[4 * four..][..4].as_ptr().cast()) };
            four += 1;
        }
        // Four blocks of each message at once: messages that are whole pages apart share a few sets
        // of the L1 cache, which would evict the rest of their lines.
        let mut block = 0;
        while block + 4 <= blocks {
            let at = block * BLOCK_BYTES;
            // SAFETY: every message has four more blocks.
            let mut quads = unsafe { four_quads(&from, &to, at) };
            let mut step = 0;
            while step < 4 {
                four = 0;
                while four < FOURS {
                    let key = four_times(&self.keys.rounds[0]);
                    state[four] = _mm512_ternarylogic_epi64::<0x96>(quads[four][step], key, state[four]);
                    four += 1;
                }
                self.encrypt_fours::<LAST>(&mut state);
                four = 0;
                while four < FOURS {
                    quads[four][step] = state[four];
                    four += 1;
                }
                step += 1;
            }
            four = 0;
            while four < FOURS {
                let made = across(quads[four]);
                let mut lane = 0;
                while lane < 4 {
                    // SAFETY: every text has four more blocks.
                    unsafe { _mm512_storeu_si512(to[4 * four + lane].add(at).cast(), made[lane]) };
                    lane += 1;
                }
                four += 1;
            }
            block += 4;
        }
        while block < blocks {
            // SAFETY: every message and text has `blocks` blocks.
            unsafe { self.chain_one::<LAST>(&mut state, &from, &to, block * BLOCK_BYTES) };
            block += 1;
        }
        four = 0;
        while four < FOURS {
            // SAFETY: four vectors are 64 bytes.
            unsafe { _mm512_storeu_si512(vectors[4 * four..][..4].as_mut_ptr().cast(), state[four]) };
            four += 1;
        }
    }

    /// Encrypts the next block of each message.
    ///
    /// # Safety
    /// The CPU must have AVX-512 and VAES; every message and text must have the block at `at`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,vaes")]
    unsafe fn chain_one<const LAST: usize>(
        &self,
        state: &mut [__m512i; FOURS],
        from: &[*const u8; CHAINED_LANES_WIDE],
        to: &[*mut u8; CHAINED_LANES_WIDE],
        at: usize,
    ) {
        let mut four = 0;
        while four < FOURS {
            // SAFETY: every message has the block at `at`.
            let plain = unsafe { four_blocks(from, 4 * four, at) };
            state[four] = _mm512_ternarylogic_epi64::<0x96>(plain, four_times(&self.keys.rounds[0]), state[four]);
            four += 1;
        }
        self.encrypt_fours::<LAST>(state);
        four = 0;
        while four < FOURS {
            let made = state[four];
            // SAFETY: every text has the block at `at`.
            unsafe {
                _mm_storeu_si128(to[4 * four].add(at).cast(), _mm512_castsi512_si128(made));
                _mm_storeu_si128(to[4 * four + 1].add(at).cast(), _mm512_extracti32x4_epi32::<1>(made));
                _mm_storeu_si128(to[4 * four + 2].add(at).cast(), _mm512_extracti32x4_epi32::<2>(made));
                _mm_storeu_si128(to[4 * four + 3].add(at).cast(), _mm512_extracti32x4_epi32::<3>(made));
            }
            four += 1;
        }
    }

    /// The rounds after the first key.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,vaes")]
    fn encrypt_fours<const LAST: usize>(&self, state: &mut [__m512i; FOURS]) {
        let mut round = 1;
        while round < LAST {
            let key = four_times(&self.keys.rounds[round]);
            let mut four = 0;
            while four < FOURS {
                state[four] = _mm512_aesenc_epi128(state[four], key);
                four += 1;
            }
            round += 1;
        }
        let key = four_times(&self.keys.rounds[LAST]);
        let mut four = 0;
        while four < FOURS {
            state[four] = _mm512_aesenclast_epi128(state[four], key);
            four += 1;
        }
    }

    /// # Safety
    /// The CPU must have AES; every message and text must have `blocks` blocks.
    #[target_feature(enable = "aes,sse4.1")]
    unsafe fn chained(
        &self,
        vectors: &mut [AesBlock; CHAINED_LANES],
        messages: &[&[u8]; CHAINED_LANES],
        texts: &mut [&mut [u8]; CHAINED_LANES],
        blocks: usize,
    ) {
        // SAFETY: a block has sixteen bytes.
        let load = |block: *const u8| unsafe { _mm_loadu_si128(block.cast()) };
        let loaded = KeyVectors::<__m128i>(std::array::from_fn(|round| load(self.keys.rounds[round].as_ptr())));
        let keys = &loaded.0;
        let mut state: [__m128i; CHAINED_LANES] = std::array::from_fn(|lane| load(vectors[lane].as_ptr()));
        let starts: [*mut u8; CHAINED_LANES] = texts.each_mut().map(|text| text.as_mut_ptr());
        for block in 0..blocks {
            let at = block * BLOCK_BYTES;
            for (state, message) in state.iter_mut().zip(messages) {
                // SAFETY: every message has `blocks` blocks.
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
                // SAFETY: every text has `blocks` blocks.
                unsafe { _mm_storeu_si128(start.add(at).cast(), *state) };
            }
        }
        for (vector, state) in vectors.iter_mut().zip(state) {
            // SAFETY: a vector has sixteen bytes.
            unsafe { _mm_storeu_si128(vector.as_mut_ptr().cast(), state) };
        }
    }

    /// Decrypts a CBC text into `out`, which has the same length. Does nothing and returns `false`
    /// if the CPU lacks the instructions, or the text is empty or not made of whole blocks.
    pub fn decrypt_chained(&self, vector: &AesBlock, text: &[u8], out: &mut [u8]) -> bool {
        if !self.has_fours || text.is_empty() || text.len() != out.len() || !text.len().is_multiple_of(BLOCK_BYTES) {
            return false;
        }
        let (from, to, len) = (text.as_ptr(), out.as_mut_ptr(), text.len());
        // SAFETY: the CPU has the instructions; both slices have `len` bytes and do not overlap.
        unsafe {
            match self.last {
                10 => self.unchained::<10>(vector, from, to, len),
                12 => self.unchained::<12>(vector, from, to, len),
                _ => self.unchained::<14>(vector, from, to, len),
            }
        }
        true
    }

    /// # Safety
    /// The CPU must have AVX-512 and VAES. `len` bytes in whole blocks must be readable at `from`
    /// and, without overlap, writable at `to`.
    #[target_feature(enable = "avx512f,avx512bw,vaes,bmi2")]
    unsafe fn unchained<const LAST: usize>(&self, vector: &AesBlock, mut from: *const u8, mut to: *mut u8, len: usize) {
        // The previous register; only its last block is used.
        let mut before = four_times(vector);
        let mut left = len;
        // SAFETY: groups and the rest behind them lie within the bytes that the caller guarantees.
        unsafe {
            while left >= GROUP_BYTES {
                self.unchained_group::<LAST, REGISTERS>(&mut before, from, to, GROUP_BYTES);
                (from, to, left) = (from.add(GROUP_BYTES), to.add(GROUP_BYTES), left - GROUP_BYTES);
            }
            match left.div_ceil(64) {
                0 => {}
                1 => self.unchained_group::<LAST, 1>(&mut before, from, to, left),
                2 => self.unchained_group::<LAST, 2>(&mut before, from, to, left),
                3 => self.unchained_group::<LAST, 3>(&mut before, from, to, left),
                _ => self.unchained_group::<LAST, 4>(&mut before, from, to, left),
            }
        }
    }

    /// Decrypts the next `len` bytes, which fill all of `N` registers except part of the last.
    ///
    /// # Safety
    /// Needs AVX-512 and VAES; `len` bytes must be readable at `from` and writable at `to`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,vaes,bmi2")]
    unsafe fn unchained_group<const LAST: usize, const N: usize>(
        &self,
        before: &mut __m512i,
        from: *const u8,
        to: *mut u8,
        len: usize,
    ) {
        let mut texts = [_mm512_setzero_si512(); N];
        let mut state = [_mm512_setzero_si512(); N];
        let key = four_times(&self.keys.inverse[0]);
        let mask = _bzhi_u64(u64::MAX, (len - 64 * (N - 1)) as u32);
        let mut register = 0;
        while register < N {
            // SAFETY: the mask excludes missing bytes.
            texts[register] = unsafe {
                let start = from.add(64 * register);
                if register + 1 < N {
                    _mm512_loadu_si512(start.cast())
                } else {
                    _mm512_maskz_loadu_epi8(mask, start.cast())
                }
            };
            state[register] = _mm512_xor_si512(texts[register], key);
            register += 1;
        }
        let mut round = 1;
        while round < LAST {
            let key = four_times(&self.keys.inverse[round]);
            register = 0;
            while register < N {
                state[register] = _mm512_aesdec_epi128(state[register], key);
                register += 1;
            }
            round += 1;
        }
        let key = four_times(&self.keys.inverse[LAST]);
        register = 0;
        while register < N {
            // The predecessor of each block: the last of the previous register, and three of this
            // one.
            let chained = _mm512_alignr_epi64::<6>(texts[register], *before);
            let plain = _mm512_xor_si512(_mm512_aesdeclast_epi128(state[register], key), chained);
            let place = 64 * register;
            // SAFETY: the mask excludes missing bytes.
            unsafe {
                if register + 1 < N {
                    _mm512_storeu_si512(to.add(place).cast(), plain);
                } else {
                    _mm512_mask_storeu_epi8(to.add(place).cast(), mask, plain);
                }
            }
            ask_ahead::<AHEAD_BYTES>(from, to, place);
            *before = texts[register];
            register += 1;
        }
    }

    /// Encrypts or decrypts `input` into `out`, of the same length, in CTR mode. Does nothing and
    /// returns `false` without the instructions or if the counter's lower half would overflow.
    pub fn apply_counted(&self, start: u128, input: &[u8], out: &mut [u8]) -> bool {
        let blocks = input.len().div_ceil(BLOCK_BYTES).next_multiple_of(REGISTERS * 4) as u64;
        if !self.has_fours || input.len() != out.len() || (start as u64).checked_add(blocks).is_none() {
            return false;
        }
        let (from, to, len) = (input.as_ptr(), out.as_mut_ptr(), input.len());
        // SAFETY: the CPU has the instructions; both slices have `len` bytes.
        unsafe {
            match self.last {
                10 => self.counted::<10>(start, from, to, len),
                12 => self.counted::<12>(start, from, to, len),
                _ => self.counted::<14>(start, from, to, len),
            }
        }
        true
    }

    /// # Safety
    /// Needs AVX-512 and VAES; `len` bytes must be readable at `from` and writable at `to`.
    #[target_feature(enable = "avx512f,avx512bw,vaes,bmi2")]
    unsafe fn counted<const LAST: usize>(&self, start: u128, mut from: *const u8, mut to: *mut u8, len: usize) {
        let (high, low) = ((start >> 64) as i64, start as i64);
        let four = _mm512_set_epi64(high, low, high, low, high, low, high, low);
        let mut counters = _mm512_add_epi64(four, _mm512_set_epi64(0, 3, 0, 2, 0, 1, 0, 0));
        let mut left = len;
        // SAFETY: groups and the rest behind them lie within the bytes that the caller guarantees.
        unsafe {
            while left >= GROUP_BYTES {
                self.counted_group::<LAST, REGISTERS>(&mut counters, from, to, GROUP_BYTES);
                (from, to, left) = (from.add(GROUP_BYTES), to.add(GROUP_BYTES), left - GROUP_BYTES);
            }
            match left.div_ceil(64) {
                0 => {}
                1 => self.counted_group::<LAST, 1>(&mut counters, from, to, left),
                2 => self.counted_group::<LAST, 2>(&mut counters, from, to, left),
                3 => self.counted_group::<LAST, 3>(&mut counters, from, to, left),
                _ => self.counted_group::<LAST, 4>(&mut counters, from, to, left),
            }
        }
    }

    /// Processes the next `len` bytes, which fill all of `N` registers except part of the last.
    ///
    /// # Safety
    /// Needs AVX-512 and VAES; `len` bytes must be readable at `from` and writable at `to`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,vaes,bmi2")]
    unsafe fn counted_group<const LAST: usize, const N: usize>(
        &self,
        counters: &mut __m512i,
        from: *const u8,
        to: *mut u8,
        len: usize,
    ) {
        // The counter is big-endian; its bytes are swapped when it is used.
        let turn = _mm512_set4_epi32(0x0001_0203, 0x0405_0607, 0x0809_0a0b, 0x0c0d_0e0f);
        let step = _mm512_set_epi64(0, 4, 0, 4, 0, 4, 0, 4);
        let mut state = [_mm512_setzero_si512(); N];
        let mut register = 0;
        while register < N {
            state[register] = _mm512_xor_si512(_mm512_shuffle_epi8(*counters, turn), four_times(&self.keys.rounds[0]));
            *counters = _mm512_add_epi64(*counters, step);
            register += 1;
        }
        let mut round = 1;
        while round < LAST {
            let key = four_times(&self.keys.rounds[round]);
            register = 0;
            while register < N {
                state[register] = _mm512_aesenc_epi128(state[register], key);
                register += 1;
            }
            round += 1;
        }
        let key = four_times(&self.keys.rounds[LAST]);
        register = 0;
        while register < N {
            let stream = _mm512_aesenclast_epi128(state[register], key);
            let place = 64 * register;
            // SAFETY: the mask excludes missing bytes; a prefetch reads nothing.
            unsafe {
                ask_ahead::<AHEAD_BYTES>(from, to, place);
                if register + 1 < N {
                    let input = _mm512_loadu_si512(from.add(place).cast());
                    _mm512_storeu_si512(to.add(place).cast(), _mm512_xor_si512(input, stream));
                } else {
                    let mask = _bzhi_u64(u64::MAX, (len - place) as u32);
                    let input = _mm512_maskz_loadu_epi8(mask, from.add(place).cast());
                    _mm512_mask_storeu_epi8(to.add(place).cast(), mask, _mm512_xor_si512(input, stream));
                }
            }
            register += 1;
        }
    }
}

/// Transposes four registers from four blocks of one message to one block of four, and back.
#[inline]
#[target_feature(enable = "avx512f")]
fn across([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    let (ab_low, ab_high) = (_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0xee>(a, b));
    let (cd_low, cd_high) = (_mm512_shuffle_i32x4::<0x44>(c, d), _mm512_shuffle_i32x4::<0xee>(c, d));
    [
        _mm512_shuffle_i32x4::<0x88>(ab_low, cd_low),
        _mm512_shuffle_i32x4::<0xdd>(ab_low, cd_low),
        _mm512_shuffle_i32x4::<0x88>(ab_high, cd_high),
        _mm512_shuffle_i32x4::<0xdd>(ab_high, cd_high),
    ]
}

/// A round key in each quarter of a register.
#[inline]
#[target_feature(enable = "avx512f")]
fn four_times(key: &AesBlock) -> __m512i {
    // SAFETY: a round key has sixteen bytes.
    _mm512_broadcast_i32x4(unsafe { _mm_loadu_si128(key.as_ptr().cast()) })
}

/// Prefetches the memory that a batch probably uses next. A prefetch may point anywhere.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn ask_ahead<const BYTES: usize>(from: *const u8, to: *const u8, place: usize) {
    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(BYTES + place).cast());
    _mm_prefetch::<_MM_HINT_ET0>(to.wrapping_add(BYTES + place).cast());
}

/// Loads four blocks of each message from `at` on, as registers of four messages each.
///
/// # Safety
/// The CPU must have AVX-512. The blocks must exist.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn four_quads(
    from: &[*const u8; CHAINED_LANES_WIDE],
    to: &[*mut u8; CHAINED_LANES_WIDE],
    at: usize,
) -> [[__m512i; 4]; FOURS] {
    let mut quads = [[_mm512_setzero_si512(); 4]; FOURS];
    let mut four = 0;
    while four < FOURS {
        let mut lane = 0;
        while lane < 4 {
            ask_ahead::<CHAINED_AHEAD_BYTES>(from[4 * four + lane], to[4 * four + lane], at);
            // SAFETY: guaranteed by the caller.
            quads[four][lane] = unsafe { _mm512_loadu_si512(from[4 * four + lane].add(at).cast()) };
            lane += 1;
        }
        quads[four] = across(quads[four]);
        four += 1;
    }
    quads
}

/// Loads the blocks at `at` of four messages from `first` on.
///
/// # Safety
/// The CPU must have AVX-512. The blocks must exist.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn four_blocks(from: &[*const u8; CHAINED_LANES_WIDE], first: usize, at: usize) -> __m512i {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let one = |lane: usize| _mm_loadu_si128(from[first + lane].add(at).cast());
        let two = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(one(0)), one(1));
        _mm512_inserti32x4::<3>(_mm512_inserti32x4::<2>(two, one(2)), one(3))
    }
}

/// The S-box of each byte, in constant time.
#[target_feature(enable = "aes,sse4.1")]
fn substituted(word: u32) -> u32 {
    _mm_extract_epi32::<0>(_mm_aeskeygenassist_si128::<0>(_mm_set1_epi32(word as i32))) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_stay_in_their_own_memory_when_they_are_moved() {
        assert!(size_of::<AesLanes>() <= 64, "a pointer, what locks its memory, and the number of rounds");
    }
}
