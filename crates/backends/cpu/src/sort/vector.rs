//! Quicksort of words in AVX-512 registers.
//!
//! A partition step compares a vector with the pivot and packs the smaller words to the front of the slice and the
//! others into a scratch buffer, without a branch on the data. Packed vectors are stored whole: at the front the lanes
//! past the packed ones land on words that were read already, in the scratch buffer they are overwritten by the next
//! store. Short slices are sorted by a bitonic network in registers.

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

/// The lanes that take the greater word when lane `i` is compared with lane `i ^ flip`.
const fn upper_lanes(flip: usize) -> u16 {
    let bit = 1 << flip.ilog2();
    let (mut mask, mut lane) = (0, 0);
    while lane < 16 {
        if lane & bit != 0 {
            mask |= 1 << lane;
        }
        lane += 1;
    }
    mask
}

impl VectorWord for u32 {
    const LANES: usize = 16;
    const LAST: u32 = u32::MAX;
    #[inline(always)]
    unsafe fn load(from: *const u32) -> __m512i {
        // SAFETY: the caller vouches for sixteen readable words and for AVX-512.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_some(from: *const u32, count: usize) -> __m512i {
        // SAFETY: the caller vouches for `count` readable words and for AVX-512; masked lanes are not read.
        unsafe { _mm512_mask_loadu_epi32(_mm512_set1_epi32(-1), first_lanes(count), from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut u32, vector: __m512i) {
        // SAFETY: the caller vouches for sixteen writable words and for AVX-512.
        unsafe { _mm512_storeu_si512(to.cast(), vector) }
    }
    #[inline(always)]
    unsafe fn store_some(to: *mut u32, count: usize, vector: __m512i) {
        // SAFETY: the caller vouches for `count` writable words and for AVX-512; masked lanes are not written.
        unsafe { _mm512_mask_storeu_epi32(to.cast(), first_lanes(count), vector) }
    }
    #[inline(always)]
    unsafe fn smaller(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller vouches for AVX-512.
        unsafe { _mm512_min_epu32(a, b) }
    }
    #[inline(always)]
    unsafe fn greater_into(low: __m512i, mask: u16, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller vouches for AVX-512.
        unsafe { _mm512_mask_max_epu32(low, mask, a, b) }
    }
    #[inline(always)]
    unsafe fn greater(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller vouches for AVX-512.
        unsafe { _mm512_max_epu32(a, b) }
    }
    #[inline(always)]
    unsafe fn exchange<const FLIP: usize>(vector: __m512i) -> __m512i {
        let lanes = const { flipped::<16>(FLIP) };
        // SAFETY: the array holds sixteen words; the caller vouches for AVX-512.
        unsafe { _mm512_permutexvar_epi32(_mm512_loadu_si512(lanes.as_ptr().cast()), vector) }
    }
    #[inline(always)]
    unsafe fn splat(word: u32) -> __m512i {
        // SAFETY: the caller vouches for AVX-512.
        unsafe { _mm512_set1_epi32(word as i32) }
    }
    #[inline(always)]
    unsafe fn below(vector: __m512i, pivot: __m512i) -> u16 {
        // SAFETY: the caller vouches for AVX-512.
        unsafe { _mm512_cmplt_epu32_mask(vector, pivot) }
    }
    #[inline(always)]
    unsafe fn pack(mask: u16, vector: __m512i) -> __m512i {
        // SAFETY: the caller vouches for AVX-512.
        unsafe { _mm512_maskz_compress_epi32(mask, vector) }
    }
}

impl VectorWord for u64 {
    const LANES: usize = 8;
    const LAST: u64 = u64::MAX;
    #[inline(always)]
    unsafe fn load(from: *const u64) -> __m512i {
        // SAFETY: the caller vouches for eight readable words and for AVX-512.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn load_some(from: *const u64, count: usize) -> __m512i {
        // SAFETY: the caller vouches for `count` readable words and for AVX-512; masked lanes are not read.
        unsafe { _mm512_mask_loadu_epi64(_mm512_set1_epi64(-1), first_lanes(count) as u8, from.cast()) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut u64, vector: __m512i) {
        // SAFETY: the caller vouches for eight writable words and for AVX-512.
        unsafe { _mm512_storeu_si512(to.cast(), vector) }
    }
    #[inline(always)]
    unsafe fn store_some(to: *mut u64, count: usize, vector: __m512i) {
        // SAFETY: the caller vouches for `count` writable words and for AVX-512; masked lanes are not written.
        unsafe { _mm512_mask_storeu_epi64(to.cast(), first_lanes(count) as u8, vector) }
    }
    #[inline(always)]
    unsafe fn smaller(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller vouches for AVX-512.
        unsafe { _mm512_min_epu64(a, b) }
    }
    #[inline(always)]
    unsafe fn greater_into(low: __m512i, mask: u16, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller vouches for AVX-512.
        unsafe { _mm512_mask_max_epu64(low, mask as u8, a, b) }
    }
    #[inline(always)]
    unsafe fn greater(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller vouches for AVX-512.
        unsafe { _mm512_max_epu64(a, b) }
    }
    #[inline(always)]
    unsafe fn exchange<const FLIP: usize>(vector: __m512i) -> __m512i {
        let lanes = const { flipped::<8>(FLIP) };
        // SAFETY: the array holds eight words; the caller vouches for AVX-512.
        unsafe {
            let lanes = _mm512_cvtepu32_epi64(_mm256_loadu_si256(lanes.as_ptr().cast()));
            _mm512_permutexvar_epi64(lanes, vector)
        }
    }
    #[inline(always)]
    unsafe fn splat(word: u64) -> __m512i {
        // SAFETY: the caller vouches for AVX-512.
        unsafe { _mm512_set1_epi64(word as i64) }
    }
    #[inline(always)]
    unsafe fn below(vector: __m512i, pivot: __m512i) -> u16 {
        // SAFETY: the caller vouches for AVX-512.
        unsafe { u16::from(_mm512_cmplt_epu64_mask(vector, pivot)) }
    }
    #[inline(always)]
    unsafe fn pack(mask: u16, vector: __m512i) -> __m512i {
        // SAFETY: the caller vouches for AVX-512.
        unsafe { _mm512_maskz_compress_epi64(mask as u8, vector) }
    }
}

#[inline(always)]
fn first_lanes(count: usize) -> u16 {
    if count >= 16 { u16::MAX } else { (1 << count) - 1 }
}

/// Vectors that the network in registers sorts at most.
const NETWORK_VECTORS: usize = 8;

/// Sorts `words`. `scratch` must have room for them and one vector more.
///
/// # Safety
/// The CPU must have AVX-512 F, BW, DQ and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,popcnt")]
pub(super) unsafe fn quicksort<W: VectorWord>(mut words: &mut [W], scratch: &mut [W], mut splits_left: u32) {
    assert!(scratch.len() >= words.len() + W::LANES);
    while words.len() > NETWORK_VECTORS * W::LANES {
        if splits_left == 0 {
            return words.sort_unstable();
        }
        splits_left -= 1;
        // SAFETY: AVX-512 is there, the slice is longer than the samples, and the scratch buffer is long enough.
        let (pivot, below) = unsafe {
            let pivot = choose_pivot(words);
            (pivot, partition::<W, false>(words, scratch, pivot))
        };
        if below > 0 {
            let (left, right) = words.split_at_mut(below);
            // SAFETY: AVX-512 is there.
            unsafe { quicksort(left, scratch, splits_left) };
            words = right;
        } else {
            // The pivot is the smallest word: all its equals are in place once they are at the front.
            // SAFETY: as above.
            let equal = unsafe { partition::<W, true>(words, scratch, pivot) };
            words = &mut words[equal..];
        }
    }
    // SAFETY: AVX-512 is there, and the slice fits the network.
    unsafe { sort_short(words) };
}

/// The median of words taken from all over the slice, which must be longer than four vectors.
#[inline(always)]
unsafe fn choose_pivot<W: VectorWord>(words: &[W]) -> W {
    let mut samples = [W::LAST; 64];
    let count = if words.len() > 2048 { 4 * W::LANES } else { W::LANES };
    let step = words.len() / count;
    for (index, sample) in samples[..count].iter_mut().enumerate() {
        *sample = words[index * step + step / 2];
    }
    // SAFETY: the caller vouches for AVX-512; four vectors of either width fit the array.
    unsafe { sort_short(&mut samples[..count]) };
    samples[count / 2]
}

/// Moves the words below the pivot (or, with `UP_TO`, those not above it) to the front; returns how many they are.
#[inline(always)]
unsafe fn partition<W: VectorWord, const UP_TO: bool>(words: &mut [W], scratch: &mut [W], pivot: W) -> usize {
    let (len, front, back) = (words.len(), words.as_mut_ptr(), scratch.as_mut_ptr());
    let (mut read, mut low, mut high) = (0, 0, 0);
    // SAFETY: `low <= read` always, so a whole vector stored at `low` ends within the words that were read; `high` is
    // at most `read`, so a whole vector stored there ends within `len + LANES`. The rest is stored lane by lane.
    unsafe {
        let pivot = W::splat(pivot);
        let side = |vector| if UP_TO { !W::below(pivot, vector) } else { W::below(vector, pivot) };
        while read + 4 * W::LANES <= len {
            let vectors = [0, 1, 2, 3].map(|ahead| W::load(front.add(read + ahead * W::LANES)));
            read += 4 * W::LANES;
            for vector in vectors {
                let mask = side(vector) & first_lanes(W::LANES);
                let count = mask.count_ones() as usize;
                W::store(front.add(low), W::pack(mask, vector));
                W::store(back.add(high), W::pack(!mask, vector));
                low += count;
                high += W::LANES - count;
            }
        }
        while read < len {
            let rest = W::LANES.min(len - read);
            let vector = W::load_some(front.add(read), rest);
            read += rest;
            let mask = side(vector) & first_lanes(rest);
            let count = mask.count_ones() as usize;
            W::store_some(front.add(low), count, W::pack(mask, vector));
            W::store_some(back.add(high), rest - count, W::pack(!mask & first_lanes(rest), vector));
            low += count;
            high += rest - count;
        }
        std::ptr::copy_nonoverlapping(back, front.add(low), high);
    }
    low
}

/// Sorts at most [`NETWORK_VECTORS`] vectors of words.
#[inline(always)]
unsafe fn sort_short<W: VectorWord>(words: &mut [W]) {
    let vectors = words.len().div_ceil(W::LANES);
    // SAFETY: the caller vouches for AVX-512; each network has room for that many vectors.
    unsafe {
        match vectors {
            0 => {}
            1 => sort_network::<W, 1>(words),
            2 => sort_network::<W, 2>(words),
            3 | 4 => sort_network::<W, 4>(words),
            _ => sort_network::<W, NETWORK_VECTORS>(words),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,popcnt")]
unsafe fn sort_network<W: VectorWord, const N: usize>(words: &mut [W]) {
    let start = words.as_mut_ptr();
    // SAFETY: AVX-512 is there; only words of the slice are read and written.
    unsafe {
        let mut vectors = [W::splat(W::LAST); N];
        for (index, vector) in vectors.iter_mut().enumerate() {
            let rest = words.len().saturating_sub(index * W::LANES).min(W::LANES);
            *vector = sort_vector::<W>(W::load_some(start.wrapping_add(index * W::LANES), rest));
        }
        let mut run = 1;
        while run < N {
            for pair in vectors.chunks_exact_mut(2 * run) {
                merge_runs::<W>(pair);
            }
            run *= 2;
        }
        for (index, vector) in vectors.iter().enumerate() {
            let rest = words.len().saturating_sub(index * W::LANES).min(W::LANES);
            W::store_some(start.wrapping_add(index * W::LANES), rest, *vector);
        }
    }
}

/// Compares lane `i` with lane `i ^ FLIP` and puts the smaller word first.
#[inline(always)]
unsafe fn compare<W: VectorWord, const FLIP: usize>(vector: __m512i) -> __m512i {
    // SAFETY: the caller vouches for AVX-512.
    unsafe {
        let other = W::exchange::<FLIP>(vector);
        W::greater_into(W::smaller(vector, other), const { upper_lanes(FLIP) }, vector, other)
    }
}

/// Sorts the lanes of one vector.
#[inline(always)]
unsafe fn sort_vector<W: VectorWord>(mut vector: __m512i) -> __m512i {
    // SAFETY: the caller vouches for AVX-512.
    unsafe {
        vector = compare::<W, 1>(vector);
        vector = compare::<W, 1>(compare::<W, 3>(vector));
        vector = compare::<W, 1>(compare::<W, 2>(compare::<W, 7>(vector)));
        if W::LANES == 16 {
            vector = compare::<W, 1>(compare::<W, 2>(compare::<W, 4>(compare::<W, 15>(vector))));
        }
        vector
    }
}

/// Merges two sorted runs, one after the other in `vectors`, into one.
#[inline(always)]
unsafe fn merge_runs<W: VectorWord>(vectors: &mut [__m512i]) {
    let half = vectors.len() / 2;
    // SAFETY: the caller vouches for AVX-512.
    unsafe {
        // The second run reversed makes the pair bitonic: the smaller of each two words belong to the first half.
        vectors[half..].reverse();
        for index in 0..half {
            let (a, b) = (vectors[index], vectors[half + index]);
            let b = if W::LANES == 16 { W::exchange::<15>(b) } else { W::exchange::<7>(b) };
            vectors[index] = W::smaller(a, b);
            vectors[half + index] = W::greater(a, b);
        }
        let mut distance = half / 2;
        while distance > 0 {
            for index in (0..vectors.len()).filter(|index| index & distance == 0) {
                let (a, b) = (vectors[index], vectors[index + distance]);
                vectors[index] = W::smaller(a, b);
                vectors[index + distance] = W::greater(a, b);
            }
            distance /= 2;
        }
        for vector in vectors {
            let wide = if W::LANES == 16 { compare::<W, 8>(*vector) } else { *vector };
            *vector = compare::<W, 1>(compare::<W, 2>(compare::<W, 4>(wide)));
        }
    }
}
