//! Wakes awaited ops at their deadlines. Only ops with a deadline of their own come here; a blocked
//! caller watches its deadline itself. One thread, started on first use, sleeps until the next
//! deadline.
//!
//! An alarm never outlives the future that set it: it is removed when the op is done or the future
//! is dropped. Wakers are foreign: they are cloned, called and dropped without the lock, one at a
//! time, and their panics are contained. A thread whose waker does not return is replaced, and ends
//! when the waker returns. If [`STUCK_THREADS_MAX`] threads are stuck in this way, alarms wait
//! until one returns: an awaited op is then not woken at its deadline, but still when its outcome
//! comes.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::Waker;
use std::time::{Duration, Instant};

use panoply_lockfree::foreign::{contain, discard};

use crate::process::Process;
use crate::threads::{Owner, STUCK_THREADS_MAX, Thread};

/// How long a waker may hold up the end of the thread before the thread is left behind.
const STOP_GRACE: Duration = Duration::from_millis(500);

/// The timers of a runtime. See the module.
pub(crate) struct Timers {
    owner: Owner,
    process: Process,
    shared: Arc<SharedTimers>,
}

/// An alarm that was set. It can be removed with `Timers::forget`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Alarm {
    at: Instant,
    number: u64,
}

#[derive(Default)]
struct SharedTimers {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    alarms: BTreeMap<Alarm, Waker>,
    next: u64,
    thread: Option<Thread>,
    /// How many threads were replaced before this one.
    replaced: u64,
    /// The replaced threads that have not returned.
    stuck: Vec<Thread>,
    /// Since when the thread is inside a waker, if it is.
    calling: Option<Instant>,
    stopped: bool,
}

impl Timers {
    pub(crate) fn new(owner: Owner) -> Timers {
        Timers { owner, process: Process::current(), shared: Arc::new(SharedTimers::default()) }
    }

    /// Wakes `waker` at this time. `None` if the timers have been stopped: the waker is called at
    /// once.
    pub(crate) fn wake_at(&self, at: Instant, waker: &Waker) -> Option<Alarm> {
        let copy = waker.clone();
        let mut state = self.shared.lock();
        if state.thread.is_none() && !state.stopped {
            state.thread = self.spawn(state.replaced);
        }
        if state.stopped || state.thread.is_none() {
            drop(state);
            // The op is polled again, finds no alarm, and is polled again and again until its
            // outcome comes.
            copy.wake();
            return None;
        }
        let alarm = Alarm { at, number: state.next };
        state.next += 1;
        state.alarms.insert(alarm, copy);
        let first = state.alarms.first_key_value().is_some_and(|(first, _)| *first == alarm);
        drop(state);
        if first {
            self.shared.changed.notify_one();
        }
        Some(alarm)
    }

    /// Replaces the thread if it has been inside one waker for longer than `call_time_max`.
    pub(crate) fn look(&self, now: Instant, call_time_max: Duration) {
        let mut state = self.shared.lock();
        state.stuck.retain(|thread| !thread.is_finished());
        let too_long = state.calling.is_some_and(|since| now.saturating_duration_since(since) > call_time_max);
        if too_long && !state.stopped && state.stuck.len() < STUCK_THREADS_MAX {
            state.replaced += 1;
            state.calling = None;
            let next = self.spawn(state.replaced);
            let stuck = std::mem::replace(&mut state.thread, next);
            state.stuck.extend(stuck);
        }
    }

    fn spawn(&self, number: u64) -> Option<Thread> {
        let shared = Arc::clone(&self.shared);
        self.owner.spawn("panoply-timers".to_owned(), move || shared.run(number)).ok()
    }

    /// Removes an alarm.
    pub(crate) fn forget(&self, alarm: Alarm) {
        if !self.process.is_here() {
            // No thread of a fork will ring the alarm, and the lock may stay locked for ever.
            return;
        }
        let waker = self.shared.lock().alarms.remove(&alarm);
        discard(waker);
    }

    /// Ends the thread. Returns the wakers of all remaining alarms; the caller must call them,
    /// because no other thread will.
    #[must_use = "whoever waits is to be woken"]
    pub(crate) fn stop(&self) -> Vec<Waker> {
        let (thread, alarms) = {
            let mut state = self.shared.lock();
            state.stopped = true;
            (state.thread.take(), std::mem::take(&mut state.alarms))
        };
        self.shared.changed.notify_one();
        if let Some(thread) = thread {
            thread.ends_within(STOP_GRACE);
        }
        alarms.into_values().collect()
    }

    /// Number of alarms that are set.
    #[cfg(test)]
    pub(crate) fn alarms(&self) -> usize {
        self.shared.lock().alarms.len()
    }
}

impl SharedTimers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The main function of the thread with this number. It ends when another thread has taken its
    /// place.
    fn run(&self, number: u64) {
        let mut state = self.lock();
        while !state.stopped && state.replaced == number {
            let now = Instant::now();
            if let Some(first) = state.alarms.first_entry().filter(|first| first.key().at <= now) {
                let waker = first.remove();
                state.calling = Some(now);
                drop(state);
                let _ = contain(|| waker.wake());
                state = self.lock();
                if state.replaced == number {
                    state.calling = None;
                }
                continue;
            }
            let wait = state.alarms.first_key_value().map(|(first, _)| first.at.saturating_duration_since(now));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_waker_that_does_not_return_keeps_nobody_elses_alarm() {
        struct Once(Mutex<Option<std::sync::mpsc::Receiver<()>>>);
        impl Wake for Once {
            fn wake(self: Arc<Self>) {
                let receiver = self.0.lock().unwrap().take().unwrap();
                let _ = receiver.recv_timeout(Duration::from_secs(20));
            }
        }
        let (go_on, receiver) = std::sync::mpsc::channel();
        let (timers, counts) = (Timers::new(Owner::new()), Arc::new(WakeCounter(AtomicUsize::new(0))));
        let now = Instant::now();
        timers.wake_at(now, &Waker::from(Arc::new(Once(Mutex::new(Some(receiver))))));
        timers.wake_at(now + Duration::from_millis(5), &Waker::from(Arc::clone(&counts)));
        let rung = || counts.0.load(Ordering::SeqCst) == 1;
        assert!(!threads::wait_until(Duration::from_millis(50), rung), "the thread is inside the first waker");
        timers.look(Instant::now(), Duration::from_secs(60));
        assert!(!threads::wait_until(Duration::from_millis(20), rung), "it may take longer than that");
        timers.look(Instant::now(), Duration::from_millis(10));
        assert!(threads::wait_until(Duration::from_secs(10), rung));
        go_on.send(()).unwrap();
        timers.wake_at(Instant::now(), &Waker::from(Arc::clone(&counts)));
        assert!(threads::wait_until(Duration::from_secs(10), || counts.0.load(Ordering::SeqCst) == 2));
        drop(timers.stop());
    }

    #[test]
    fn wakers_that_do_not_return_keep_so_many_threads_and_no_more() {
        struct Blocks(Arc<Mutex<()>>, Arc<WakeCounter>);
        impl Wake for Blocks {
            fn wake(self: Arc<Self>) {
                self.1.0.fetch_add(1, Ordering::SeqCst);
                drop(self.0.lock());
            }
        }
        let (gate, entered) = (Arc::new(Mutex::new(())), Arc::new(WakeCounter(AtomicUsize::new(0))));
        let (timers, counts) = (Timers::new(Owner::new()), Arc::new(WakeCounter(AtomicUsize::new(0))));
        let blocks = Waker::from(Arc::new(Blocks(Arc::clone(&gate), Arc::clone(&entered))));
        let closed = gate.lock().unwrap();
        (0..1000).for_each(|_| _ = timers.wake_at(Instant::now(), &blocks));
        let inside = || entered.0.load(Ordering::SeqCst);
        let look = || timers.look(Instant::now(), Duration::ZERO);
        // The stuck threads up to the limit, plus the active one.
        assert!(threads::wait_until(Duration::from_secs(20), || {
            look();
            inside() == STUCK_THREADS_MAX + 1
        }));
        for _ in 0..50 {
            look();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((inside(), timers.shared.lock().stuck.len()), (STUCK_THREADS_MAX + 1, STUCK_THREADS_MAX));
        timers.wake_at(Instant::now(), &Waker::from(Arc::clone(&counts)));
        drop(closed);
        wait_for(&counts, 1);
        assert_eq!(inside(), 1000, "each was called, and the alarm after them rang");
        assert!(threads::wait_until(Duration::from_secs(10), || {
            look();
            timers.shared.lock().stuck.is_empty()
        }));
        drop(timers.stop());
    }

    struct Panics;

    impl Wake for Panics {
        fn wake(self: Arc<Self>) {
            std::panic::resume_unwind(Box::new("a waker that panics"));
        }
    }

    fn wait_for(counts: &WakeCounter, wanted: usize) {
        let woken = || counts.0.load(Ordering::SeqCst) == wanted;
        assert!(threads::wait_until(Duration::from_secs(10), woken), "{} of {wanted}", counts.0.load(Ordering::SeqCst));
    }

    #[test]
    fn alarms_that_were_taken_back_are_gone_and_the_others_ring() {
        let (timers, counts) = (Timers::new(Owner::new()), Arc::new(WakeCounter(AtomicUsize::new(0))));
        let waker = Waker::from(Arc::clone(&counts));
        let far = Instant::now() + Duration::from_secs(3600);
        let alarms: Vec<Alarm> = (0..1000).map(|_| timers.wake_at(far, &waker).unwrap()).collect();
        alarms.into_iter().for_each(|alarm| timers.forget(alarm));
        assert_eq!(timers.alarms(), 0);
        assert_eq!(Arc::strong_count(&counts), 2, "nothing of them is kept");
        timers.wake_at(Instant::now() + Duration::from_millis(2), &waker);
        wait_for(&counts, 1);
        timers.wake_at(far, &waker);
        timers.stop().into_iter().for_each(Waker::wake);
        wait_for(&counts, 2);
        assert_eq!(timers.wake_at(far, &waker), None, "stopped timers wake at once");
        wait_for(&counts, 3);
    }

    #[test]
    fn a_waker_that_panics_stops_nobody_elses_alarm() {
        let (timers, counts) = (Timers::new(Owner::new()), Arc::new(WakeCounter(AtomicUsize::new(0))));
        let soon = || Instant::now() + Duration::from_millis(1);
        for round in 1..=3 {
            timers.wake_at(soon(), &Waker::from(Arc::new(Panics)));
            timers.wake_at(soon(), &Waker::from(Arc::clone(&counts)));
            wait_for(&counts, round);
        }
        drop(timers.stop());
    }

    #[test]
    fn the_timers_can_be_stopped_on_their_own_thread() {
        struct Stops(Arc<Timers>, Arc<WakeCounter>);
        impl Wake for Stops {
            fn wake(self: Arc<Self>) {
                drop(self.0.stop());
                self.1.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let (timers, counts) = (Arc::new(Timers::new(Owner::new())), Arc::new(WakeCounter(AtomicUsize::new(0))));
        let stops = Stops(Arc::clone(&timers), Arc::clone(&counts));
        timers.wake_at(Instant::now(), &Waker::from(Arc::new(stops)));
        wait_for(&counts, 1);
    }
}
