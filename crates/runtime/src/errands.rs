//! Runs foreign code on behalf of others: wakers, destructors and listeners of ops that a
//! supervisor or a shutdown has answered. By then every op has its outcome, so only the owner of
//! that code has to wait for it.
//!
//! 1. Errands run in order, one after the other, on threads made for them. A thread ends when there
//!    is nothing left to do, or a while after that.
//! 2. While errands wait behind a running one, a second thread stands by. It takes over when the
//!    first has been inside one errand for longer than [`ERRAND_TIME_MAX`]: the first is left
//!    behind, and rejoins if its errand returns.
//! 3. At most [`THREADS_MAX`] threads are inside errands at a time. Beyond that, the remaining
//!    errands wait until one of the threads returns.
//!
//! This is public only because collections of vectors have wakers of their own to call. It is not
//! part of the runtime's interface.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use panoply_core::once::OnceBox;
use panoply_lockfree::foreign::contain;

use crate::process::Process;
use crate::threads::{self, Owner};

/// How long one errand may take before the next one starts on another thread.
const ERRAND_TIME_MAX: Duration = Duration::from_millis(100);
/// The largest number of threads.
const THREADS_MAX: usize = 16;
/// How long the threads of the process-wide `Errands::shared` wait for more errands.
const SHARED_LINGER: Duration = Duration::from_millis(500);

/// A call of foreign code.
pub type Errand = Box<dyn FnOnce() + Send>;

/// A queue of errands and its threads. See the module's rules.
pub struct Errands {
    shared: Arc<SharedErrands>,
}

struct SharedErrands {
    owner: Owner,
    process: Process,
    /// How long a thread waits for more errands.
    linger: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Errand>,
    /// The number of the running errand, and since when it runs.
    inside: Option<(u64, Instant)>,
    next_number: u64,
    threads: usize,
    /// The number of threads that are not inside an errand.
    ready: usize,
}

impl Errands {
    pub(crate) fn new(owner: Owner) -> Errands {
        Errands::lingering(owner, Duration::ZERO)
    }

    /// The errands of all code in this process that belongs to no runtime.
    pub fn shared() -> &'static Errands {
        static SHARED: OnceBox<Errands> = OnceBox::new();
        SHARED.get_or_make(|| Errands::lingering(Owner::new(), SHARED_LINGER))
    }

    fn lingering(owner: Owner, linger: Duration) -> Errands {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Errands { shared: Arc::new(SharedErrands { owner, process: Process::current(), linger, state, changed }) }
    }

    /// Runs these errands on another thread, soon.
    pub fn send(&self, errands: impl IntoIterator<Item = Errand>) {
        if !self.shared.process.is_here() {
            // A fork has none of the threads, and the lock may stay locked for ever: the errands
            // run here.
            errands.into_iter().for_each(|errand| _ = contain(errand));
            return;
        }
        let mut state = self.shared.lock();
        state.waiting.extend(errands);
        self.shared.see_to_it(state);
    }

    /// Drops these values, whose destructors are foreign, on another thread, soon.
    pub(crate) fn drop_all<T: Send + 'static>(&self, values: impl IntoIterator<Item = T>) {
        self.send(values.into_iter().map(|value| Box::new(move || drop(value)) as Errand));
    }

    /// Waits until every errand was started, and has ended or is left behind. Returns false if
    /// `time_max` passes first.
    pub(crate) fn finish(&self, time_max: Duration) -> bool {
        threads::wait_until(time_max, || {
            let state = self.shared.lock();
            state.waiting.is_empty() && state.inside.is_none_or(|(_, since)| since.elapsed() > ERRAND_TIME_MAX)
        })
    }
}

impl SharedErrands {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Makes sure that a thread is ready for the waiting errands.
    fn see_to_it(self: &Arc<SharedErrands>, mut state: MutexGuard<'_, State>) {
        if state.waiting.is_empty() {
            return;
        }
        if state.ready > 0 || state.threads >= THREADS_MAX {
            drop(state);
            return self.changed.notify_one();
        }
        state.threads += 1;
        state.ready += 1;
        let alone = state.threads == 1;
        drop(state);
        let there = Arc::clone(self);
        let spawned = self.owner.spawn("panoply-errands".to_owned(), move || there.run(there.linger));
        match spawned {
            Ok(_) => {}
            // If no thread can be made, the errands run here.
            Err(_) if alone => self.owner.here(|| self.run(Duration::ZERO)),
            Err(_) => {
                let mut state = self.lock();
                state.threads -= 1;
                state.ready -= 1;
            }
        }
    }

    /// Runs errands until none has arrived for `linger`.
    fn run(self: &Arc<SharedErrands>, linger: Duration) {
        let mut state = self.lock();
        loop {
            if state.waiting.is_empty() {
                let (guard, timed_out) = self.wait(state, linger);
                state = guard;
                if timed_out && state.waiting.is_empty() {
                    break;
                }
                continue;
            }
            let inside = state.inside.map(|(_, since)| since.elapsed());
            if let Some(left) = inside.and_then(|inside| ERRAND_TIME_MAX.checked_sub(inside)) {
                state = self.wait(state, left + Duration::from_millis(1)).0;
                continue;
            }
            state = self.run_one(state);
        }
        state.threads -= 1;
        state.ready -= 1;
    }

    /// Runs the first waiting errand.
    fn run_one<'a>(self: &'a Arc<SharedErrands>, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let Some(errand) = state.waiting.pop_front() else { return state };
        state.next_number += 1;
        let number = state.next_number;
        state.inside = Some((number, Instant::now()));
        state.ready -= 1;
        self.see_to_it(state);
        let _ = contain(errand);
        let mut state = self.lock();
        state.ready += 1;
        if state.inside.is_some_and(|(inside, _)| inside == number) {
            state.inside = None;
        }
        state
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, time_max: Duration) -> (MutexGuard<'a, State>, bool) {
        if time_max.is_zero() {
            return (state, true);
        }
        let (state, result) =
            self.changed.wait_timeout(state, time_max).unwrap_or_else(|poisoned| poisoned.into_inner());
        (state, result.timed_out())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    #[test]
    fn errands_that_do_not_return_keep_no_others() {
        let errands = Errands::new(Owner::new());
        let (done, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let errand = |number: usize| {
            let (done, open) = (Arc::clone(&done), Arc::clone(&open));
            Box::new(move || {
                match number % 5 {
                    0 => _ = threads::wait_until(Duration::from_secs(20), || open.load(Ordering::SeqCst)),
                    1 => std::panic::resume_unwind(Box::new("an errand panics")),
                    _ => {}
                }
                done.fetch_add(1, Ordering::SeqCst);
            }) as Errand
        };
        errands.send((0..20).map(errand));
        assert!(errands.finish(Duration::from_secs(10)));
        assert_eq!(done.load(Ordering::SeqCst), 12, "all but four that are stuck, and four that panicked");
        open.store(true, Ordering::SeqCst);
        assert!(threads::wait_until(Duration::from_secs(10), || done.load(Ordering::SeqCst) == 16));
        assert!(threads::wait_until(Duration::from_secs(10), || errands.shared.lock().threads == 0), "threads end");
    }

    #[test]
    fn threads_that_are_left_behind_are_bounded() {
        let errands = Errands::new(Owner::new());
        let (begun, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        errands.send((0..THREADS_MAX + 4).map(|_| {
            let (begun, open) = (Arc::clone(&begun), Arc::clone(&open));
            Box::new(move || {
                begun.fetch_add(1, Ordering::SeqCst);
                threads::wait_until(Duration::from_secs(20), || open.load(Ordering::SeqCst));
            }) as Errand
        }));
        assert!(!errands.finish(ERRAND_TIME_MAX * (THREADS_MAX as u32 + 8)));
        assert_eq!(begun.load(Ordering::SeqCst), THREADS_MAX);
        open.store(true, Ordering::SeqCst);
        assert!(errands.finish(Duration::from_secs(10)));
        assert_eq!(begun.load(Ordering::SeqCst), THREADS_MAX + 4);
    }
}
