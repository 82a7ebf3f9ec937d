//! The shared budget of all lists of a model. It bounds memory for inputs of ever new shapes and
//! outcomes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most steps and nodes kept for one model.
const KEPT_MAX: usize = 1 << 20;
/// The minimum size that a list counts as. Together with [`KEPT_MAX`] it bounds the depth of
/// chained lists.
pub(super) const SEGMENT_SIZE: usize = 1 << 10;

/// The number of steps and nodes kept for a model, bodies of loops included.
#[derive(Default)]
pub(crate) struct CachedNodeCount(AtomicUsize);

/// The part of the budget that one program uses.
pub(super) struct Share {
    of: Arc<CachedNodeCount>,
    own: AtomicUsize,
}

impl Share {
    pub(super) fn of(kept: &Arc<CachedNodeCount>) -> Share {
        Share { of: Arc::clone(kept), own: AtomicUsize::new(0) }
    }

    pub(super) fn kept(&self) -> &Arc<CachedNodeCount> {
        &self.of
    }

    /// Takes `size` of the budget. Returns whether there was room.
    pub(super) fn take(&self, size: usize) -> bool {
        let fits = |kept: usize| Some(kept + size).filter(|sum| *sum <= KEPT_MAX);
        let taken = self.of.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        if taken {
            self.own.fetch_add(size, Ordering::Relaxed);
        }
        taken
    }

    pub(super) fn give_back(&self) {
        self.of.0.fetch_sub(self.own.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_come_back() {
        let kept = Arc::new(CachedNodeCount::default());
        let (a, b) = (Share::of(&kept), Share::of(&kept));
        assert!(a.take(KEPT_MAX / 2) && b.take(KEPT_MAX / 2) && !b.take(1));
        drop(a);
        assert!(b.take(KEPT_MAX / 2) && !b.take(1));
        b.give_back();
        assert!(b.take(KEPT_MAX));
    }
}
