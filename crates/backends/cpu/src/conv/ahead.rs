//! Fetching the next unit's images into the second-level cache while the current unit is computed.
//!
//! Copying a panel waits for memory, computing with it does not touch memory at all. Spreading the one over the other
//! hides most of the waiting.

/// Bytes in a cache line.
const LINE_BYTES: usize = 64;

/// Parts of a source, one in each of several planes, that are fetched a few lines at a time.
pub(super) struct Ahead<'a, S> {
    /// The planes, one after the other.
    planes: &'a [S],
    plane_len: usize,
    /// The part of a plane that is wanted.
    start: usize,
    end: usize,
    /// Where to go on: a plane, and a number in it.
    plane: usize,
    next: usize,
    lines_per_step: usize,
}

impl<'a, S> Ahead<'a, S> {
    /// The numbers `start..end` of each plane, over so many steps.
    pub fn new(planes: &'a [S], plane_len: usize, start: usize, end: usize, steps: usize) -> Ahead<'a, S> {
        let end = end.min(plane_len);
        let count = if plane_len == 0 || start >= end { 0 } else { planes.len() / plane_len };
        let lines = count * ((end.saturating_sub(start)) * size_of::<S>()).div_ceil(LINE_BYTES);
        let lines_per_step = lines.div_ceil(steps.max(1));
        Ahead {
            planes: if count == 0 { &[] } else { planes },
            plane_len,
            start,
            end,
            plane: 0,
            next: start,
            lines_per_step,
        }
    }

    /// Nothing to fetch.
    pub fn nothing() -> Ahead<'a, S> {
        Ahead::new(&[], 0, 0, 0, 0)
    }

    /// Asks for the next few lines.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_end_at_the_last_plane() {
        let planes = vec![0.0_f32; 3 * 100];
        let mut ahead = Ahead::new(&planes, 100, 10, 90, 4);
        assert_eq!(ahead.lines_per_step, 4);
        (0..10).for_each(|_| ahead.step());
        assert_eq!(ahead.plane, 3);
        Ahead::<f32>::nothing().step();
        Ahead::new(&planes, 100, 200, 300, 4).step();
    }
}
