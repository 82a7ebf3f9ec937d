//! AES-GCM of one message, sixteen blocks at a time, with instructions for four AES blocks and four
//! GHASH products each.
//!
//! * Counters are integers whose lowest 32 bits count; they are byte-swapped to blocks when used.
//! * The hash of sixteen blocks is the sum of their products with H^16 to H^1, reduced once.
//!   Powers of H are stored multiplied by x, so that a product needs no shift. Zeros follow H^1,
//!   so that a shorter group uses its own powers and missing blocks contribute nothing.
//! * Sixteen blocks are hashed between the AES rounds of the next sixteen, which do not depend on
//!   them. The last blocks are hashed together with the lengths.

use std::arch::x86_64::*;

use panoply_core::locked::SecretBox;
use zeroize::Zeroize;

use super::aes::{AHEAD_BYTES, AesLanes, ask_ahead};
use crate::cipher::{AesBlock, BLOCK_BYTES};

/// Blocks of a register.
const FOUR: usize = 4;
const REGISTER_BYTES: usize = FOUR * BLOCK_BYTES;
/// Registers of a group.
const REGISTERS: usize = 4;
const GROUP_BLOCKS: usize = REGISTERS * FOUR;
const GROUP_BYTES: usize = GROUP_BLOCKS * BLOCK_BYTES;
/// The index that H^0 would have among the powers: H^17 is at 3, H^16 at the start of a cache line.
const POWERS_END: usize = FOUR + GROUP_BLOCKS;
/// Added to H times x if a bit is shifted out.
const POLYNOMIAL: u128 = 0xc200_0000_0000_0000_0000_0000_0000_0001;
/// Maximal length of a message: half of the range of a 32-bit counter.
pub const GCM_BYTES_MAX: usize = 1 << 35;

/// A key: round keys and powers of H. Their memory does not move when this value is moved, so no
/// copy is left behind.
pub struct GcmLanes {
    keys: SecretBox<Keys>,
    /// The number of the last round: 10, 12 or 14.
    last: u32,
}

/// Wiped when dropped.
#[repr(C, align(64))]
struct Keys {
    /// Each round key four times.
    rounds: [[AesBlock; FOUR]; 15],
    /// H^17 to H^1 from the fourth element on, each multiplied by x, and zeros.
    powers: [u128; POWERS_END + GROUP_BLOCKS],
}

impl Drop for Keys {
    fn drop(&mut self) {
        self.rounds.zeroize();
        self.powers.zeroize();
    }
}

/// Whether this CPU has the instructions for these lanes.
pub fn detected_for_gcm() -> bool {
    super::detected()
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("vpclmulqdq")
        && is_x86_feature_detected!("pclmulqdq")
        && is_x86_feature_detected!("bmi2")
}

impl GcmLanes {
    /// Takes a key of 16, 24 or 32 bytes. `None` if the CPU lacks the instructions.
    pub fn new(key: &[u8]) -> Option<GcmLanes> {
        detected_for_gcm().then_some(())?;
        let expanded = AesLanes::new(key)?;
        let (rounds, last) = expanded.rounds();
        let mut keys =
            SecretBox::new(Keys { rounds: [[[0; BLOCK_BYTES]; FOUR]; 15], powers: [0; POWERS_END + GROUP_BLOCKS] });
        keys.rounds.iter_mut().zip(rounds).for_each(|(four, one)| four.fill(*one));
        let mut lanes = GcmLanes { keys, last };
        // SAFETY: the CPU has the instructions.
        unsafe { lanes.raise() };
        Some(lanes)
    }

    /// Computes the powers.
    ///
    /// # Safety
    /// The CPU must have the instructions, here and below.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,aes,vpclmulqdq,pclmulqdq,bmi2")]
    unsafe fn raise(&mut self) {
        let h = match self.last {
            10 => self.encrypt_one::<10>(_mm_setzero_si128()),
            12 => self.encrypt_one::<12>(_mm_setzero_si128()),
            _ => self.encrypt_one::<14>(_mm_setzero_si128()),
        };
        let mut bytes = [0; BLOCK_BYTES];
        // SAFETY: a block has sixteen bytes.
        unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), h) };
        let mut first = u128::from_be_bytes(bytes);
        // All ones if a bit is shifted out.
        let leaves = (first >> 127).wrapping_neg();
        first = first << 1 ^ (leaves & POLYNOMIAL);
        self.keys.powers[POWERS_END - 1] = first;
        let last = self.power(POWERS_END - 1);
        for place in (FOUR - 1..POWERS_END - 1).rev() {
            let power = self.power(place + 1);
            // SAFETY: a power has sixteen bytes.
            unsafe { _mm_storeu_si128((&raw mut self.keys.powers[place]).cast(), times(power, last)) };
        }
        bytes.zeroize();
        first.zeroize();
    }

    /// Seals `message` into `text`, which has the same length, and returns the tag. Message and
    /// associated data may have at most [`GCM_BYTES_MAX`] bytes each.
    pub fn seal(&self, nonce: &[u8; 12], associated: &[u8], message: &[u8], text: &mut [u8]) -> AesBlock {
        assert_eq!(message.len(), text.len(), "a text is as long as its message");
        // SAFETY: both slices have this length.
        unsafe { self.apply::<true>(nonce, associated, message.as_ptr(), text.as_mut_ptr(), message.len()) }
    }

    /// Opens `text` into `message`, which has the same length, and returns the expected tag. The
    /// message is authentic only if this equals the text's tag.
    pub fn open(&self, nonce: &[u8; 12], associated: &[u8], text: &[u8], message: &mut [u8]) -> AesBlock {
        assert_eq!(message.len(), text.len(), "a text is as long as its message");
        // SAFETY: both slices have this length.
        unsafe { self.apply::<false>(nonce, associated, text.as_ptr(), message.as_mut_ptr(), text.len()) }
    }

    /// Like [`GcmLanes::seal`], in place.
    pub fn seal_in_place(&self, nonce: &[u8; 12], associated: &[u8], message: &mut [u8]) -> AesBlock {
        let start = message.as_mut_ptr();
        // SAFETY: the slice has this length; every byte is read before it is written.
        unsafe { self.apply::<true>(nonce, associated, start, start, message.len()) }
    }

    /// Like [`GcmLanes::open`], in place.
    pub fn open_in_place(&self, nonce: &[u8; 12], associated: &[u8], text: &mut [u8]) -> AesBlock {
        let start = text.as_mut_ptr();
        // SAFETY: the slice has this length; every byte is read before it is written.
        unsafe { self.apply::<false>(nonce, associated, start, start, text.len()) }
    }

    /// # Safety
    /// `len` bytes must be readable at `from` and writable at `to`; both may be the same, but must
    /// not overlap otherwise.
    #[inline]
    unsafe fn apply<const SEALS: bool>(
        &self,
        nonce: &[u8; 12],
        associated: &[u8],
        from: *const u8,
        to: *mut u8,
        len: usize,
    ) -> AesBlock {
        assert!(len.max(associated.len()) <= GCM_BYTES_MAX, "a message is longer than its counter");
        // SAFETY: a value of this type exists only if the CPU has the instructions; the caller
        // guarantees the rest.
        unsafe {
            match self.last {
                10 => self.apply_rounds::<10, SEALS>(nonce, associated, from, to, len),
                12 => self.apply_rounds::<12, SEALS>(nonce, associated, from, to, len),
                _ => self.apply_rounds::<14, SEALS>(nonce, associated, from, to, len),
            }
        }
    }

    /// # Safety
    /// As above, and the CPU must have the instructions.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,aes,vpclmulqdq,pclmulqdq,bmi2")]
    unsafe fn apply_rounds<const LAST: usize, const SEALS: bool>(
        &self,
        nonce: &[u8; 12],
        associated: &[u8],
        mut from: *const u8,
        mut to: *mut u8,
        len: usize,
    ) -> AesBlock {
        // Loaded in the two parts in which it was written: one load over both would wait until the
        // earlier stores, of whole messages, have reached the cache.
        let [a, b, c, d, e, f, g, h, ref rest @ ..] = *nonce;
        let (front, back) = (u64::from_le_bytes([a, b, c, d, e, f, g, h]), u32::from_le_bytes(*rest));
        let start = _mm_set_epi64x((1 << 56 | u64::from(back)) as i64, front as i64);
        let mut counters = _mm512_add_epi32(
            _mm512_shuffle_epi8(_mm512_broadcast_i32x4(start), turn()),
            _mm512_set_epi32(0, 0, 0, 4, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 1),
        );
        let mut sum = if associated.is_empty() { _mm_setzero_si128() } else { self.hashed(associated) };
        let mut left = len;
        // The blocks of a sealed group, to be hashed with the next one.
        let mut blocks = [_mm512_setzero_si512(); REGISTERS];
        // The last group is left, even if it is whole. SAFETY: groups lie within the bytes that the
        // caller guarantees; a prefetch reads nothing.
        unsafe {
            if SEALS && left > GROUP_BYTES {
                let streams = self.streams::<LAST, REGISTERS, false>(&mut counters, &blocks, &mut sum);
                sealed_group(from, to, &streams, &mut blocks);
                (from, to, left) = (from.add(GROUP_BYTES), to.add(GROUP_BYTES), left - GROUP_BYTES);
                while left > GROUP_BYTES {
                    let streams = self.streams::<LAST, REGISTERS, true>(&mut counters, &blocks, &mut sum);
                    sealed_group(from, to, &streams, &mut blocks);
                    (from, to, left) = (from.add(GROUP_BYTES), to.add(GROUP_BYTES), left - GROUP_BYTES);
                }
            }
            while !SEALS && left > GROUP_BYTES {
                let mut texts = [_mm512_setzero_si512(); REGISTERS];
                let mut register = 0;
                while register < REGISTERS {
                    texts[register] = _mm512_loadu_si512(from.add(register * REGISTER_BYTES).cast());
                    blocks[register] = _mm512_shuffle_epi8(texts[register], turn());
                    register += 1;
                }
                let streams = self.streams::<LAST, REGISTERS, true>(&mut counters, &blocks, &mut sum);
                register = 0;
                while register < REGISTERS {
                    let place = register * REGISTER_BYTES;
                    ask_ahead::<AHEAD_BYTES>(from, to, place);
                    _mm512_storeu_si512(to.add(place).cast(), _mm512_xor_si512(texts[register], streams[register]));
                    register += 1;
                }
                (from, to, left) = (from.add(GROUP_BYTES), to.add(GROUP_BYTES), left - GROUP_BYTES);
            }
            let lens = _mm_set_epi64x(associated.len() as i64 * 8, len as i64 * 8);
            let waits = SEALS && len > GROUP_BYTES;
            let tag = match left.div_ceil(REGISTER_BYTES) {
                0 => times(_mm_xor_si128(sum, lens), self.power(POWERS_END - 1)),
                1 => self.end::<LAST, SEALS, 1>(counters, waits.then_some(&blocks), sum, lens, from, to, left),
                2 => self.end::<LAST, SEALS, 2>(counters, waits.then_some(&blocks), sum, lens, from, to, left),
                3 => self.end::<LAST, SEALS, 3>(counters, waits.then_some(&blocks), sum, lens, from, to, left),
                _ => self.end::<LAST, SEALS, 4>(counters, waits.then_some(&blocks), sum, lens, from, to, left),
            };
            // Independent of the hash. Computed here and not earlier, so that no round key is held
            // meanwhile, in registers or spilled.
            let over_tag = self.encrypt_one::<LAST>(start);
            let tag = _mm_xor_si128(_mm_shuffle_epi8(tag, _mm512_castsi512_si128(turn())), over_tag);
            let mut bytes = [0; BLOCK_BYTES];
            _mm_storeu_si128(bytes.as_mut_ptr().cast(), tag);
            bytes
        }
    }

    /// Processes the last bytes (at least one), in at most `N` registers, and hashes them and the
    /// lengths behind the pending blocks.
    ///
    /// # Safety
    /// The CPU must have the instructions. `len` bytes must be readable at `from` and writable at
    /// `to`.
    #[inline]
    #[allow(clippy::too_many_arguments)] // All of them are registers.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,aes,vpclmulqdq,pclmulqdq,bmi2")]
    unsafe fn end<const LAST: usize, const SEALS: bool, const N: usize>(
        &self,
        mut counters: __m512i,
        waiting: Option<&[__m512i; REGISTERS]>,
        mut sum: __m128i,
        lens: __m128i,
        from: *const u8,
        to: *mut u8,
        len: usize,
    ) -> __m128i {
        let streams = match waiting {
            Some(blocks) => self.streams::<LAST, N, true>(&mut counters, blocks, &mut sum),
            None => self.streams::<LAST, N, false>(&mut counters, &[_mm512_setzero_si512(); REGISTERS], &mut sum),
        };
        let count = len.div_ceil(BLOCK_BYTES);
        // One power more than there are blocks: the lengths are the last block.
        let powers = &self.keys.powers[POWERS_END - 1 - count..][..N * FOUR];
        let (mut low, mut middle, mut high) = (_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512());
        let last = _mm512_zextsi128_si512(self.power(POWERS_END - 1));
        add_product(_mm512_zextsi128_si512(lens), last, &mut low, &mut middle, &mut high);
        let mut register = 0;
        while register < N {
            let place = register * REGISTER_BYTES;
            let full = register + 1 < N;
            let mask = if full { u64::MAX } else { _bzhi_u64(u64::MAX, (len - place) as u32) };
            // SAFETY: the mask excludes missing bytes; four powers are 64 bytes.
            unsafe {
                let input = _mm512_maskz_loadu_epi8(mask, from.add(place).cast());
                let made = _mm512_xor_si512(input, streams[register]);
                _mm512_mask_storeu_epi8(to.add(place).cast(), mask, made);
                ask_ahead::<AHEAD_BYTES>(from, to, place);
                let text = if SEALS { _mm512_maskz_mov_epi8(mask, made) } else { input };
                let mut block = _mm512_shuffle_epi8(text, turn());
                if register == 0 {
                    block = _mm512_xor_si512(block, _mm512_zextsi128_si512(sum));
                }
                let power = _mm512_loadu_si512(powers.as_ptr().add(register * FOUR).cast());
                add_product(block, power, &mut low, &mut middle, &mut high);
            }
            register += 1;
        }
        folded(reduced(low, middle, high))
    }

    /// Key streams for the next `N` registers. With `HASHES`, a whole group of blocks is hashed
    /// between the rounds.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,aes,vpclmulqdq,pclmulqdq,bmi2")]
    fn streams<const LAST: usize, const N: usize, const HASHES: bool>(
        &self,
        counters: &mut __m512i,
        blocks: &[__m512i; REGISTERS],
        sum: &mut __m128i,
    ) -> [__m512i; N] {
        let (turn, step) = (turn(), _mm512_set_epi32(0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4));
        let mut streams = [_mm512_setzero_si512(); N];
        let mut register = 0;
        while register < N {
            streams[register] = _mm512_xor_si512(_mm512_shuffle_epi8(*counters, turn), self.round(0));
            *counters = _mm512_add_epi32(*counters, step);
            register += 1;
        }
        let (mut low, mut middle, mut high) = (_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512());
        let mut round = 1;
        while round < LAST {
            let key = self.round(round);
            register = 0;
            while register < N {
                streams[register] = _mm512_aesenc_epi128(streams[register], key);
                register += 1;
            }
            if HASHES && round <= REGISTERS {
                let mut block = blocks[round - 1];
                if round == 1 {
                    block = _mm512_xor_si512(block, _mm512_zextsi128_si512(*sum));
                }
                // SAFETY: four powers are 64 bytes.
                let power = unsafe { _mm512_loadu_si512(self.keys.powers[round * FOUR..][..FOUR].as_ptr().cast()) };
                add_product(block, power, &mut low, &mut middle, &mut high);
            }
            if HASHES && round == REGISTERS + 1 {
                *sum = folded(reduced(low, middle, high));
            }
            round += 1;
        }
        register = 0;
        while register < N {
            streams[register] = _mm512_aesenclast_epi128(streams[register], self.round(LAST));
            register += 1;
        }
        streams
    }

    /// The hash of the associated data, padded to whole blocks.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,vaes,aes,vpclmulqdq,pclmulqdq,bmi2")]
    fn hashed(&self, associated: &[u8]) -> __m128i {
        let mut sum = _mm_setzero_si128();
        for part in associated.chunks(GROUP_BYTES) {
            let count = part.len().div_ceil(BLOCK_BYTES);
            let powers = &self.keys.powers[POWERS_END - count..];
            let (mut low, mut middle, mut high) =
                (_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512());
            for (register, bytes) in part.chunks(REGISTER_BYTES).enumerate() {
                let mask = _bzhi_u64(u64::MAX, bytes.len() as u32);
                // SAFETY: the mask excludes missing bytes.
                let bytes = unsafe { _mm512_maskz_loadu_epi8(mask, bytes.as_ptr().cast()) };
                let mut block = _mm512_shuffle_epi8(bytes, turn());
                if register == 0 {
                    block = _mm512_xor_si512(block, _mm512_zextsi128_si512(sum));
                }
                // SAFETY: four powers are 64 bytes.
                let power = unsafe { _mm512_loadu_si512(powers[register * FOUR..][..FOUR].as_ptr().cast()) };
                add_product(block, power, &mut low, &mut middle, &mut high);
            }
            sum = folded(reduced(low, middle, high));
        }
        sum
    }

    /// A round key, four times.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn round(&self, round: usize) -> __m512i {
        // SAFETY: four blocks are 64 bytes.
        unsafe { _mm512_loadu_si512(self.keys.rounds[round].as_ptr().cast()) }
    }

    /// One of the powers.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn power(&self, place: usize) -> __m128i {
        // SAFETY: a power has sixteen bytes.
        unsafe { _mm_loadu_si128((&raw const self.keys.powers[place]).cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,aes")]
    fn encrypt_one<const LAST: usize>(&self, block: __m128i) -> __m128i {
        // SAFETY: a round key has sixteen bytes.
        let key = |round: usize| unsafe { _mm_loadu_si128(self.keys.rounds[round].as_ptr().cast()) };
        let mut block = _mm_xor_si128(block, key(0));
        let mut round = 1;
        while round < LAST {
            block = _mm_aesenc_si128(block, key(round));
            round += 1;
        }
        _mm_aesenclast_si128(block, key(LAST))
    }
}

/// Seals a group with its key streams; `blocks` then has the blocks to be hashed.
///
/// # Safety
/// The CPU must have AVX-512. A group must be readable at `from` and writable at `to`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn sealed_group(
    from: *const u8,
    to: *mut u8,
    streams: &[__m512i; REGISTERS],
    blocks: &mut [__m512i; REGISTERS],
) {
    let mut register = 0;
    while register < REGISTERS {
        let place = register * REGISTER_BYTES;
        // SAFETY: guaranteed by the caller.
        unsafe {
            let made = _mm512_xor_si512(_mm512_loadu_si512(from.add(place).cast()), streams[register]);
            ask_ahead::<AHEAD_BYTES>(from, to, place);
            _mm512_storeu_si512(to.add(place).cast(), made);
            blocks[register] = _mm512_shuffle_epi8(made, turn());
        }
        register += 1;
    }
}

/// The byte swap between blocks and integers.
#[inline]
#[target_feature(enable = "avx512f")]
fn turn() -> __m512i {
    _mm512_set4_epi32(0x0001_0203, 0x0405_0607, 0x0809_0a0b, 0x0c0d_0e0f)
}

/// Adds four unreduced products.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn add_product(a: __m512i, b: __m512i, low: &mut __m512i, middle: &mut __m512i, high: &mut __m512i) {
    *low = _mm512_xor_si512(*low, _mm512_clmulepi64_epi128::<0x00>(a, b));
    *high = _mm512_xor_si512(*high, _mm512_clmulepi64_epi128::<0x11>(a, b));
    let (one, other) = (_mm512_clmulepi64_epi128::<0x01>(a, b), _mm512_clmulepi64_epi128::<0x10>(a, b));
    *middle = _mm512_ternarylogic_epi64::<0x96>(*middle, one, other);
}

/// Reduces four products modulo the polynomial. Half of `middle` belongs to either side. First the
/// lowest 64 bits are cancelled, then the next.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn reduced(low: __m512i, middle: __m512i, high: __m512i) -> __m512i {
    let polynomial = _mm512_set1_epi64((POLYNOMIAL >> 64) as i64);
    let turned = _mm512_shuffle_epi32::<0x4e>(low);
    let middle = _mm512_ternarylogic_epi64::<0x96>(middle, turned, _mm512_clmulepi64_epi128::<0x00>(low, polynomial));
    let turned = _mm512_shuffle_epi32::<0x4e>(middle);
    _mm512_ternarylogic_epi64::<0x96>(high, turned, _mm512_clmulepi64_epi128::<0x00>(middle, polynomial))
}

/// The sum of four numbers.
#[inline]
#[target_feature(enable = "avx512f")]
fn folded(four: __m512i) -> __m128i {
    let two = _mm256_xor_si256(_mm512_castsi512_si256(four), _mm512_extracti64x4_epi64::<1>(four));
    _mm_xor_si128(_mm256_castsi256_si128(two), _mm256_extracti128_si256::<1>(two))
}

/// The product of two numbers, one of which is multiplied by x.
#[inline]
#[target_feature(enable = "avx512f,vpclmulqdq")]
fn times(a: __m128i, b: __m128i) -> __m128i {
    let (mut low, mut middle, mut high) = (_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512());
    add_product(_mm512_zextsi128_si512(a), _mm512_zextsi128_si512(b), &mut low, &mut middle, &mut high);
    _mm512_castsi512_si128(reduced(low, middle, high))
}
