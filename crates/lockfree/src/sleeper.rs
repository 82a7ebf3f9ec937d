//! Spins briefly, then parks: how a worker waits for its queue, and how other threads wake it.
//!
//! 1. A worker that finds nothing to do spins for a bounded time, looking again and again. While
//!    work keeps coming it never sleeps, and the threads that give it work make no system call.
//!    A thread that computes may take the CPU of one that yields for milliseconds, while a thread
//!    that parks gets a CPU back as soon as it is woken. So after a yield that lasted long, no
//!    thread of the process yields for a while: all park at once.
//! 2. Then it publishes its thread handle in `parked`, looks once more, and parks. A waker looks at
//!    `parked` after it has published the work. Both put a fence between their two steps (see
//!    `uneven_fence`), so at least one of them sees the other: a wake-up is never lost.
//! 3. A thread that swaps the handle out owns it and unparks that thread, exactly once. So it does
//!    not matter which thread sleeps here: a worker's replacement uses the same sleeper.

use std::time::{Duration, Instant};

use crate::sync::{AtomicPtr, Ordering, spin_loop, thread};
use crate::uneven_fence;

/// How long a worker spins before it parks: longer than the gap between ops of a busy caller, and
/// too short to show up on a processor meter.
#[cfg(not(loom))]
pub const SPIN_US_MAX: u64 = 50;
/// The model checker tries every schedule, so spinning finds nothing new.
#[cfg(loom)]
pub const SPIN_US_MAX: u64 = 0;

/// After this time a spinning thread yields its CPU: the thread that it waits for may be runnable
/// on the same CPU.
const YIELD_AFTER_US: u64 = 3;

/// The most pause instructions between two looks: below half a microsecond.
const SPIN_PAUSES_MAX: u32 = 8;

/// Lets one thread sleep until another wakes it. See the module's rules.
#[derive(Debug, Default)]
pub struct Sleeper {
    parked: AtomicPtr<thread::Thread>,
}

impl Sleeper {
    /// A sleeper without a parked thread.
    #[inline]
    pub fn new() -> Sleeper {
        Sleeper { parked: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Wakes the parked thread, if there is one. Call this after the work has been published.
    #[inline]
    pub fn wake(&self) {
        uneven_fence::frequent();
        if !self.parked.load(Ordering::Relaxed).is_null() {
            self.wake_parked();
        }
    }

    /// Waits until `ready` returns true, until woken, or until the time limit. It may return early,
    /// so the caller must look again.
    pub fn sleep(&self, limit: Option<Instant>, mut ready: impl FnMut() -> bool) {
        if !spin(SPIN_US_MAX, &mut ready) {
            self.rest(limit, ready);
        }
    }

    /// [`Sleeper::sleep`] without spinning.
    pub fn rest(&self, limit: Option<Instant>, mut ready: impl FnMut() -> bool) {
        let handle = Box::into_raw(Box::new(thread::current()));
        self.forget(self.parked.swap(handle, Ordering::AcqRel));
        let reliable = uneven_fence::rare();
        if !ready() {
            park(if reliable { limit } else { soonest(limit) });
        }
        // Take the handle back, unless a waker already has.
        if self.parked.compare_exchange(handle, std::ptr::null_mut(), Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.forget(handle);
        }
    }

    #[cold]
    fn wake_parked(&self) {
        let handle = self.parked.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !handle.is_null() {
            // SAFETY: the swap made this thread the handle's only owner (rule 3); it came from
            // `Box::into_raw`.
            unsafe { Box::from_raw(handle) }.unpark();
        }
    }

    fn forget(&self, handle: *mut thread::Thread) {
        if !handle.is_null() {
            // SAFETY: the caller took the handle out of `parked`, so it is its only owner.
            drop(unsafe { Box::from_raw(handle) });
        }
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.forget(self.parked.swap(std::ptr::null_mut(), Ordering::AcqRel));
    }
}

/// Checks `ready` repeatedly for `spin_us_max`, and returns whether it became true. With a single
/// CPU nothing can change while this thread spins, so it checks only once.
pub fn spin(spin_us_max: u64, ready: &mut impl FnMut() -> bool) -> bool {
    spin_after(0, spin_us_max, ready)
}

/// [`spin`] for a thread that has already spun for `spun_us`: it yields its CPU that much sooner.
pub fn spin_after(spun_us: u64, spin_us_max: u64, ready: &mut impl FnMut() -> bool) -> bool {
    if ready() {
        return true;
    }
    if spin_us_max == 0 || single_cpu() {
        return false;
    }
    let start = Instant::now();
    let yield_after = Duration::from_micros(YIELD_AFTER_US.saturating_sub(spun_us));
    let mut pauses = 1;
    loop {
        // Longer pauses leave the cache line to the thread that writes it, so that it can publish
        // several items between two reads. Otherwise each item costs two cache misses.
        (0..pauses).for_each(|_| spin_loop());
        if ready() {
            return true;
        }
        pauses = (pauses * 2).min(SPIN_PAUSES_MAX);
        let spun = start.elapsed();
        if spun >= Duration::from_micros(spin_us_max) {
            return false;
        }
        if spun >= yield_after {
            if crowding::is_crowded(start) {
                return false;
            }
            thread::yield_now();
            let yielded = start.elapsed().saturating_sub(spun);
            if yielded >= crowding::YIELD_MIN {
                crowding::note(start + spun + yielded);
                return ready();
            }
        }
    }
}

/// Whether the threads of this process share their CPUs with threads that compute. Measured by
/// yielding.
mod crowding {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use panoply_core::once::OnceBox;

    /// A yield that lasted this long went to a thread that computes.
    pub(super) const YIELD_MIN: Duration = Duration::from_micros(200);
    /// How long no thread yields after that, in microseconds.
    const LASTS_US: u64 = 1_000_000;

    /// The end of that time, in microseconds since the first yield of the process.
    static UNTIL_US: AtomicU64 = AtomicU64::new(0);

    pub(super) fn is_crowded(now: Instant) -> bool {
        let until_us = UNTIL_US.load(Ordering::Relaxed);
        until_us > 0 && since_first_us(now) < until_us
    }

    /// Notes that a yield lasted long.
    pub(super) fn note(now: Instant) {
        UNTIL_US.fetch_max(since_first_us(now).saturating_add(LASTS_US), Ordering::Relaxed);
    }

    fn since_first_us(now: Instant) -> u64 {
        static FIRST: OnceBox<Instant> = OnceBox::new();
        let first = FIRST.get_or_make(|| now);
        u64::try_from(now.saturating_duration_since(*first).as_micros()).unwrap_or(u64::MAX)
    }

    #[cfg(all(test, not(loom)))]
    mod tests {
        use super::*;

        #[test]
        fn no_thread_yields_for_a_while_after_a_yield_that_lasted_long() {
            let now = Instant::now();
            note(now);
            let later = |us: u64| now + Duration::from_micros(us);
            assert!(is_crowded(now) && is_crowded(later(LASTS_US - 1)) && !is_crowded(later(LASTS_US)));
            let spun = super::super::spin(10_000_000, &mut || false);
            assert!(!spun && now.elapsed() < Duration::from_secs(1), "it gives up instead of yielding");
        }
    }
}

/// The limit, or one millisecond from now if that is sooner. Used on systems on which a wake-up
/// could be missed.
fn soonest(limit: Option<Instant>) -> Option<Instant> {
    let nap = Instant::now() + Duration::from_millis(1);
    Some(limit.map_or(nap, |limit| limit.min(nap)))
}

#[inline]
fn single_cpu() -> bool {
    use panoply_core::once::OnceBox;
    static SINGLE: OnceBox<bool> = OnceBox::new();
    *SINGLE.get_or_make(|| std::thread::available_parallelism().map_or(1, usize::from) == 1)
}

#[cfg(not(loom))]
fn park(limit: Option<Instant>) {
    match limit {
        Some(limit) => std::thread::park_timeout(limit.saturating_duration_since(Instant::now())),
        None => std::thread::park(),
    }
}

#[cfg(loom)]
fn park(_limit: Option<Instant>) {
    loom::thread::park();
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{Arc, AtomicBool};

    #[test]
    fn loom_a_wake_up_is_never_lost() {
        loom::model(|| {
            let shared = Arc::new((Sleeper::new(), AtomicBool::new(false)));
            let waker = {
                let shared = shared.clone();
                thread::spawn(move || {
                    shared.1.store(true, Ordering::Release);
                    shared.0.wake();
                })
            };
            while !shared.1.load(Ordering::Acquire) {
                shared.0.sleep(None, || shared.1.load(Ordering::Acquire));
            }
            waker.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_limit_ends_the_sleep() {
        let sleeper = Sleeper::new();
        let start = Instant::now();
        sleeper.sleep(Some(start + Duration::from_millis(5)), || false);
        assert!(start.elapsed() >= Duration::from_millis(4));
    }
}
