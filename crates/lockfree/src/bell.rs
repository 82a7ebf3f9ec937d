//! How a pipeline's threads sleep when no stage can do anything, and are woken when one can.
//!
//! 1. A thread reads the count of changes before it looks at the stages. It sleeps only while the
//!    count still has that value, so a change in between is never missed. The thread that makes a
//!    change first counts it and then looks for sleepers; a sleeper first registers itself and then
//!    looks at the count. Both have a fence in between, so one sees the other.
//! 2. A thread that takes from a full ring, or puts into an empty one, and then goes on into a
//!    program's code, rings first: the stage on the other side may have gone to sleep because of
//!    it. A thread that was kept out of a stage by the thread inside relies on the thread inside,
//!    which looks once more as it leaves.
//! 3. There are two kinds of threads: those that run every stage, and one that runs only the light
//!    stages, so that ops are begun and ended while all the others are inside a program's closures.
//!    It is woken if none of the others sleeps.
//! 4. The crew consists of the threads of the first kind that look for work, or are inside a call
//!    that is expected to be short. A member of the crew looks at every stage again soon. So other
//!    threads join only if there is enough work for them: two threads that pass short calls back
//!    and forth are slower than one. The last member leaves only after it has found nothing to do
//!    while the count of changes stood still; a member that goes into a call expected to be long
//!    leaves too. So with a crew, and a lookout (rule 5), a ring wakes no thread.
//! 5. A call may take longer than expected. While a crew works and another thread stays away from
//!    it, one such thread is the lookout: it wakes every [`LOOK_EVERY`] and joins if the crew has
//!    not taken a step in that time. A thread that stays away sleeps only while there is a crew,
//!    and registers itself before it looks for one; the crew's last member first leaves and then
//!    looks for sleepers.

use std::time::{Duration, Instant};

use crate::sleeper::spin;
use crate::sync::{AtomicBool, AtomicUsize, CacheLine, Condvar, Mutex, Ordering, fence};

/// How long a thread looks for work before it sleeps. Most stages have the next item ready by then.
#[cfg(not(loom))]
const SPIN_US_MAX: u64 = 20;
#[cfg(loom)]
const SPIN_US_MAX: u64 = 0;

/// How often the lookout checks that the crew makes progress.
pub const LOOK_EVERY: Duration = Duration::from_micros(500);

/// The kind of a thread: whether it runs every stage, or only the light ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// Runs every stage.
    Every,
    /// Runs the light stages.
    Light,
}

/// The bell of one pipeline. See the module's rules.
#[derive(Default)]
pub struct Bell {
    /// Written at every step, so it has its own cache line.
    changes: CacheLine<AtomicUsize>,
    /// The number of steps that the crew has taken, and the number of its members.
    steps: CacheLine<AtomicUsize>,
    crew: AtomicUsize,
    /// How many threads of each kind sleep.
    sleepers: [AtomicUsize; 2],
    /// Whether one of the sleepers is the lookout.
    lookout: AtomicBool,
    lock: Mutex<()>,
    rung: [Condvar; 2],
    /// How often a sleeper was woken. No part of the protocol, so the model checker ignores it.
    wakes: std::sync::atomic::AtomicUsize,
}

impl Bell {
    /// The count of changes. Read it before looking for work.
    #[inline]
    pub fn changes(&self) -> usize {
        self.changes.load(Ordering::Acquire)
    }

    /// Counts a change and makes one thread look, because the caller goes on with something else. A
    /// crew with a lookout looks by itself.
    #[inline]
    pub fn ring(&self) {
        self.count();
        if self.crew() > 0 && self.has_lookout() {
            return;
        }
        self.wake_any();
    }

    /// Counts a change of the earliest alarm: it is now sooner. Wakes a thread that watches the
    /// time while the others are in a program's code.
    pub fn ring_for_time(&self) {
        self.count();
        if !self.wake_one(Duty::Light) {
            self.wake_one(Duty::Every);
        }
    }

    /// Makes every thread look.
    pub fn ring_all(&self) {
        self.count();
        drop(self.lock.lock());
        self.rung.iter().for_each(Condvar::notify_all);
    }

    /// Counts a change after which the caller itself looks.
    #[inline]
    pub fn count(&self) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
    }

    /// Counts a step of a member of the crew, which looks again itself.
    #[inline]
    pub fn count_step(&self) {
        self.steps.fetch_add(1, Ordering::Relaxed);
        self.count();
    }

    /// Number of steps that the crew has taken.
    #[inline]
    pub fn steps(&self) -> usize {
        self.steps.load(Ordering::Relaxed)
    }

    /// Number of threads in the crew.
    #[inline]
    pub fn crew(&self) -> usize {
        self.crew.load(Ordering::SeqCst)
    }

    /// Adds the calling thread to the crew.
    #[inline]
    pub fn join(&self) {
        self.crew.fetch_add(1, Ordering::SeqCst);
    }

    /// Adds the calling thread to the crew if the crew is empty. Returns whether it joined.
    #[inline]
    pub fn join_alone(&self) -> bool {
        self.crew.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Removes the calling thread from the crew: it has found nothing to do, or its next call is
    /// expected to be long. If the crew is empty now, a thread that relied on it is woken.
    #[inline]
    pub fn leave(&self) {
        if self.crew.fetch_sub(1, Ordering::SeqCst) == 1 {
            fence(Ordering::SeqCst);
            if self.has_lookout() {
                self.wake_one(Duty::Every);
            }
        }
    }

    /// Removes the calling thread from the crew if another member stays. Returns whether it left.
    #[inline]
    pub fn leave_to_others(&self) -> bool {
        let fewer = |crew: usize| (crew > 1).then(|| crew - 1);
        self.crew.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_ok()
    }

    /// Whether a thread that stays away from the crew is its lookout.
    #[inline]
    pub fn has_lookout(&self) -> bool {
        self.lookout.load(Ordering::SeqCst)
    }

    /// How often a sleeper was woken, in the life of the bell.
    pub fn wakes(&self) -> usize {
        self.wakes.load(Ordering::Relaxed)
    }

    /// Whether a thread of this kind sleeps. Call this after counting a change.
    #[inline]
    pub fn has_sleeper(&self, duty: Duty) -> bool {
        self.sleepers[duty as usize].load(Ordering::Acquire) > 0
    }

    /// Wakes a thread that runs every stage, if one sleeps; otherwise the one for light stages.
    pub fn wake_any(&self) {
        if !self.wake_one(Duty::Every) {
            self.wake_one(Duty::Light);
        }
    }

    /// Wakes one thread of this kind, if one sleeps.
    pub fn wake_one(&self, duty: Duty) -> bool {
        if !self.has_sleeper(duty) {
            return false;
        }
        self.wakes.fetch_add(1, Ordering::Relaxed);
        // A sleeper holds the lock until it waits, so it hears a ring after this.
        drop(self.lock.lock());
        self.rung[duty as usize].notify_one();
        true
    }

    /// Sleeps until a ring, while the count is still `seen`, until `limit` at the longest.
    pub fn sleep(&self, duty: Duty, seen: usize, limit: Option<Instant>) {
        if !spin(SPIN_US_MAX, &mut || self.changes() != seen) {
            self.wait(duty, limit, || self.changes() == seen);
        }
    }

    /// Sleeps beside a crew that does not need the calling thread. Returns true if the calling
    /// thread was the lookout and the crew has taken no step since.
    pub fn stay_away(&self, limit: Option<Instant>) -> bool {
        if self.lookout.swap(true, Ordering::SeqCst) {
            self.wait(Duty::Every, limit, || self.crew() > 0);
            return false;
        }
        let steps = self.steps();
        let next = Instant::now() + LOOK_EVERY;
        self.wait(Duty::Every, Some(limit.map_or(next, |limit| limit.min(next))), || self.crew() > 0);
        self.lookout.store(false, Ordering::SeqCst);
        // A thread that saw a lookout before this relies on the look that follows.
        fence(Ordering::SeqCst);
        self.crew() > 0 && self.steps() == steps
    }

    /// Sleeps until a ring, until `limit` at the longest, unless `still` is false after the sleeper
    /// has registered itself.
    fn wait(&self, duty: Duty, limit: Option<Instant>, still: impl Fn() -> bool) {
        let guard = self.lock.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let sleepers = &self.sleepers[duty as usize];
        sleepers.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        if still() {
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

    /// Takes the value once, sleeping until it is there. Returns false if another thread has taken
    /// it.
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

    /// Works as a pipeline's thread does: alone in the crew, or away from it until it is needed.
    fn work(bell: &Bell, there: &AtomicBool, taken: &AtomicBool) -> bool {
        loop {
            if taken.load(Ordering::Acquire) {
                return false;
            }
            if !bell.join_alone() {
                bell.stay_away(None);
                continue;
            }
            let seen = bell.changes();
            let is_mine = there.compare_exchange(true, false, Ordering::AcqRel, Ordering::Acquire).is_ok();
            if is_mine {
                taken.store(true, Ordering::Release);
                bell.ring_all();
            }
            bell.leave();
            if is_mine {
                return true;
            }
            if !taken.load(Ordering::Acquire) {
                bell.sleep(Duty::Every, seen, None);
            }
        }
    }

    /// Under the model checker no wait ends by its time limit, so this holds without the lookout's
    /// look.
    #[test]
    fn loom_what_a_crew_leaves_is_found_by_those_who_stay_away() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let shared = Arc::new((Bell::default(), AtomicBool::new(false), AtomicBool::new(false)));
            let other = {
                let shared = shared.clone();
                thread::spawn(move || work(&shared.0, &shared.1, &shared.2))
            };
            let puts = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.1.store(true, Ordering::Release);
                    shared.0.ring();
                })
            };
            let here = work(&shared.0, &shared.1, &shared.2);
            let there = other.join().unwrap();
            assert!(here ^ there, "once");
            puts.join().unwrap();
        });
    }
}
