//! The threads of a runtime: started with the mark of their owner, and ended without waiting for oneself or for ever.
//!
//! A waker is called on the thread that answers its op, and may drop the last handle of the runtime there. So whoever ends
//! threads must know whether it runs on one of them.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

thread_local! {
    /// The runtime that this thread works for; zero for everybody else's threads.
    static OWNER: Cell<u64> = const { Cell::new(0) };
}

/// One runtime among others, by which its threads know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u64);

impl Owner {
    pub(crate) fn new() -> Owner {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Owner(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Starts a thread of this runtime.
    pub(crate) fn spawn(self, name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
        std::thread::Builder::new().name(name).spawn(move || {
            OWNER.set(self.0);
            body();
        })
    }

    /// Whether the calling thread is one of this runtime's.
    pub(crate) fn is_here(self) -> bool {
        OWNER.try_with(Cell::get).is_ok_and(|owner| owner == self.0)
    }
}

/// Whether this is the calling thread.
pub(crate) fn is_current(thread: &JoinHandle<()>) -> bool {
    thread.thread().id() == std::thread::current().id()
}

/// Waits for a thread to end, for so long at the most. One that does not, or that is the calling one, is left behind.
pub(crate) fn join_within(thread: JoinHandle<()>, time_max: Duration) -> bool {
    if is_current(&thread) || !wait_until(time_max, || thread.is_finished()) {
        return false;
    }
    if let Err(panic) = thread.join() {
        crate::foreign::discard(panic);
    }
    true
}

/// Looks again and again until `done` answers true; false when the time is over first.
pub(crate) fn wait_until(time_max: Duration, mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    let mut pause = Duration::from_micros(20);
    while !done() {
        if start.elapsed() >= time_max {
            return false;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(2));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_knows_its_runtime_and_nobody_waits_for_ever() {
        let (mine, other) = (Owner::new(), Owner::new());
        assert!(!mine.is_here());
        let quick = mine.spawn("quick".to_owned(), move || assert!(mine.is_here() && !other.is_here())).unwrap();
        assert!(join_within(quick, Duration::from_secs(10)));
        let slow = mine.spawn("slow".to_owned(), || std::thread::sleep(Duration::from_millis(200))).unwrap();
        assert!(!join_within(slow, Duration::from_millis(5)));
    }
}
