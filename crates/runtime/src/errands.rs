//! Foreign code that is called for somebody else's sake: wakers, destructors and listeners of ops that a supervisor or a shutdown
//! has answered. By then every op has its outcome, so nobody but the owner of that code has to wait for it.
//!
//! 1. Errands are run in order, one after the other, on a thread made for them, which ends when there are none left.
//! 2. A thread that is inside one errand for longer than [`ERRAND_TIME_MAX`] is left behind, and another goes on with the rest. It
//!    ends when it comes back.
//! 3. At most [`THREADS_MAX`] threads are left behind at a time. Beyond that the rest waits until one of them comes back.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::foreign::contain;
use crate::threads::{self, Owner};

/// How long one errand may take before the others go on without it.
const ERRAND_TIME_MAX: Duration = Duration::from_millis(100);
/// How many threads may be inside an errand at once.
const THREADS_MAX: usize = 16;

/// A call of foreign code.
pub(crate) type Errand = Box<dyn FnOnce() + Send>;

/// See the module's rules.
pub(crate) struct Errands {
    owner: Owner,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Errand>,
    /// The thread that takes errands, by its number, and since when it is inside one.
    runner: Option<(u64, Option<Instant>)>,
    next_number: u64,
    /// How many threads there are.
    threads: usize,
}

impl Errands {
    pub(crate) fn new(owner: Owner) -> Errands {
        Errands { owner, state: Arc::default() }
    }

    /// Has this run on another thread, soon.
    pub(crate) fn send(&self, errands: impl IntoIterator<Item = Errand>) {
        lock(&self.state).waiting.extend(errands);
        self.look();
    }

    /// Has these values, whose destructors are foreign, dropped on another thread, soon.
    pub(crate) fn drop_all<T: Send + 'static>(&self, values: impl IntoIterator<Item = T>) {
        self.send(values.into_iter().map(|value| Box::new(move || drop(value)) as Errand));
    }

    /// Sees to it that a thread takes errands where some wait.
    pub(crate) fn look(&self) {
        let number = {
            let mut state = lock(&self.state);
            let stuck = |since: Option<Instant>| since.is_some_and(|since| since.elapsed() > ERRAND_TIME_MAX);
            let free = state.runner.is_none_or(|(_, since)| stuck(since));
            if state.waiting.is_empty() || !free || state.threads >= THREADS_MAX {
                return;
            }
            state.next_number += 1;
            state.threads += 1;
            state.runner = Some((state.next_number, None));
            state.next_number
        };
        let there = Arc::clone(&self.state);
        if self.owner.spawn("panoply-errands".to_owned(), move || run(&there, number)).is_err() {
            // Where no thread can be made it is done here.
            self.owner.here(|| run(&self.state, number));
        }
    }

    /// Waits until every errand was begun, and has ended or is left behind; for so long at the most.
    pub(crate) fn finish(&self, time_max: Duration) -> bool {
        threads::wait_until(time_max, || {
            self.look();
            let state = lock(&self.state);
            let inside = state.runner.and_then(|(_, since)| since);
            state.waiting.is_empty() && inside.is_none_or(|since| since.elapsed() > ERRAND_TIME_MAX)
        })
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Takes errands until there are none left, or another thread takes them.
fn run(shared: &Mutex<State>, number: u64) {
    let mut state = lock(shared);
    while state.runner.is_some_and(|(runner, _)| runner == number) {
        let Some(errand) = state.waiting.pop_front() else {
            state.runner = None;
            break;
        };
        state.runner = Some((number, Some(Instant::now())));
        drop(state);
        let _ = contain(errand);
        state = lock(shared);
        if state.runner.is_some_and(|(runner, _)| runner == number) {
            state.runner = Some((number, None));
        }
    }
    state.threads -= 1;
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
        assert!(threads::wait_until(Duration::from_secs(10), || lock(&errands.state).threads == 0), "threads end");
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
