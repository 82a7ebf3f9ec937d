//! Words in 512-bit vectors: the instructions that sorting is made of, for words of 32 and of 64
//! bits.

use std::arch::x86_64::*;

/// A word that is sorted in 512-bit vectors.
pub(super) trait VectorWord: Copy + Ord {
    /// Words in one vector.
    const LANES: usize;
    /// The word that sorts after all others.
    const LAST: Self;
    /// Reads a vector of words.
    unsafe fn load(from: *const Self) -> __m512i;
    /// Reads the first `count` words, and [`VectorWord::LAST`] for the others.
    unsafe fn load_some(from: *const Self, count: usize) -> __m512i;
    /// Writes a vector of words.
    unsafe fn store(to: *mut Self, vector: __m512i);
    /// Writes the first `count` words.
    unsafe fn store_some(to: *mut Self, count: usize, vector: __m512i);
    /// Lane by lane the smaller word.
    unsafe fn smaller(a: __m512i, b: __m512i) -> __m512i;
    /// `low` with the greater word of `a` and `b` in the lanes of `mask`.
    unsafe fn greater_into(low: __m512i, mask: u16, a: __m512i, b: __m512i) -> __m512i;
    /// Lane by lane the greater word.
    unsafe fn greater(a: __m512i, b: __m512i) -> __m512i;
    /// The vector with lane `i` taken from lane `i ^ flip`.
    unsafe fn exchange<const FLIP: usize>(vector: __m512i) -> __m512i;
    /// The word in every lane.
    unsafe fn splat(word: Self) -> __m512i;
    /// The lanes whose word is below the pivot.
    unsafe fn below(vector: __m512i, pivot: __m512i) -> u16;
    /// The lanes of `mask` moved to the front.
    unsafe fn pack(mask: u16, vector: __m512i) -> __m512i;
    /// The lanes of `mask` moved to the front, the others behind them.
    unsafe fn order(mask: u16, vector: __m512i) -> __m512i;
}

const fn flipped<const LANES: usize>(flip: usize) -> [u32; LANES] {
    let mut lanes = [0; LANES];
    let mut lane = 0;
    while lane < LANES {
        lanes[lane] = (lane ^ flip) as u32;
        lane += 1;
    }
    lanes
}

impl VectorWord for u32 {
    const LANES: usize = 16;
    const LAST: u32 = u32::MAX;
    #[inline(always)]
    unsafe fn load(from: *const u32) -> __m512i {
        // SAFETY: the caller guarantees sixteen readable words and for AVX-512.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_some(from: *const u32, count: usize) -> __m512i {
        // SAFETY: the caller guarantees `count` readable words and for AVX-512; masked lanes are
        // not read.
        unsafe { _mm512_mask_loadu_epi32(_mm512_set1_epi32(-1), first_lanes(count), from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut u32, vector: __m512i) {
        // SAFETY: the caller guarantees sixteen writable words and for AVX-512.
        unsafe { _mm512_storeu_si512(to.cast(), vector) }
    }
    #[inline(always)]
    unsafe fn store_some(to: *mut u32, count: usize, vector: __m512i) {
        // SAFETY: the caller guarantees `count` writable words and for AVX-512; masked lanes are
        // not written.
        unsafe { _mm512_mask_storeu_epi32(to.cast(), first_lanes(count), vector) }
    }
    #[inline(always)]
    unsafe fn smaller(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller guarantees AVX-512.
        unsafe { _mm512_min_epu32(a, b) }
    }
    #[inline(always)]
    unsafe fn greater_into(low: __m512i, mask: u16, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller guarantees AVX-512.
        unsafe { _mm512_mask_max_epu32(low, mask, a, b) }
    }
    #[inline(always)]
    unsafe fn greater(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller guarantees AVX-512.
        unsafe { _mm512_max_epu32(a, b) }
    }
    #[inline(always)]
    unsafe fn exchange<const FLIP: usize>(vector: __m512i) -> __m512i {
        let lanes = const { flipped::<16>(FLIP) };
        // SAFETY: the array holds sixteen words; the caller guarantees AVX-512.
        unsafe { _mm512_permutexvar_epi32(_mm512_loadu_si512(lanes.as_ptr().cast()), vector) }
    }
    #[inline(always)]
    unsafe fn splat(word: u32) -> __m512i {
        // SAFETY: the caller guarantees AVX-512.
        unsafe { _mm512_set1_epi32(word as i32) }
    }
    #[inline(always)]
    unsafe fn below(vector: __m512i, pivot: __m512i) -> u16 {
        // SAFETY: the caller guarantees AVX-512.
        unsafe { _mm512_cmplt_epu32_mask(vector, pivot) }
    }
    #[inline(always)]
    unsafe fn pack(mask: u16, vector: __m512i) -> __m512i {
        // SAFETY: the caller guarantees AVX-512.
        unsafe { _mm512_maskz_compress_epi32(mask, vector) }
    }
    #[inline(always)]
    unsafe fn order(mask: u16, vector: __m512i) -> __m512i {
        const LANE_NUMBERS: u64 = 0xfedc_ba98_7654_3210;
        const SHIFTS: [u32; 16] = [0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28];
        // SAFETY: the caller guarantees AVX-512 and BMI2; the array holds sixteen words.
        unsafe {
            // Four bits for each lane: scalar units sort the lane numbers while the vector units
            // are busy.
            let chosen = _pdep_u64(u64::from(mask), 0x1111_1111_1111_1111) * 15;
            let (front, back) = (_pext_u64(LANE_NUMBERS, chosen), _pext_u64(LANE_NUMBERS, !chosen));
            let half = 2 * mask.count_ones();
            let lanes = front | (back << half) << half;
            let low = _mm512_set1_epi32(lanes as i32);
            let lanes = _mm512_mask_set1_epi32(low, 0xff00, (lanes >> 32) as i32);
            let lanes = _mm512_srlv_epi32(lanes, _mm512_loadu_si512(SHIFTS.as_ptr().cast()));
            // Only the low four bits of a lane number count.
            _mm512_permutexvar_epi32(lanes, vector)
        }
    }
}

impl VectorWord for u64 {
    const LANES: usize = 8;
    const LAST: u64 = u64::MAX;
    #[inline(always)]
    unsafe fn load(from: *const u64) -> __m512i {
        // SAFETY: the caller guarantees eight readable words and for AVX-512.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_some(from: *const u64, count: usize) -> __m512i {
        // SAFETY: the caller guarantees `count` readable words and for AVX-512; masked lanes are
        // not read.
        unsafe { _mm512_mask_loadu_epi64(_mm512_set1_epi64(-1), first_lanes(count) as u8, from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut u64, vector: __m512i) {
        // SAFETY: the caller guarantees eight writable words and for AVX-512.
        unsafe { _mm512_storeu_si512(to.cast(), vector) }
    }
    #[inline(always)]
    unsafe fn store_some(to: *mut u64, count: usize, vector: __m512i) {
        // SAFETY: the caller guarantees `count` writable words and for AVX-512; masked lanes are
        // not written.
        unsafe { _mm512_mask_storeu_epi64(to.cast(), first_lanes(count) as u8, vector) }
    }
    #[inline(always)]
    unsafe fn smaller(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller guarantees AVX-512.
        unsafe { _mm512_min_epu64(a, b) }
    }
    #[inline(always)]
    unsafe fn greater_into(low: __m512i, mask: u16, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller guarantees AVX-512.
        unsafe { _mm512_mask_max_epu64(low, mask as u8, a, b) }
    }
    #[inline(always)]
    unsafe fn greater(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller guarantees AVX-512.
        unsafe { _mm512_max_epu64(a, b) }
    }
    #[inline(always)]
    unsafe fn exchange<const FLIP: usize>(vector: __m512i) -> __m512i {
        let lanes = const { flipped::<8>(FLIP) };
        // SAFETY: the array holds eight words; the caller guarantees AVX-512.
        unsafe {
            let lanes = _mm512_cvtepu32_epi64(_mm256_loadu_si256(lanes.as_ptr().cast()));
            _mm512_permutexvar_epi64(lanes, vector)
        }
    }
    #[inline(always)]
    unsafe fn splat(word: u64) -> __m512i {
        // SAFETY: the caller guarantees AVX-512.
        unsafe { _mm512_set1_epi64(word as i64) }
    }
    #[inline(always)]
    unsafe fn below(vector: __m512i, pivot: __m512i) -> u16 {
        // SAFETY: the caller guarantees AVX-512.
        unsafe { u16::from(_mm512_cmplt_epu64_mask(vector, pivot)) }
    }
    #[inline(always)]
    unsafe fn pack(mask: u16, vector: __m512i) -> __m512i {
        // SAFETY: the caller guarantees AVX-512.
        unsafe { _mm512_maskz_compress_epi64(mask as u8, vector) }
    }
    #[inline(always)]
    unsafe fn order(mask: u16, vector: __m512i) -> __m512i {
        // SAFETY: the caller guarantees AVX-512.
        unsafe {
            let lanes = _mm_cvtsi64_si128(LANES_IN_ORDER[usize::from(mask & 0xff)] as i64);
            _mm512_permutexvar_epi64(_mm512_cvtepu8_epi64(lanes), vector)
        }
    }
}

/// For every mask of eight lanes the numbers of its lanes, then those of the others, one byte each.
static LANES_IN_ORDER: [u64; 256] = {
    let mut table = [0; 256];
    let mut mask = 0;
    while mask < 256 {
        let mut place = 0;
        let mut pass = 0;
        while pass < 16 {
            let (lane, chosen) = (pass % 8, pass < 8);
            if (mask >> lane & 1 == 1) == chosen {
                table[mask] |= (lane as u64) << (8 * place);
                place += 1;
            }
            pass += 1;
        }
        mask += 1;
    }
    table
};

/// The lanes of the first `count` words of a vector.
#[inline(always)]
pub(super) fn first_lanes(count: usize) -> u16 {
    if count >= 16 { u16::MAX } else { (1 << count) - 1 }
}
