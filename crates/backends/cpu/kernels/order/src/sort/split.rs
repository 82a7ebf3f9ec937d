//! Sorting of one long line with a small team whose CPU sorts in vector registers: words are split
//! over a few buckets, then each bucket is sorted by one thread.
//!
//! A few buckets keep a small team busy, and splitting costs no more than the quicksort partitions
//! that it replaces. A large team needs more buckets than fit in registers: see
//! [`spread`](super::spread).

use super::key::Word;
use super::spread::{BLOCK_WORDS, SourceOf, counts_to_starts, sorted_sample};
use crate::parts::DisjointSlice;
use crate::scratch;
use crate::simd::Simd;
use crate::team::Team;

/// Number of words that separate the buckets.
pub(super) const PIVOTS: usize = 7;
const BUCKETS: usize = PIVOTS + 1;
/// Maximum words in the sample that determines the pivots, and the words of the line for each
/// sampled one.
const SAMPLE_WORDS_MAX: usize = 8192;
const SAMPLED_OF_WORDS: usize = 64;
/// Maximum team for which this algorithm is faster: two buckets for each thread.
pub(super) const THREADS_MAX: usize = BUCKETS / 2;

/// The functions that split words of one type in vector registers: those of `vector` with the same
/// names, for a CPU that has their instructions.
pub struct Splitter<W> {
    pub(super) count_below: unsafe fn(&[W], &[W; PIVOTS], &mut [usize; PIVOTS]),
    pub(super) split: SplitFn<W>,
}

/// Arguments: words, pivots, the buckets' write positions, their ends, and the start of the output.
type SplitFn<W> = unsafe fn(&[W], &[W; PIVOTS], &mut [usize; BUCKETS], &[usize; BUCKETS], *mut W);

/// Sorts the words of `source` into `words`; `emit` is as for
/// [`spread::sort`](super::spread::sort).
pub(super) fn sort<W: Word>(
    simd: Simd,
    splitter: &Splitter<W>,
    team: &Team,
    source: &dyn SourceOf<W>,
    words: &mut [W],
    emit: &(dyn Fn(usize, &mut [W]) + Sync),
) {
    let len = words.len();
    if team.threads() == 1 {
        source.fill(0, words);
        W::sort(simd, words);
        return emit(0, words);
    }
    let sample = sorted_sample(simd, source, len, (len / SAMPLED_OF_WORDS).min(SAMPLE_WORDS_MAX));
    let pivots: [W; PIVOTS] = std::array::from_fn(|index| sample[(index + 1) * sample.len() / BUCKETS]);
    let chunks = team.threads() * 4;
    let chunk_len = len.div_ceil(chunks).next_multiple_of(BLOCK_WORDS);
    let range = |chunk: usize| len.min(chunk * chunk_len)..len.min((chunk + 1) * chunk_len);

    let mut counts = scratch::filled([0_usize; BUCKETS], chunks);
    let shared_counts = DisjointSlice::new(&mut counts);
    team.run(chunks, &|chunk| {
        let mut below = [0; PIVOTS];
        for_each_block(source, range(chunk), |words| {
            // SAFETY: the CPU has the splitter's instructions.
            unsafe { (splitter.count_below)(words, &pivots, &mut below) };
        });
        // SAFETY: every task has its own chunk.
        let counts = unsafe { shared_counts.range(chunk..chunk + 1) };
        counts[0] = std::array::from_fn(|bucket| {
            let upto = below.get(bucket).copied().unwrap_or(range(chunk).len());
            upto - if bucket > 0 { below[bucket - 1] } else { 0 }
        });
    });

    let mut sizes = scratch::reserved(chunks);
    sizes.extend_from_slice(&counts);
    let starts = counts_to_starts(&mut counts);
    let shared_words = DisjointSlice::new(words);
    team.run(chunks, &|chunk| {
        let mut places = counts[chunk];
        let ends = std::array::from_fn(|bucket| places[bucket] + sizes[chunk][bucket]);
        for_each_block(source, range(chunk), |words| {
            // SAFETY: the CPU has the splitter's instructions. The positions were counted from the
            // same words, and only this chunk writes to them.
            unsafe { (splitter.split)(words, &pivots, &mut places, &ends, shared_words.as_mut_ptr()) };
        });
        assert!(places == ends, "a source gave other words than before");
    });

    team.run(BUCKETS, &|bucket| {
        let range = starts[bucket]..starts[bucket + 1];
        // SAFETY: buckets do not overlap.
        let words = unsafe { shared_words.range(range.clone()) };
        W::sort(simd, words);
        emit(range.start, words);
    });
}

/// Calls `body` with the words of `range`, a block at a time.
fn for_each_block<W: Word>(source: &dyn SourceOf<W>, range: std::ops::Range<usize>, mut body: impl FnMut(&[W])) {
    let mut words = [W::ZERO; BLOCK_WORDS];
    for start in range.clone().step_by(BLOCK_WORDS) {
        let count = BLOCK_WORDS.min(range.end - start);
        source.fill(start, &mut words[..count]);
        body(&words[..count]);
    }
}
