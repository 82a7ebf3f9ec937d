//! When a worker asked its engine for the device's health and memory, and whether it is to ask
//! again. Only the worker that owns the engine asks the driver; other threads ask the worker.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use panoply_core::DeviceInfo;

use super::Lane;
use crate::time::nanoseconds;

/// The requests of other threads, and the last look.
#[derive(Default)]
pub(crate) struct Looks {
    wanted: AtomicBool,
    /// When the last finished look began, in nanoseconds since the lane's epoch, plus 1. Zero:
    /// never.
    last_ns: AtomicU64,
}

impl Looks {
    /// Whether a look is wanted.
    pub(super) fn has_news(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// Takes the request for a look. Read the time after this: the look must begin after the
    /// request.
    pub(crate) fn take(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) && self.wanted.swap(false, Ordering::AcqRel)
    }
}

impl Lane {
    /// Notes that a look is finished which began at `start`.
    pub(crate) fn note_look(&self, start: Instant) {
        self.looks.last_ns.store(self.since_epoch_ns(start).saturating_add(1), Ordering::Release);
    }

    /// Asks the worker for a look. Returns the time from which a look satisfies this.
    pub(crate) fn ask_look(&self) -> Instant {
        let now = self.clock.now();
        self.looks.wanted.store(true, Ordering::Release);
        self.sleeper.wake();
        now
    }

    /// Asks the worker for a look if the last one is older than the interval between two. The
    /// worker of an idle device does not look by itself.
    pub(crate) fn ask_look_if_old(&self) {
        let age_ns = self.since_epoch_ns(self.clock.now()).saturating_sub(self.looks.last_ns.load(Ordering::Acquire));
        if age_ns > nanoseconds(self.rules.look_every) && !self.looks.has_news() && self.process.is_here() {
            self.ask_look();
        }
    }

    /// Whether a look that began at or after `time` is finished.
    pub(crate) fn has_looked_since(&self, time: Instant) -> bool {
        self.looks.last_ns.load(Ordering::Acquire) > self.since_epoch_ns(time)
    }

    /// The device's description, with its memory as the last look found it.
    pub(crate) fn described(&self) -> DeviceInfo {
        self.ask_look_if_old();
        let mut info = self.info.clone();
        if let Some(memory) = self.gate.memory(self.process) {
            info.set_memory(memory);
        }
        info
    }
}
