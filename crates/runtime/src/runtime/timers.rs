//! Wakes awaited ops at their deadlines. Only ops with a deadline of their own come here; a blocked caller keeps its
//! deadline by itself. One thread, started by the first use, asleep until the next deadline.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Instant;

/// See the module.
pub(crate) struct Timers {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    alarms: BinaryHeap<Reverse<Alarm>>,
    thread: Option<JoinHandle<()>>,
    stopped: bool,
}

struct Alarm {
    at: Instant,
    waker: Waker,
}

impl PartialEq for Alarm {
    fn eq(&self, other: &Alarm) -> bool {
        self.at == other.at
    }
}

impl Eq for Alarm {}

impl PartialOrd for Alarm {
    fn partial_cmp(&self, other: &Alarm) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Alarm {
    fn cmp(&self, other: &Alarm) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

impl Timers {
    pub(crate) fn new() -> Timers {
        Timers { shared: Arc::new(Shared::default()) }
    }

    /// Wakes `waker` at this time, or at once when the timers have been stopped.
    pub(crate) fn wake_at(&self, at: Instant, waker: &Waker) {
        let mut state = self.shared.lock();
        if state.thread.is_none() && !state.stopped {
            let shared = Arc::clone(&self.shared);
            let name = "panoply-timers".to_owned();
            state.thread = std::thread::Builder::new().name(name).spawn(move || shared.run()).ok();
        }
        if state.stopped || state.thread.is_none() {
            // The op polls again, sees that nobody will wake it later, and is polled until its outcome comes.
            waker.wake_by_ref();
            return;
        }
        state.alarms.push(Reverse(Alarm { at, waker: waker.clone() }));
        self.shared.changed.notify_one();
    }

    /// Wakes everybody and ends the thread.
    pub(crate) fn stop(&self) {
        let thread = {
            let mut state = self.shared.lock();
            state.stopped = true;
            state.alarms.drain().for_each(|Reverse(alarm)| alarm.waker.wake());
            state.thread.take()
        };
        self.shared.changed.notify_one();
        if let Some(thread) = thread {
            // A waker that panics is the caller's code; there is nobody left to tell.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn run(&self) {
        let mut state = self.lock();
        while !state.stopped {
            let now = Instant::now();
            let mut due = Vec::new();
            while state.alarms.peek().is_some_and(|Reverse(alarm)| alarm.at <= now) {
                due.extend(state.alarms.pop().map(|Reverse(alarm)| alarm.waker));
            }
            if !due.is_empty() {
                drop(state);
                due.into_iter().for_each(Waker::wake);
                state = self.lock();
                continue;
            }
            let wait = state.alarms.peek().map(|Reverse(alarm)| alarm.at - now);
            state = match wait {
                Some(wait) => match self.changed.wait_timeout(state, wait) {
                    Ok((guard, _)) => guard,
                    Err(poisoned) => poisoned.into_inner().0,
                },
                None => self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner()),
            };
        }
    }
}
