//! Tables of a point's multiples. Every lookup reads the whole window: its entries lie in
//! registers, from which each lane selects its own. So neither a branch nor an address depends on a
//! digit.
//!
//! Window `i` of `bits` bits has the multiples 1 to 2^(bits - 1) of the point times 2^(bits i);
//! negative digits use the negated entry.

use std::arch::x86_64::*;

use super::number::U256;

/// Lanes of a register.
pub(super) const LANES: usize = 8;
/// Words of a register: one limb of this many entries.
const WORDS: usize = 16;

/// One limb of sixteen entries.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct LimbRow([i32; WORDS]);

/// A table whose entries have `LIMBS` limbs, for windows of `6 + log2(PAIRS)` bits: limb after
/// limb, pairs of rows.
pub(super) struct Table<const LIMBS: usize, const PAIRS: usize>(Vec<[[[LimbRow; 2]; PAIRS]; LIMBS]>);

/// The digits of one window: indices of entries, with signs.
pub(super) struct Digit {
    index: __m512i,
    /// The lanes whose digit is negative.
    pub is_negative: __mmask8,
    /// The lanes whose digit is zero.
    pub is_zero: __mmask8,
}

/// Digits of eight numbers, window after window.
pub(super) type Digits = Vec<[i16; LANES]>;

impl<const LIMBS: usize, const PAIRS: usize> Table<LIMBS, PAIRS> {
    /// Bits of a window.
    pub const BITS: usize = 6 + PAIRS.ilog2() as usize;
    /// Entries of a window.
    pub const ENTRIES: usize = 32 * PAIRS;
    /// Windows of a number below 2^255.
    pub const WINDOWS: usize = 255_usize.div_ceil(Self::BITS) + (255 % Self::BITS == 0) as usize;

    /// A table of zeros.
    pub fn new() -> Self {
        Table(vec![[[[LimbRow([0; WORDS]); 2]; PAIRS]; LIMBS]; Self::WINDOWS])
    }

    /// Sets one limb of the entry for `times` times the point; `times` begins with 1.
    pub fn set(&mut self, window: usize, times: usize, limb: usize, value: i64) {
        let entry = times - 1;
        self.0[window][limb][entry / 32][entry / WORDS % 2].0[entry % WORDS] = value as i32;
    }

    /// The digits' entries, without their signs: limbs in the lower halves of the lanes, with
    /// arbitrary upper halves. The entry of a zero digit is arbitrary.
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn entries(&self, window: usize, digit: &Digit) -> [__m512i; LIMBS] {
        let rows = &self.0[window];
        std::array::from_fn(|limb| {
            let pair = |pair: usize| {
                let [low, high] = &rows[limb][pair % PAIRS];
                // SAFETY: a row is 64 bytes, aligned.
                let (low, high) = unsafe { (load(low), load(high)) };
                _mm512_permutex2var_epi32(low, digit.index, high)
            };
            let bit = |bit: i64| _mm512_test_epi64_mask(digit.index, _mm512_set1_epi64(bit));
            match PAIRS {
                1 => pair(0),
                2 => _mm512_mask_blend_epi64(bit(32), pair(0), pair(1)),
                _ => {
                    let low = _mm512_mask_blend_epi64(bit(32), pair(0), pair(1));
                    let high = _mm512_mask_blend_epi64(bit(32), pair(2), pair(3));
                    _mm512_mask_blend_epi64(bit(64), low, high)
                }
            }
        })
    }

    /// The digits of eight numbers below 2^255, each from -2^(bits - 1) + 1 to 2^(bits - 1). In
    /// lanes with `is_negated` their signs are inverted.
    pub fn digits(numbers: &[U256; LANES], is_negated: [bool; LANES]) -> Digits {
        let mut digits = vec![[0; LANES]; Self::WINDOWS];
        for (lane, number) in numbers.iter().enumerate() {
            let (mut carry, sign) = (0, -i16::from(is_negated[lane]));
            for (window, digits) in digits.iter_mut().enumerate() {
                let digit = bits_of(number, window * Self::BITS, Self::BITS) as i16 + carry;
                carry = ((1 << (Self::BITS - 1)) - digit) >> 15 & 1;
                digits[lane] = ((digit - (carry << Self::BITS)) ^ sign) - sign;
            }
        }
        digits
    }
}

impl Digit {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn new(digits: &[i16; LANES]) -> Digit {
        // SAFETY: eight digits are 16 bytes.
        let digits = _mm512_cvtepi16_epi64(unsafe { _mm_loadu_si128(digits.as_ptr().cast()) });
        Digit {
            index: _mm512_sub_epi64(_mm512_abs_epi64(digits), _mm512_set1_epi64(1)),
            is_negative: _mm512_cmplt_epi64_mask(digits, _mm512_setzero_si512()),
            is_zero: _mm512_cmpeq_epi64_mask(digits, _mm512_setzero_si512()),
        }
    }
}

/// # Safety
/// The CPU must have AVX-512 F.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load(row: &LimbRow) -> __m512i {
    // SAFETY: a row is 64 bytes, aligned.
    unsafe { _mm512_load_si512(row.0.as_ptr().cast()) }
}

/// Up to 32 bits of a number; bits beyond its end are zero.
pub(super) fn bits_of(number: &U256, first: usize, count: usize) -> u64 {
    let (word, shift) = (first / 64, first % 64);
    let low = number.get(word).map_or(0, |word| word >> shift);
    let high = if shift + count > 64 { number.get(word + 1).map_or(0, |word| word << (64 - shift)) } else { 0 };
    (low | high) & ((1 << count) - 1)
}

/// Splits eight numbers into limbs; limb `i` has the bits from `start(i)` to `start(i + 1)`.
pub(super) fn in_limbs<const LIMBS: usize>(
    numbers: &[U256; LANES],
    start: impl Fn(usize) -> usize,
) -> [[i64; LANES]; LIMBS] {
    std::array::from_fn(|limb| {
        let (first, end) = (start(limb), start(limb + 1));
        numbers.each_ref().map(|number| bits_of(number, first, end - first) as i64)
    })
}

/// Loads limbs into registers.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn loaded<const LIMBS: usize>(limbs: &[[i64; LANES]; LIMBS]) -> [__m512i; LIMBS] {
    // SAFETY: eight limbs are 64 bytes.
    std::array::from_fn(|limb| unsafe { _mm512_loadu_si512(limbs[limb].as_ptr().cast()) })
}

/// Stores limbs to memory.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn stored<const LIMBS: usize>(registers: &[__m512i; LIMBS]) -> [[i64; LANES]; LIMBS] {
    std::array::from_fn(|limb| {
        let mut lanes = [0; LANES];
        // SAFETY: eight limbs are 64 bytes.
        unsafe { _mm512_storeu_si512(lanes.as_mut_ptr().cast(), registers[limb]) };
        lanes
    })
}

/// Joins eight numbers from limbs, which must be non-negative and in range.
pub(super) fn from_limbs<const LIMBS: usize>(
    limbs: &[[i64; LANES]; LIMBS],
    start: impl Fn(usize) -> usize,
) -> [U256; LANES] {
    std::array::from_fn(|lane| {
        let mut number = [0; 4];
        for (limb, lanes) in limbs.iter().enumerate() {
            let (word, shift) = (start(limb) / 64, start(limb) % 64);
            let value = u128::from(lanes[lane] as u64) << shift;
            number[word] |= value as u64;
            if let Some(next) = number.get_mut(word + 1) {
                *next |= (value >> 64) as u64;
            }
        }
        number
    })
}
