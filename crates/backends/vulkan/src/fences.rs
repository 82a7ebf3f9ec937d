//! Numbers the submissions and keeps the lanes' values after each.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

use panoply_wgsl_gpu::driver::Fence;

use crate::gpu::{Gpu, LaneValues};

/// The submissions that may still run.
#[derive(Default)]
pub(crate) struct Fences {
    /// Number of the last submission that is known to have ended. All before it have ended too.
    first: Cell<u64>,
    under_way: RefCell<VecDeque<LaneValues>>,
}

impl Fences {
    /// Adds a submission that was just made.
    pub(crate) fn submitted(&self, stamp: LaneValues) -> Fence {
        let mut under_way = self.under_way.borrow_mut();
        under_way.push_back(stamp);
        // Numbers begin with one.
        Fence(self.first.get() + under_way.len() as u64)
    }

    /// The lanes' values at which a submission ends; `None` if it has ended.
    pub(crate) fn stamp(&self, Fence(number): Fence) -> Option<LaneValues> {
        let place = number.checked_sub(self.first.get() + 1)?;
        self.under_way.borrow().get(usize::try_from(place).ok()?).copied()
    }

    /// Forgets submissions that have ended.
    pub(crate) fn forget_past(&self, gpu: &Gpu) {
        let mut under_way = self.under_way.borrow_mut();
        while under_way.front().is_some_and(|stamp| gpu.is_past(*stamp)) {
            under_way.pop_front();
            self.first.set(self.first.get() + 1);
        }
    }
}
