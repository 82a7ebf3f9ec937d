//! Quicksort of words in AVX-512 registers.
//!
//! A partition step compares a vector with the pivot and packs the smaller words to the front of
//! the slice and the others to its back, in place and without a branch on the data. To make room,
//! the first and last few vectors are kept in registers. Each step then reads at the end that has
//! less room. Short slices are sorted by a bitonic network in registers.

use std::arch::x86_64::*;

use super::split::PIVOTS;
use super::vector_word::{VectorWord, first_lanes};

/// Repeats the body for `$index` = 0, 1, …, 15 while it is below `$count`. The compiler does not
/// unroll loops of this size by itself, and vectors that are indexed by a variable would be in
/// memory.
macro_rules! unrolled {
    ($index:ident < $count:expr => $body:block) => {
        unrolled!(@ $index, $count, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $index:ident, $count:expr, $body:block, $($value:literal)*) => {
        $({
            let $index: usize = $value;
            if $index < $count $body
        })*
    };
}

/// Maximum number of vectors that the network in registers sorts.
const NETWORK_VECTORS: usize = 16;

/// Sorts `words`. After `splits_left` partitions, which means that the pivots were bad, the
/// standard library sorts the rest.
///
/// # Safety
/// The CPU must have AVX-512 F, BW, DQ and VL, BMI1, BMI2 and POPCNT.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,popcnt")]
pub(super) unsafe fn quicksort<W: VectorWord>(mut words: &mut [W], mut splits_left: u32) {
    while words.len() > NETWORK_VECTORS * W::LANES {
        if splits_left == 0 {
            return words.sort_unstable();
        }
        splits_left -= 1;
        // SAFETY: the CPU has AVX-512, and the slice is longer than the samples and than the
        // vectors kept in registers.
        let (pivot, below) = unsafe {
            let pivot = choose_pivot(words);
            (pivot, partition::<W, false>(words, pivot))
        };
        if below > 0 {
            let (left, right) = words.split_at_mut(below);
            // SAFETY: the CPU has AVX-512.
            unsafe { quicksort(left, splits_left) };
            words = right;
        } else {
            // SAFETY: as above. The pivot is the smallest word here, so all words equal to it are
            // in their final position once they are at the front.
            let equal = unsafe { partition::<W, true>(words, pivot) };
            words = &mut words[equal..];
        }
    }
    // SAFETY: the CPU has AVX-512, and the slice fits the network.
    unsafe { sort_short(words) };
}

/// The median of a sample of the slice, which must be longer than four vectors.
#[inline(always)]
unsafe fn choose_pivot<W: VectorWord>(words: &[W]) -> W {
    let mut samples = [W::LAST; 64];
    let count = if words.len() > 2048 { 4 * W::LANES } else { W::LANES };
    let step = words.len() / count;
    for (index, sample) in samples[..count].iter_mut().enumerate() {
        *sample = words[index * step + step / 2];
    }
    // SAFETY: the caller guarantees AVX-512; four vectors of either width fit the array.
    unsafe { sort_short(&mut samples[..count]) };
    samples[count / 2]
}

/// Vectors that are read at a time.
const STEP: usize = 8;
/// Distance of prefetching, in steps. Software prefetches, because the next end to read is known
/// too late for the CPU's own prefetcher.
const FETCH_AHEAD_STEPS: usize = 4;

/// Moves the words below the pivot (or, with `UP_TO`, the words not above it) to the front, and
/// returns their number. The slice must be longer than two steps.
#[inline(always)]
unsafe fn partition<W: VectorWord, const UP_TO: bool>(words: &mut [W], pivot: W) -> usize {
    let step = STEP * W::LANES;
    let start = words.as_mut_ptr();
    let mut split = WritePositions::<W, UP_TO> { start, low: 0, high: words.len() };
    let (mut read, mut end) = (step, words.len() - step);
    // SAFETY: the first and last step are kept here, which leaves two steps of room. Each step is
    // read from the end with less room, so that both ends have at least one step of room before it
    // is written, and one vector before each vector. At the very end, the kept vectors fill the
    // rest, one whole vector at a time. All accesses are inside the slice.
    unsafe {
        let (mut first, mut last, mut vectors) =
            ([W::splat(pivot); STEP], [W::splat(pivot); STEP], [W::splat(pivot); STEP]);
        unrolled!(index < STEP => {
            first[index] = W::load(start.add(index * W::LANES));
            last[index] = W::load(start.add(end + index * W::LANES));
        });
        let pivots = W::splat(pivot);
        while end - read >= step {
            let front = front_has_less_room(read - split.low, split.high - end);
            let from = take_side(&mut read, &mut end, step, front);
            let ahead = FETCH_AHEAD_STEPS * step;
            let ahead = start.wrapping_add(from.wrapping_add(ahead & front).wrapping_sub(ahead & !front));
            unrolled!(index < STEP => {
                _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add(index * W::LANES).cast());
                vectors[index] = W::load(start.add(from + index * W::LANES));
            });
            unrolled!(index < STEP => { split.put(vectors[index], pivots) });
        }
        while end - read >= W::LANES {
            let front = front_has_less_room(read - split.low, split.high - end);
            let from = take_side(&mut read, &mut end, W::LANES, front);
            split.put(W::load(start.add(from)), pivots);
        }
        if read < end {
            split.put_some(W::load_some(start.add(read), end - read), end - read, pivots);
        }
        unrolled!(index < STEP => { split.put(first[index], pivots) });
        unrolled!(index < STEP => { split.put(last[index], pivots) });
    }
    split.low
}

/// All bits set if the front has less room to write to than the back, or as much. The side changes
/// randomly, so this is arithmetic and not a branch.
#[inline(always)]
fn front_has_less_room(front: usize, back: usize) -> usize {
    usize::from(front <= back).wrapping_neg()
}

/// Takes `count` words from the front if all bits of `front` are set, else from the back, and
/// returns their start.
#[inline(always)]
fn take_side(read: &mut usize, end: &mut usize, count: usize, front: usize) -> usize {
    let from = (*read & front) | ((*end - count) & !front);
    *read += count & front;
    *end -= count & !front;
    from
}

/// The write positions of the packed words: upwards from `low`, downwards from `high`.
struct WritePositions<W, const UP_TO: bool> {
    start: *mut W,
    low: usize,
    high: usize,
}

impl<W: VectorWord, const UP_TO: bool> WritePositions<W, UP_TO> {
    /// The lanes that belong to the front.
    #[inline(always)]
    unsafe fn side(vector: __m512i, pivots: __m512i) -> u16 {
        // SAFETY: the caller guarantees AVX-512.
        unsafe { if UP_TO { !W::below(pivots, vector) } else { W::below(vector, pivots) } }
    }

    /// Writes a vector. There must be room for a whole vector at both ends, and for two if the ends
    /// meet. The very last vector is an exception: it fills the room exactly.
    #[inline(always)]
    unsafe fn put(&mut self, vector: __m512i, pivots: __m512i) {
        // SAFETY: the caller guarantees AVX-512 and the room. The whole vector is written to both
        // ends: the words that do not belong to an end are written into its free room.
        unsafe {
            let mask = Self::side(vector, pivots) & first_lanes(W::LANES);
            let count = mask.count_ones() as usize;
            let ordered = W::order(mask, vector);
            W::store(self.start.add(self.low), ordered);
            W::store(self.start.add(self.high - W::LANES), ordered);
            self.low += count;
            self.high -= W::LANES - count;
        }
    }

    /// Packs the first `len` words of a vector and writes nothing else.
    #[inline(always)]
    unsafe fn put_some(&mut self, vector: __m512i, len: usize, pivots: __m512i) {
        // SAFETY: as in `put`, for `len` words.
        unsafe {
            let mask = Self::side(vector, pivots) & first_lanes(len);
            let count = mask.count_ones() as usize;
            W::store_some(self.start.add(self.low), count, W::pack(mask, vector));
            self.low += count;
            self.high -= len - count;
            W::store_some(self.start.add(self.high), len - count, W::pack(!mask & first_lanes(len), vector));
        }
    }
}

/// Sorts at most [`NETWORK_VECTORS`] vectors of words.
#[inline(always)]
unsafe fn sort_short<W: VectorWord>(words: &mut [W]) {
    let vectors = words.len().div_ceil(W::LANES);
    // SAFETY: the caller guarantees AVX-512; each network has room for that many vectors.
    unsafe {
        match vectors {
            0 => {}
            1 => sort_network::<W, 1>(words),
            2 => sort_network::<W, 2>(words),
            3 | 4 => sort_network::<W, 4>(words),
            5..=8 => sort_network::<W, 8>(words),
            _ => sort_network::<W, NETWORK_VECTORS>(words),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,popcnt")]
unsafe fn sort_network<W: VectorWord, const N: usize>(words: &mut [W]) {
    let start = words.as_mut_ptr();
    // SAFETY: the CPU has AVX-512; only words of the slice are read and written.
    unsafe {
        let mut vectors = [W::splat(W::LAST); N];
        unrolled!(index < N => {
            let rest = words.len().saturating_sub(index * W::LANES).min(W::LANES);
            vectors[index] = sort_vector::<W>(W::load_some(start.wrapping_add(index * W::LANES), rest));
        });
        merge_pairs::<W, 1, N>(&mut vectors);
        merge_pairs::<W, 2, N>(&mut vectors);
        merge_pairs::<W, 4, N>(&mut vectors);
        merge_pairs::<W, 8, N>(&mut vectors);
        unrolled!(index < N => {
            let rest = words.len().saturating_sub(index * W::LANES).min(W::LANES);
            W::store_some(start.wrapping_add(index * W::LANES), rest, vectors[index]);
        });
    }
}

/// The lanes that receive the greater word when lane `i` is compared with lane `i ^ flip`.
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

/// Compares lane `i` with lane `i ^ FLIP` and puts the smaller word first.
#[inline(always)]
unsafe fn compare<W: VectorWord, const FLIP: usize>(vector: __m512i) -> __m512i {
    // SAFETY: the caller guarantees AVX-512.
    unsafe {
        let other = W::exchange::<FLIP>(vector);
        W::greater_into(W::smaller(vector, other), const { upper_lanes(FLIP) }, vector, other)
    }
}

/// Sorts the lanes of one vector.
#[inline(always)]
unsafe fn sort_vector<W: VectorWord>(mut vector: __m512i) -> __m512i {
    // SAFETY: the caller guarantees AVX-512.
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

/// Merges neighbouring sorted runs of `RUN` vectors. All loops are unrolled, so that the vectors
/// stay in registers.
#[inline(always)]
unsafe fn merge_pairs<W: VectorWord, const RUN: usize, const N: usize>(vectors: &mut [__m512i; N]) {
    if N < 2 * RUN {
        return;
    }
    // SAFETY: the caller guarantees AVX-512.
    unsafe {
        let runs = *vectors;
        unrolled!(low < N => {
            if low & RUN == 0 {
                // Reversing the second run makes the pair bitonic; the smaller words of each
                // comparison then form the first half.
                let b = runs[(low ^ (2 * RUN - 1)) % N];
                let b = if W::LANES == 16 { W::exchange::<15>(b) } else { W::exchange::<7>(b) };
                vectors[low] = W::smaller(runs[low], b);
                vectors[(low + RUN) % N] = W::greater(runs[low], b);
            }
        });
        if RUN >= 8 {
            clean::<W, 4, N>(vectors);
        }
        if RUN >= 4 {
            clean::<W, 2, N>(vectors);
        }
        if RUN >= 2 {
            clean::<W, 1, N>(vectors);
        }
        unrolled!(index < N => {
            let vector = vectors[index];
            let wide = if W::LANES == 16 { compare::<W, 8>(vector) } else { vector };
            vectors[index] = compare::<W, 1>(compare::<W, 2>(compare::<W, 4>(wide)));
        });
    }
}

/// Compares vectors `DISTANCE` apart, lane by lane.
#[inline(always)]
unsafe fn clean<W: VectorWord, const DISTANCE: usize, const N: usize>(vectors: &mut [__m512i; N]) {
    // SAFETY: the caller guarantees AVX-512.
    unsafe {
        unrolled!(low < N => {
            if low & DISTANCE == 0 {
                let (a, b) = (vectors[low], vectors[(low + DISTANCE) % N]);
                vectors[low] = W::smaller(a, b);
                vectors[(low + DISTANCE) % N] = W::greater(a, b);
            }
        });
    }
}

/// Adds to `counts` the number of words below each pivot.
///
/// # Safety
/// As for [`quicksort`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,popcnt")]
pub(super) unsafe fn count_below<W: VectorWord>(words: &[W], pivots: &[W; PIVOTS], counts: &mut [usize; PIVOTS]) {
    let (vectors, rest) = words.split_at(words.len() / W::LANES * W::LANES);
    for (count, pivot) in counts.iter_mut().zip(pivots) {
        // SAFETY: the CPU has AVX-512. Every vector is inside the slice, and missing words are read
        // as the last word, which no pivot is above.
        unsafe {
            let pivot = W::splat(*pivot);
            let below = |vector| (W::below(vector, pivot) & first_lanes(W::LANES)).count_ones() as usize;
            *count += vectors.chunks_exact(W::LANES).map(|vector| below(W::load(vector.as_ptr()))).sum::<usize>();
            *count += below(W::load_some(rest.as_ptr(), rest.len()));
        }
    }
}

/// Writes every word to the write position of its bucket and advances the position. Bucket `i`
/// receives the words that are below pivot `i` and not below earlier pivots; the last bucket
/// receives the others.
///
/// # Safety
/// As for [`quicksort`]. `out` must be writable from each bucket's position to its end, with room
/// for all words of the bucket.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,bmi1,bmi2,popcnt")]
pub(super) unsafe fn split<W: VectorWord>(
    words: &[W],
    pivots: &[W; PIVOTS],
    places: &mut [usize; PIVOTS + 1],
    ends: &[usize; PIVOTS + 1],
    out: *mut W,
) {
    // SAFETY: the CPU has AVX-512. A whole vector is written only if it fits the bucket, and the
    // surplus words are overwritten later. Reads are inside the slice.
    unsafe {
        let pivots = pivots.map(|pivot| W::splat(pivot));
        let mut put = |vector, lanes: u16| {
            let mut below = 0;
            unrolled!(bucket < PIVOTS + 1 => {
                let upto = if bucket < PIVOTS { W::below(vector, pivots[bucket]) & lanes } else { lanes };
                let mask = upto & !std::mem::replace(&mut below, upto);
                let (packed, count) = (W::pack(mask, vector), mask.count_ones() as usize);
                let place = places[bucket];
                if place + W::LANES <= ends[bucket] {
                    W::store(out.add(place), packed);
                } else {
                    W::store_some(out.add(place), count, packed);
                }
                places[bucket] = place + count;
            });
            debug_assert_eq!(below, lanes, "every word has a bucket");
        };
        let (vectors, rest) = words.split_at(words.len() / W::LANES * W::LANES);
        vectors.chunks_exact(W::LANES).for_each(|vector| put(W::load(vector.as_ptr()), first_lanes(W::LANES)));
        put(W::load_some(rest.as_ptr(), rest.len()), first_lanes(rest.len()));
    }
}
