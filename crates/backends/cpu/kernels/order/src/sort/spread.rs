//! Sorting of one long line with the whole team: words are distributed over buckets that fit a
//! core's cache, then each bucket is sorted by one thread.
//!
//! A sample determines the buckets. The range of the sample is cut into equal prefixes, and a table
//! maps each prefix to a bucket, so that buckets are about equally full for any distribution. Words
//! outside of the sample's range go to the first or last prefix, which keeps the buckets in order.

use super::key::Word;
use super::split;
use crate::lanes::{Kernel, Level, dispatch};
use crate::parts::DisjointSlice;
use crate::scratch;
use crate::simd::Simd;
use crate::team::Team;

/// Bits of the prefix: the table of prefixes stays in the first-level cache.
const PREFIX_BITS: u32 = 12;
/// Number of buckets. Each has one cache line open for writing, and all these lines fit the
/// first-level cache.
const BUCKETS: usize = 256;
/// Words in the sample.
const SAMPLE_WORDS: usize = 8192;
/// Bytes in a cache line.
const LINE_BYTES: usize = 64;
/// Minimum size of outputs that would not stay in the cache until their buckets are sorted.
const STREAM_BYTES_MIN: usize = 16 << 20;
/// Words that are encoded at a time.
pub(super) const BLOCK_WORDS: usize = 512;

/// A source of words.
pub(super) trait WordSource<W>: Sync {
    /// Writes the words from position `start` on.
    fn fill(&self, start: usize, words: &mut [W]);
}

/// Sorts the words of `source` into `words`. `emit` is called once for each part that is in its
/// final position, with the index of its start, while the part is still in the cache.
pub(super) fn sort<W: Word>(
    simd: Simd,
    team: &Team,
    source: &dyn SourceOf<W>,
    words: &mut [W],
    emit: &(dyn Fn(usize, &mut [W]) + Sync),
) {
    if let Some(splitter) = W::splitter(simd)
        && team.threads() <= split::THREADS_MAX
    {
        return split::sort(simd, &splitter, team, source, words, emit);
    }
    let len = words.len();
    let buckets = Buckets::from_sample(simd, source, len);
    let chunks = team.threads() * if team.threads() > 1 { 4 } else { 1 };
    let chunk_len = len.div_ceil(chunks).next_multiple_of(BLOCK_WORDS);
    let range = |chunk: usize| len.min(chunk * chunk_len)..len.min((chunk + 1) * chunk_len);

    let mut counts = scratch::filled([0_usize; BUCKETS], chunks);
    let shared_counts = DisjointSlice::new(&mut counts);
    team.run(chunks, &|chunk| {
        // SAFETY: every task has its own chunk.
        let counts = unsafe { shared_counts.range(chunk..chunk + 1) };
        dispatch(simd, Count { source, range: range(chunk), buckets: &buckets, counts: &mut counts[0] });
    });

    let starts = counts_to_starts(&mut counts);
    let shared_words = DisjointSlice::new(words);
    team.run(chunks, &|chunk| {
        let places = counts[chunk];
        dispatch(simd, BucketScatter { source, range: range(chunk), buckets: &buckets, places, words: &shared_words });
    });

    team.run(BUCKETS, &|bucket| {
        let range = starts[bucket]..starts[bucket + 1];
        // SAFETY: buckets do not overlap.
        let words = unsafe { shared_words.range(range.clone()) };
        W::sort(simd, words);
        emit(range.start, words);
    });
}

/// A [`WordSource`] behind a reference.
pub(super) trait SourceOf<W>: WordSource<W> {}
impl<W, S: WordSource<W>> SourceOf<W> for S {}

/// Turns the counts for each chunk and bucket into the position of the chunk's first word in the
/// bucket. Returns the start of each bucket, and the end.
pub(super) fn counts_to_starts<const N: usize>(counts: &mut [[usize; N]]) -> Vec<usize> {
    let mut starts = Vec::with_capacity(N + 1);
    let mut place = 0;
    for bucket in 0..N {
        starts.push(place);
        for chunk in counts.iter_mut() {
            place += std::mem::replace(&mut chunk[bucket], place);
        }
    }
    starts.push(place);
    starts
}

/// A sorted sample of `count` words from all over the line, which must have at least as many.
pub(super) fn sorted_sample<W: Word>(simd: Simd, source: &dyn SourceOf<W>, len: usize, count: usize) -> Vec<W> {
    let mut sample = scratch::zeroed::<W>(count);
    // Short runs: scattered enough to be unaffected by order and patterns in the data, and cheap to
    // read.
    const RUN: usize = 4;
    let runs = sample.len() / RUN;
    for (index, run) in sample.chunks_exact_mut(RUN).enumerate() {
        source.fill((index * (len / runs)).min(len - RUN), run);
    }
    W::sort(simd, &mut sample);
    sample
}

/// The mapping of words to buckets.
struct Buckets<W> {
    low: W,
    high: W,
    shift: u32,
    table: Box<[u8; 1 << PREFIX_BITS]>,
}

impl<W: Word> Buckets<W> {
    fn from_sample(simd: Simd, source: &dyn SourceOf<W>, len: usize) -> Buckets<W> {
        let count = SAMPLE_WORDS.min(len);
        let sample = sorted_sample(simd, source, len, count);
        let (low, high) = (sample[0], sample[count - 1]);
        let shift = high.minus(low).width().saturating_sub(PREFIX_BITS);
        let mut buckets = Buckets { low, high, shift, table: Box::new([0; 1 << PREFIX_BITS]) };
        let mut seen = 0;
        let mut prefixes = sample.iter().map(|word| usize::from(buckets.prefix(*word))).peekable();
        let mut table = Box::new([0; 1 << PREFIX_BITS]);
        for (prefix, bucket) in table.iter_mut().enumerate() {
            // A prefix goes to the bucket of its median word, so that a prefix with many words does
            // not pull the next prefixes into its bucket.
            let before = seen;
            while prefixes.next_if(|next| *next <= prefix).is_some() {
                seen += 1;
            }
            *bucket = ((before + seen) / 2 * BUCKETS / count).min(BUCKETS - 1) as u8;
        }
        drop(prefixes);
        buckets.table = table;
        buckets
    }

    #[inline(always)]
    fn prefix(&self, word: W) -> u16 {
        word.max(self.low).min(self.high).minus(self.low).bits_from(self.shift)
    }

    /// Calls `visit` with every word of `range` and its bucket.
    #[inline(always)]
    fn for_each(&self, source: &dyn SourceOf<W>, range: std::ops::Range<usize>, mut visit: impl FnMut(W, usize)) {
        let mut words = [W::ZERO; BLOCK_WORDS];
        let mut prefixes = [0_u16; BLOCK_WORDS];
        let mut start = range.start;
        while start < range.end {
            let count = BLOCK_WORDS.min(range.end - start);
            source.fill(start, &mut words[..count]);
            for (prefix, word) in prefixes[..count].iter_mut().zip(&words[..count]) {
                *prefix = self.prefix(*word);
            }
            for (prefix, word) in prefixes[..count].iter().zip(&words[..count]) {
                visit(*word, usize::from(self.table[usize::from(*prefix) & ((1 << PREFIX_BITS) - 1)]));
            }
            start += count;
        }
    }
}

/// Counts the words of a chunk for each bucket.
struct Count<'a, W> {
    source: &'a dyn SourceOf<W>,
    range: std::ops::Range<usize>,
    buckets: &'a Buckets<W>,
    counts: &'a mut [usize; BUCKETS],
}

impl<W: Word> Kernel for Count<'_, W> {
    type Output = ();
    #[inline(always)]
    fn run<L: Level>(self) {
        self.buckets.for_each(self.source, self.range, |_, bucket| self.counts[bucket] += 1);
    }
}

/// Writes the words of a chunk to their buckets. Words are collected in one cache line for each
/// bucket and written line by line: single words, scattered over this many positions, would each
/// wait for memory.
struct BucketScatter<'a, W> {
    source: &'a dyn SourceOf<W>,
    range: std::ops::Range<usize>,
    buckets: &'a Buckets<W>,
    places: [usize; BUCKETS],
    words: &'a DisjointSlice<'a, W>,
}

/// One cache line of each bucket, aligned to cache lines.
#[repr(align(64))]
struct BucketLines([[u8; LINE_BYTES]; BUCKETS]);

impl<W: Word> Kernel for BucketScatter<'_, W> {
    type Output = ();
    #[inline(always)]
    fn run<L: Level>(self) {
        let per_line = LINE_BYTES / size_of::<W>();
        let start = self.words.as_mut_ptr();
        let stream = self.words.len() * size_of::<W>() >= STREAM_BYTES_MIN;
        // Relative to the cache line in which the output starts, positions that are multiples of
        // the line length start a line.
        let skew = start.addr() % LINE_BYTES / size_of::<W>();
        let first = self.places;
        let mut places = first;
        let mut lines = BucketLines([[0; LINE_BYTES]; BUCKETS]);
        self.buckets.for_each(self.source, self.range.clone(), |word, bucket| {
            let place = places[bucket];
            let slot = (place + skew) % per_line;
            if slot == 0 && place > first[bucket] {
                // The full line is written when the next word arrives: by then its words have left
                // the store buffer and can be read back in one piece.
                if place - first[bucket] >= per_line {
                    // SAFETY: a whole line of this chunk's own positions ends here, and its start
                    // is aligned.
                    unsafe { write_line(&lines.0[bucket], start.add(place - per_line).cast(), stream) };
                } else {
                    self.write_part(&lines, bucket, first[bucket]..place, skew);
                }
            }
            places[bucket] = place + 1;
            // SAFETY: the slot is inside the bucket's line, which is aligned for every word.
            unsafe { lines.0[bucket].as_mut_ptr().cast::<W>().add(slot).write(word) };
        });
        for bucket in 0..BUCKETS {
            let end = places[bucket];
            let line_start = ((end + skew).saturating_sub(1) / per_line * per_line).saturating_sub(skew);
            self.write_part(&lines, bucket, line_start.max(first[bucket])..end, skew);
        }
        finish_lines();
    }
}

impl<W: Word> BucketScatter<'_, W> {
    /// Writes the collected words for `places`, which are on one line.
    #[inline(always)]
    fn write_part(&self, lines: &BucketLines, bucket: usize, places: std::ops::Range<usize>, skew: usize) {
        let per_line = LINE_BYTES / size_of::<W>();
        let slot = (places.start + skew) % per_line;
        assert!(places.end <= self.words.len() && slot + places.len() <= per_line);
        // SAFETY: the places are inside the slice and on one line (asserted). Only this chunk
        // writes to them: their counts were taken from the same words.
        unsafe {
            let line = lines.0[bucket].as_ptr().cast::<W>();
            let target = self.words.as_mut_ptr().add(places.start);
            std::ptr::copy_nonoverlapping(line.add(slot), target, places.len());
        }
    }
}

/// Writes one cache line, bypassing the caches if `stream` is set.
///
/// # Safety
/// `to` must be writable for a line and aligned to one.
#[inline(always)]
unsafe fn write_line(line: &[u8; LINE_BYTES], to: *mut u8, stream: bool) {
    #[cfg(target_arch = "x86_64")]
    if stream {
        use std::arch::x86_64::{_mm_loadu_si128, _mm_stream_si128};
        for part in (0..LINE_BYTES).step_by(16) {
            // SAFETY: the part is inside both lines, and the target is aligned. SSE2 is part of the
            // architecture.
            unsafe { _mm_stream_si128(to.add(part).cast(), _mm_loadu_si128(line.as_ptr().add(part).cast())) };
        }
        return;
    }
    let _ = stream;
    // SAFETY: the caller guarantees a line.
    unsafe { std::ptr::copy_nonoverlapping(line.as_ptr(), to, LINE_BYTES) };
}

/// Makes streamed lines visible to the other threads.
#[inline(always)]
fn finish_lines() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SSE is part of the architecture.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}
