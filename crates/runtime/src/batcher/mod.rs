//! Joins ops that can run as one before they reach an engine.
//!
//! Ops with equal batch keys wait together in a group, and a `Batching` strategy says when a group
//! goes to the engine. No op waits longer than the strategy's `wait_max`. A group goes as a whole,
//! in the order in which its ops arrived. Ops without a key never come here. The batcher belongs to
//! the worker's thread and holds only tokens of ops that the table of flights already knows, so a
//! worker that hangs loses no op. A device that has only a part of its capacity, because it is hot
//! for example, gets groups of that part of the size.

use std::time::{Duration, Instant};

use panoply_core::BatchKey;

use crate::time::later;

/// When ops that could run as one go to the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Batching {
    /// At once: ops that arrived together go together, and no op waits. `wait_max` is zero.
    #[default]
    LowLatency,
    /// When the group has `size_max` ops, or its first op has waited for `wait_max`.
    TimeOrSize {
        /// The number of ops at which a group goes.
        size_max: usize,
        /// The longest wait.
        wait_max: Duration,
    },
    /// At once while the device is idle. While the device is busy, in groups that grow with the
    /// number of waiting ops.
    Adaptive {
        /// The number of ops at which a group goes at the latest.
        size_max: usize,
        /// The longest wait.
        wait_max: Duration,
    },
    /// While the device is idle, as soon as the group has `size_min` ops. While the device is busy,
    /// in full groups.
    AtLeast {
        /// The number of ops at which a group goes to an idle device.
        size_min: usize,
        /// The number of ops at which a group goes at the latest.
        size_max: usize,
        /// The longest wait.
        wait_max: Duration,
    },
    /// In full groups. While the device is idle, a quarter of a full group is enough.
    HighThroughput {
        /// The number of ops in a full group.
        size_max: usize,
        /// The longest wait.
        wait_max: Duration,
    },
}

impl Batching {
    /// The longest time that an op waits to be joined with others.
    pub fn wait_max(&self) -> Duration {
        match self {
            Batching::LowLatency => Duration::ZERO,
            Batching::TimeOrSize { wait_max, .. }
            | Batching::Adaptive { wait_max, .. }
            | Batching::AtLeast { wait_max, .. }
            | Batching::HighThroughput { wait_max, .. } => *wait_max,
        }
    }

    /// The largest number of ops in a group.
    pub fn size_max(&self) -> usize {
        match self {
            Batching::LowLatency => usize::MAX,
            Batching::TimeOrSize { size_max, .. }
            | Batching::Adaptive { size_max, .. }
            | Batching::AtLeast { size_max, .. }
            | Batching::HighThroughput { size_max, .. } => (*size_max).max(1),
        }
    }
}

/// The groups of waiting ops.
pub(crate) struct Batcher<T> {
    strategy: Batching,
    groups: Vec<Group<T>>,
    /// The size that an adaptive group should reach while the device is busy.
    target: usize,
    /// The fraction of its capacity that the device has.
    capacity: f32,
}

struct Group<T> {
    key: BatchKey,
    since: Instant,
    items: Vec<T>,
}

impl<T> Batcher<T> {
    pub(crate) fn new(strategy: Batching) -> Batcher<T> {
        Batcher { strategy, groups: Vec::new(), target: 2, capacity: 1.0 }
    }

    /// Sets the fraction of its capacity that the device has. A group that is larger than its new
    /// limit goes as it is.
    pub(crate) fn set_capacity(&mut self, capacity: f32) {
        self.capacity = capacity;
    }

    /// The number of ops at which a group goes.
    fn size_max(&self) -> usize {
        share_of(self.strategy.size_max(), self.capacity)
    }

    /// Whether this strategy holds ops back at all.
    pub(crate) fn holds(&self) -> bool {
        self.strategy != Batching::LowLatency
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Adds an op to its group.
    pub(crate) fn offer(&mut self, key: BatchKey, item: T, now: Instant) {
        let size_max = self.size_max();
        match self.groups.iter_mut().find(|group| group.key == key && group.items.len() < size_max) {
            Some(group) => group.items.push(item),
            None => self.groups.push(Group { key, since: now, items: vec![item] }),
        }
    }

    /// Moves the groups that are ready to `out`, oldest first. `busy`: the engine has ops in
    /// flight.
    pub(crate) fn take_ready(&mut self, now: Instant, busy: bool, out: &mut Vec<T>) {
        let mut index = 0;
        while index < self.groups.len() {
            let (size, waited) =
                (self.groups[index].items.len(), now.saturating_duration_since(self.groups[index].since));
            if self.is_ready(size, waited, busy) {
                self.adapt(size, waited);
                out.append(&mut self.groups.remove(index).items);
            } else {
                index += 1;
            }
        }
    }

    /// Empties all groups and returns their ops.
    pub(crate) fn take_all(&mut self) -> Vec<T> {
        self.groups.drain(..).flat_map(|group| group.items).collect()
    }

    /// When the oldest group must go, if any group waits.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.groups.iter().map(|group| group.since).min().map(|since| later(since, self.strategy.wait_max()))
    }

    fn is_ready(&self, size: usize, waited: Duration, busy: bool) -> bool {
        let full = size >= self.size_max() || waited >= self.strategy.wait_max();
        full || match self.strategy {
            Batching::LowLatency => true,
            Batching::TimeOrSize { .. } => false,
            Batching::Adaptive { .. } => !busy || size >= self.target,
            Batching::AtLeast { size_min, .. } => !busy && size >= size_min.min(self.size_max()),
            Batching::HighThroughput { .. } => !busy && size >= self.size_max().div_ceil(4),
        }
    }

    /// Adapts the target size: it doubles when groups fill up before `wait_max`, and shrinks when
    /// they do not.
    fn adapt(&mut self, size: usize, waited: Duration) {
        if let Batching::Adaptive { wait_max, .. } = self.strategy {
            let size_max = self.size_max();
            self.target = if size >= self.target && waited < wait_max {
                (self.target * 2).min(size_max)
            } else {
                (self.target / 2).max(size).clamp(1, size_max)
            };
        }
    }
}

/// The part of a limit that a device with this fraction of its capacity has: at least 1.
pub(crate) fn share_of(limit: usize, capacity: f32) -> usize {
    if capacity >= 1.0 { limit.max(1) } else { ((limit as f64 * f64::from(capacity)) as usize).max(1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: BatchKey = BatchKey(1);
    const B: BatchKey = BatchKey(2);
    const WAIT: Duration = Duration::from_micros(100);

    fn ready(batcher: &mut Batcher<u32>, now: Instant, busy: bool) -> Vec<u32> {
        let mut out = Vec::new();
        batcher.take_ready(now, busy, &mut out);
        out
    }

    #[test]
    fn time_or_size_goes_at_either() {
        let start = Instant::now();
        let mut batcher = Batcher::new(Batching::TimeOrSize { size_max: 3, wait_max: WAIT });
        [(A, 1), (B, 2), (A, 3), (B, 4)].into_iter().for_each(|(key, item)| batcher.offer(key, item, start));
        assert!(ready(&mut batcher, start, false).is_empty());
        assert_eq!(batcher.due(), Some(start + WAIT));
        batcher.offer(A, 5, start);
        assert_eq!(ready(&mut batcher, start, true), [1, 3, 5], "a full group goes as it came");
        batcher.offer(A, 6, start + WAIT / 2);
        assert_eq!(ready(&mut batcher, start + WAIT, true), [2, 4], "the longest wait is kept");
        assert_eq!(ready(&mut batcher, start + WAIT * 2, true), [6]);
        assert!(batcher.is_empty() && batcher.due().is_none());
    }

    #[test]
    fn a_group_never_exceeds_its_size() {
        let start = Instant::now();
        let mut batcher = Batcher::new(Batching::TimeOrSize { size_max: 2, wait_max: WAIT });
        (0..5).for_each(|item| batcher.offer(A, item, start));
        assert_eq!(ready(&mut batcher, start, true), [0, 1, 2, 3]);
        assert_eq!(ready(&mut batcher, start + WAIT, true), [4]);
    }

    #[test]
    fn adaptive_groups_grow_under_load_and_nobody_waits_for_an_idle_device() {
        let start = Instant::now();
        let mut batcher = Batcher::new(Batching::Adaptive { size_max: 64, wait_max: WAIT });
        batcher.offer(A, 0, start);
        assert_eq!(ready(&mut batcher, start, false), [0]);
        let mut largest = 0;
        for round in 0..40 {
            let now = start + WAIT * 10 * round;
            (0..40).for_each(|item| batcher.offer(A, item, now));
            largest = largest.max(ready(&mut batcher, now, true).len());
            ready(&mut batcher, now + WAIT, true);
        }
        assert!(largest >= 32, "{largest}");
        assert!(batcher.is_empty());
    }

    #[test]
    fn groups_of_a_device_with_half_its_capacity_have_half_the_size() {
        let start = Instant::now();
        let strategies = [
            Batching::TimeOrSize { size_max: 8, wait_max: WAIT },
            Batching::HighThroughput { size_max: 8, wait_max: WAIT },
        ];
        for strategy in strategies {
            let mut batcher = Batcher::new(strategy);
            batcher.set_capacity(0.5);
            (0..3).for_each(|item| batcher.offer(A, item, start));
            assert!(ready(&mut batcher, start, true).is_empty(), "{strategy:?}");
            batcher.offer(A, 3, start);
            batcher.offer(A, 4, start);
            assert_eq!(ready(&mut batcher, start, true), [0, 1, 2, 3], "{strategy:?}");
            batcher.set_capacity(1.0);
            (5..12).for_each(|item| batcher.offer(A, item, start));
            assert_eq!(ready(&mut batcher, start, true).len(), 8, "{strategy:?}");
        }
        assert_eq!([share_of(8, 0.7), share_of(1, 0.05), share_of(usize::MAX, 1.0)], [5, 1, usize::MAX]);
    }

    #[test]
    fn high_throughput_waits_for_full_groups() {
        let start = Instant::now();
        let mut batcher = Batcher::new(Batching::HighThroughput { size_max: 8, wait_max: WAIT });
        batcher.offer(A, 0, start);
        assert!(ready(&mut batcher, start, false).is_empty());
        batcher.offer(A, 1, start);
        assert!(ready(&mut batcher, start, true).is_empty());
        assert_eq!(ready(&mut batcher, start, false), [0, 1], "a quarter is enough for an idle device");
        batcher.offer(A, 2, start);
        assert_eq!(ready(&mut batcher, start + WAIT, true), [2]);
    }

    #[test]
    fn a_smallest_group_goes_to_an_idle_device_alone() {
        let start = Instant::now();
        let mut batcher = Batcher::new(Batching::AtLeast { size_min: 2, size_max: 4, wait_max: WAIT });
        batcher.offer(A, 0, start);
        assert!(ready(&mut batcher, start, false).is_empty(), "too few");
        batcher.offer(A, 1, start);
        assert!(ready(&mut batcher, start, true).is_empty(), "a busy device gets full groups");
        assert_eq!(ready(&mut batcher, start, false), [0, 1]);
        (2..6).for_each(|item| batcher.offer(A, item, start));
        assert_eq!(ready(&mut batcher, start, true), [2, 3, 4, 5]);
        batcher.offer(A, 6, start);
        assert_eq!(ready(&mut batcher, start + WAIT, true), [6], "the longest wait is kept");
    }
}
