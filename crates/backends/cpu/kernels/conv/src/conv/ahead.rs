//! Prefetching of the next unit's images into the second-level cache while the current unit is
//! computed.
//!
//! Copying a panel waits for memory; computing with the panel does not touch memory at all.
//! Overlapping the two hides most of the waiting.

/// Bytes in a cache line.
const LINE_BYTES: usize = 64;

/// A prefetch of the same part of several planes, a few cache lines at a time.
pub struct PlanePrefetch<'a, S> {
    /// The planes, one after the other.
    planes: &'a [S],
    plane_len: usize,
    /// The wanted part of each plane: `start..end`.
    start: usize,
    end: usize,
    /// The next number to fetch: index of its plane, and index in that plane.
    pub plane: usize,
    next: usize,
    /// Cache lines that a step fetches.
    pub lines_per_step: usize,
}

impl<'a, S> PlanePrefetch<'a, S> {
    /// Prefetches the numbers `start..end` of each plane, over `steps` calls of
    /// [`PlanePrefetch::step`].
    pub fn new(planes: &'a [S], plane_len: usize, start: usize, end: usize, steps: usize) -> PlanePrefetch<'a, S> {
        let end = end.min(plane_len);
        let count = if plane_len == 0 || start >= end { 0 } else { planes.len() / plane_len };
        let lines = count * ((end.saturating_sub(start)) * size_of::<S>()).div_ceil(LINE_BYTES);
        let lines_per_step = lines.div_ceil(steps.max(1));
        PlanePrefetch {
            planes: if count == 0 { &[] } else { planes },
            plane_len,
            start,
            end,
            plane: 0,
            next: start,
            lines_per_step,
        }
    }

    /// A prefetch of nothing.
    pub fn nothing() -> PlanePrefetch<'a, S> {
        PlanePrefetch::new(&[], 0, 0, 0, 0)
    }

    /// Prefetches the next few lines.
    #[inline]
    pub fn step(&mut self) {
        for _ in 0..self.lines_per_step {
            let Some(number) = self.planes.get(self.plane * self.plane_len + self.next) else { return };
            fetch(number);
            self.next += LINE_BYTES / size_of::<S>();
            if self.next >= self.end {
                (self.plane, self.next) = (self.plane + 1, self.start);
            }
        }
    }
}

#[inline(always)]
fn fetch<S>(number: &S) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: SSE is part of the architecture, and a prefetch changes nothing but caches.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(number).cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = number;
}
