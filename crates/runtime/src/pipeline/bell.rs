//! How a pipeline's threads sleep when no stage can do anything, and are woken when one can.
//!
//! 1. A thread reads the count of changes before it looks at the stages. It sleeps only while the count is what it read, so
//!    a change in between is never missed: whoever changes something counts it first and looks for sleepers then; a
//!    sleeper makes itself known first and looks at the count then. Both have a fence in between, so one sees the other.
//! 2. Whoever takes from a full ring, or puts into an empty one, and then goes on into a program's code rings first: the
//!    stage on the other side may have gone to sleep over it. Whoever was kept out of a stage by the thread inside relies
//!    on that one, which looks once more as it leaves.
//! 3. There are two sorts of threads: those that run every stage, and one that runs the light ones alone, so that ops are
//!    begun and ended while all the others are inside a program's closures. It is woken where none of the others sleeps.

use std::time::Instant;

use crate::sleeper::spin;
use crate::sync::{AtomicUsize, Condvar, Mutex, Ordering, fence};

/// How long a thread looks for work before it sleeps: most stages have the next item ready by then.
#[cfg(not(loom))]
const SPIN_US_MAX: u64 = 20;
#[cfg(loom)]
const SPIN_US_MAX: u64 = 0;

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
        self.changes.load(Ordering::Acquire)
    }

    /// Something has changed, and the caller goes on with something else: one thread must look.
    pub(crate) fn ring(&self) {
        self.count();
        if !self.wake_one(Duty::Every) {
            self.wake_one(Duty::Light);
        }
    }

    /// Something must be done at a time that is sooner than before: whoever watches the time while the others are in a
    /// program's code must look.
    pub(crate) fn ring_for_time(&self) {
        self.count();
        if !self.wake_one(Duty::Light) {
            self.wake_one(Duty::Every);
        }
    }

    /// Everybody must look.
    pub(crate) fn ring_all(&self) {
        self.count();
        drop(self.lock.lock());
        self.rung.iter().for_each(Condvar::notify_all);
    }

    /// Something has changed, and the caller looks itself.
    pub(crate) fn count(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// Whether a thread of this sort sleeps. To be asked after a change was counted.
    pub(crate) fn has_sleeper(&self, duty: Duty) -> bool {
        self.sleepers[duty as usize].load(Ordering::Acquire) > 0
    }

    /// Wakes one thread of this sort, if one sleeps.
    pub(crate) fn wake_one(&self, duty: Duty) -> bool {
        if !self.has_sleeper(duty) {
            return false;
        }
        // Whoever sleeps has the lock until it waits, so after this it hears what is rung.
        drop(self.lock.lock());
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
        sleepers.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        if self.changes() == seen {
            let rung = &self.rung[duty as usize];
            match limit.map(|limit| limit.saturating_duration_since(Instant::now())) {
                Some(wait) => drop(rung.wait_timeout(guard, wait)),
                None => drop(rung.wait(guard)),
            }
        }
        sleepers.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{Arc, AtomicBool, thread};

    /// Takes what was put there, once, sleeping until it is; false where somebody else has taken it.
    fn take(bell: &Bell, duty: Duty, there: &AtomicBool, taken: &AtomicBool) -> bool {
        loop {
            let seen = bell.changes();
            if taken.load(Ordering::Acquire) {
                return false;
            }
            if there.compare_exchange(true, false, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                taken.store(true, Ordering::Release);
                bell.ring_all();
                return true;
            }
            bell.sleep(duty, seen, None);
        }
    }

    #[test]
    fn loom_a_change_is_never_slept_over() {
        loom::model(|| {
            let shared = Arc::new((Bell::default(), AtomicBool::new(false), AtomicBool::new(false)));
            let puts = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.1.store(true, Ordering::Release);
                    shared.0.ring();
                })
            };
            assert!(take(&shared.0, Duty::Every, &shared.1, &shared.2));
            puts.join().unwrap();
        });
    }

    #[test]
    fn loom_one_ring_is_enough_for_two_sleepers() {
        // Three threads and a lock: every schedule with at most two preemptions.
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let shared = Arc::new((Bell::default(), AtomicBool::new(false), AtomicBool::new(false)));
            let light = {
                let shared = shared.clone();
                thread::spawn(move || take(&shared.0, Duty::Light, &shared.1, &shared.2))
            };
            let puts = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.1.store(true, Ordering::Release);
                    shared.0.ring();
                })
            };
            let here = take(&shared.0, Duty::Every, &shared.1, &shared.2);
            let there = light.join().unwrap();
            assert!(here ^ there, "once");
            puts.join().unwrap();
        });
    }
}
