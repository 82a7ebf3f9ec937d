//! How a pipeline's threads sleep when no stage can do anything, and are woken when one can.
//!
//! 1. A thread reads the count of changes before it looks at the stages. It sleeps only while the count is what it read, so
//!    a change in between is never missed: whoever changes something counts it first and looks for sleepers then; a
//!    sleeper makes itself known first and looks at the count then.
//! 2. Whoever takes from a full ring, or puts into an empty one, and then goes on into a program's code tells so first: the
//!    stage on the other side may have gone to sleep over it.
//! 3. There are two sorts of threads: those that run every stage, and one that runs the light ones alone, so that ops are
//!    begun and ended while all the others are inside a program's closures. It is woken where none of the others sleeps.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Instant;

use crate::sleeper::spin;

/// How long a thread looks for work before it sleeps: most stages have the next item ready by then.
const SPIN_US_MAX: u64 = 20;

/// Which sort of thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Duty {
    Every,
    Light,
}

/// See the module's rules.
#[derive(Default)]
pub(crate) struct Bell {
    changes: AtomicUsize,
    /// How many threads of each sort sleep.
    sleepers: [AtomicUsize; 2],
    lock: Mutex<()>,
    rung: [Condvar; 2],
}

impl Bell {
    /// The count of changes, to be read before looking for work.
    pub(crate) fn changes(&self) -> usize {
        self.changes.load(Ordering::SeqCst)
    }

    /// Something has changed from outside: one thread must look.
    pub(crate) fn ring(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        if !self.wake_one(Duty::Every) {
            self.wake_one(Duty::Light);
        }
    }

    /// Everybody must look.
    pub(crate) fn ring_all(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        let _guard = self.lock.lock();
        self.rung.iter().for_each(Condvar::notify_all);
    }

    /// Something has changed, and the caller goes on with what it does, which may be long: somebody who sleeps looks.
    pub(crate) fn nudge(&self) {
        self.count();
        self.wake_one(Duty::Every);
    }

    /// Something has changed, and the caller looks itself.
    pub(crate) fn count(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether a thread of this sort sleeps.
    pub(crate) fn has_sleeper(&self, duty: Duty) -> bool {
        self.sleepers[duty as usize].load(Ordering::SeqCst) > 0
    }

    /// Wakes one thread of this sort, if one sleeps.
    pub(crate) fn wake_one(&self, duty: Duty) -> bool {
        if !self.has_sleeper(duty) {
            return false;
        }
        let _guard = self.lock.lock();
        self.rung[duty as usize].notify_one();
        true
    }

    /// Sleeps until somebody rings, while the count is still `seen`, at the longest until the limit.
    pub(crate) fn sleep(&self, duty: Duty, seen: usize, limit: Option<Instant>) {
        if spin(SPIN_US_MAX, &mut || self.changes() != seen) {
            return;
        }
        let guard = self.lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let sleepers = &self.sleepers[duty as usize];
        sleepers.fetch_add(1, Ordering::SeqCst);
        if self.changes() == seen {
            let rung = &self.rung[duty as usize];
            match limit.map(|limit| limit.saturating_duration_since(Instant::now())) {
                Some(wait) => drop(rung.wait_timeout(guard, wait)),
                None => drop(rung.wait(guard)),
            }
        }
        sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}
