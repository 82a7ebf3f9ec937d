//! What the lists of a model keep together, so that inputs of ever new shapes and outcomes do not grow it without bound.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is kept for one model at most, counted in steps and nodes.
const KEPT_MAX: usize = 1 << 20;
/// What the smallest list counts as. With [`KEPT_MAX`] it bounds how many lists hang behind each other.
pub(super) const SEGMENT_SIZE: usize = 1 << 10;

/// The count of a model, bodies of loops included.
#[derive(Default)]
pub(crate) struct Kept(AtomicUsize);

/// What one program has of it.
pub(super) struct Share {
    of: Arc<Kept>,
    own: AtomicUsize,
}

impl Share {
    pub(super) fn of(kept: &Arc<Kept>) -> Share {
        Share { of: Arc::clone(kept), own: AtomicUsize::new(0) }
    }

    pub(super) fn kept(&self) -> &Arc<Kept> {
        &self.of
    }

    /// Whether there was room for so much more.
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
        let kept = Arc::new(Kept::default());
        let (a, b) = (Share::of(&kept), Share::of(&kept));
        assert!(a.take(KEPT_MAX / 2) && b.take(KEPT_MAX / 2) && !b.take(1));
        drop(a);
        assert!(b.take(KEPT_MAX / 2) && !b.take(1));
        b.give_back();
        assert!(b.take(KEPT_MAX));
    }
}
