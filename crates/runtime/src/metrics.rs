//! The histograms of one worker's ops. Only that worker writes them; any thread may read them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::time::nanoseconds;

/// Number of buckets: the first counts zeros, and bucket `n` counts the values from `2^(n-1)` to
/// `2^n - 1`.
const BUCKETS: usize = 44;

/// Counts values by size, in powers of two. One thread writes it, any thread reads it.
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum: AtomicU64,
}

/// The counts of a histogram at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Distribution {
    /// For each bucket, its largest value, and the number of values in it. Empty buckets at the end
    /// are left out.
    pub buckets: Vec<(u64, u64)>,
    /// The sum of all values.
    pub sum: u64,
    /// The number of values.
    pub count: u64,
}

impl Histogram {
    /// An empty histogram.
    pub fn new() -> Histogram {
        Histogram { buckets: [const { AtomicU64::new(0) }; BUCKETS], sum: AtomicU64::new(0) }
    }

    /// Counts a value. If several threads write at the same time, counts may be lost.
    pub fn note(&self, value: u64) {
        let bucket = (64 - value.leading_zeros() as usize).min(BUCKETS - 1);
        add(&self.buckets[bucket], 1);
        add(&self.sum, value);
    }

    pub(crate) fn note_time(&self, time: Duration) {
        self.note(nanoseconds(time));
    }

    /// The counts so far.
    pub fn read(&self) -> Distribution {
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).collect();
        let used = counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
        let buckets = counts[..used].iter().enumerate().map(|(index, count)| ((1_u64 << index) - 1, *count)).collect();
        Distribution { buckets, sum: self.sum.load(Ordering::Relaxed), count: counts.iter().sum() }
    }
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

impl Distribution {
    /// The values of both.
    pub(crate) fn joined(mut self, other: &Distribution) -> Distribution {
        let shared = self.buckets.len().min(other.buckets.len());
        for ((_, count), (_, more)) in self.buckets.iter_mut().zip(&other.buckets) {
            *count += more;
        }
        self.buckets.extend_from_slice(&other.buckets[shared..]);
        self.sum = self.sum.wrapping_add(other.sum);
        self.count += other.count;
        self
    }

    /// The largest value of the bucket in which this quantile (from 0 to 1) falls. The resolution
    /// is that of the buckets.
    pub fn quantile(&self, share: f64) -> u64 {
        let wanted = (share.clamp(0.0, 1.0) * self.count as f64).ceil() as u64;
        let mut seen = 0;
        for (largest, count) in &self.buckets {
            seen += count;
            if seen >= wanted {
                return *largest;
            }
        }
        self.buckets.last().map_or(0, |(largest, _)| *largest)
    }
}

/// Adds with a load and a store, which is enough for one writer.
fn add(counter: &AtomicU64, value: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
}

/// The histograms of one device worker.
pub(crate) struct LaneMetrics {
    pub(crate) wait: Histogram,
    pub(crate) run: Histogram,
    pub(crate) transfer: Histogram,
    pub(crate) batch: Histogram,
    pub(crate) bytes_moved: AtomicU64,
    pub(crate) memory: [AtomicU64; 5],
}

impl LaneMetrics {
    pub(crate) fn new() -> LaneMetrics {
        LaneMetrics {
            wait: Histogram::new(),
            run: Histogram::new(),
            transfer: Histogram::new(),
            batch: Histogram::new(),
            bytes_moved: AtomicU64::new(0),
            memory: [const { AtomicU64::new(0) }; 5],
        }
    }

    pub(crate) fn add_bytes(&self, bytes: u64) {
        if bytes > 0 {
            add(&self.bytes_moved, bytes);
        }
    }

    pub(crate) fn set_memory(&self, stats: panoply_core::MemoryStats) {
        let values = [stats.lent_bytes, stats.cached_bytes, stats.peak_bytes, stats.hits, stats.misses];
        self.memory.iter().zip(values).for_each(|(place, value)| place.store(value, Ordering::Relaxed));
    }

    pub(crate) fn memory(&self) -> panoply_core::MemoryStats {
        let [lent_bytes, cached_bytes, peak_bytes, hits, misses] =
            std::array::from_fn(|index| self.memory[index].load(Ordering::Relaxed));
        panoply_core::MemoryStats { lent_bytes, cached_bytes, peak_bytes, hits, misses }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_into_their_buckets() {
        let histogram = Histogram::new();
        [0, 1, 2, 3, 4, 1000, u64::MAX].into_iter().for_each(|value| histogram.note(value));
        let read = histogram.read();
        assert_eq!(read.count, 7);
        assert_eq!(read.buckets[..4], [(0, 1), (1, 1), (3, 2), (7, 1)]);
        assert_eq!(read.buckets.len(), BUCKETS);
        assert_eq!(read.quantile(0.5), 3);
        assert_eq!(Histogram::new().read().quantile(0.99), 0);
        let few = Histogram::new();
        [3, 0].into_iter().for_each(|value| few.note(value));
        for joined in [few.read().joined(&read), read.clone().joined(&few.read())] {
            assert_eq!((joined.count, joined.buckets.len()), (9, BUCKETS));
            assert_eq!(joined.buckets[..4], [(0, 2), (1, 1), (3, 3), (7, 1)]);
        }
    }
}
