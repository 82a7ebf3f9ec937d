//! The threads of a runtime: they carry the mark of their owner, and ending them never waits for
//! the calling thread itself, nor for ever.
//!
//! A waker is called on the thread that answers its op, and may drop the last handle of the runtime
//! there. So code that ends threads must know whether it runs on one of them.
//!
//! No thread is joined. Joining waits for the destructors of the thread's locals, which may be
//! foreign code, and the payload of a thread's panic is foreign too. A thread that ends reports
//! this itself, before those destructors run.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use panoply_lockfree::foreign::contain;

use crate::address_space;

/// How many threads of one kind may be stuck in foreign code that does not return. Each of them
/// costs its stack, and code that blocks this many would block any number. Beyond that, no stuck
/// thread is replaced until one of them returns.
pub(crate) const STUCK_THREADS_MAX: usize = 16;

thread_local! {
    /// The runtime that this thread works for; zero for all other threads.
    static OWNER: Cell<u64> = const { Cell::new(0) };
}

/// The mark by which a runtime recognises its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u64);

impl Owner {
    pub(crate) fn new() -> Owner {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Owner(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Starts a thread of this runtime.
    pub(crate) fn spawn(self, name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<Thread> {
        spawn(name, move || self.here(body))
    }

    /// Runs `body` as if on a thread of this runtime.
    pub(crate) fn here(self, body: impl FnOnce()) {
        let before = OWNER.replace(self.0);
        body();
        OWNER.set(before);
    }

    /// Whether the calling thread belongs to this runtime.
    pub(crate) fn is_here(self) -> bool {
        OWNER.try_with(Cell::get).is_ok_and(|owner| owner == self.0)
    }
}

/// Whether the calling thread belongs to some runtime. Such a thread must not wait for a device.
pub(crate) fn is_runtimes() -> bool {
    OWNER.try_with(Cell::get).is_ok_and(|owner| owner != 0)
}

/// A thread that was started.
pub struct Thread {
    id: ThreadId,
    end: Arc<ThreadEnd>,
}

/// The end of a thread.
#[derive(Default)]
struct ThreadEnd {
    over: AtomicBool,
    panic: OnceLock<String>,
}

/// Starts a thread. A panic ends only this thread, and its message is kept.
pub fn spawn(name: String, body: impl FnOnce() + Send + 'static) -> std::io::Result<Thread> {
    address_space::check_room_for_thread()?;
    let end = Arc::new(ThreadEnd::default());
    let there = Arc::clone(&end);
    let started = std::thread::Builder::new().name(name).spawn(move || {
        if let Err(message) = contain(body) {
            let _ = there.panic.set(message);
        }
        there.over.store(true, Ordering::Release);
    })?;
    Ok(Thread { id: started.thread().id(), end })
}

impl Thread {
    /// Whether this is the calling thread.
    pub fn is_current(&self) -> bool {
        self.id == std::thread::current().id()
    }

    /// Whether the thread has ended. A caller that sees this also sees all writes of the thread.
    pub(crate) fn is_finished(&self) -> bool {
        self.end.over.load(Ordering::Acquire)
    }

    /// The message of the panic that ended the thread, if one did.
    pub(crate) fn panic(&self) -> Option<&str> {
        self.end.panic.get().map(String::as_str)
    }

    /// Waits for the thread to end, for `time_max` at the longest. Returns false if it does not
    /// end, or if it is the calling thread.
    pub fn ends_within(&self, time_max: Duration) -> bool {
        !self.is_current() && wait_until(time_max, || self.is_finished())
    }
}

/// Polls until `done` returns true. Returns false if `time_max` passes first.
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
        assert!(!mine.is_here() && !is_runtimes());
        let quick = move || assert!(mine.is_here() && !other.is_here() && is_runtimes());
        let quick = mine.spawn("quick".to_owned(), quick).unwrap();
        assert!(quick.ends_within(Duration::from_secs(10)) && quick.panic().is_none());
        let slow = mine.spawn("slow".to_owned(), || std::thread::sleep(Duration::from_millis(200))).unwrap();
        assert!(!slow.ends_within(Duration::from_millis(5)));
        mine.here(|| assert!(mine.is_here()));
        assert!(!mine.is_here());
    }

    #[test]
    fn a_thread_has_ended_though_the_destructors_of_its_locals_have_not() {
        struct Slow;
        impl Drop for Slow {
            fn drop(&mut self) {
                std::thread::sleep(Duration::from_secs(3));
            }
        }
        thread_local! {
            static SLOW: Slow = const { Slow };
        }
        let start = Instant::now();
        let body = || {
            SLOW.with(|_| {});
            std::panic::resume_unwind(Box::new("it died"));
        };
        let thread = spawn("slow to leave".to_owned(), body).unwrap();
        assert!(thread.ends_within(Duration::from_secs(10)) && start.elapsed() < Duration::from_secs(2));
        assert_eq!(thread.panic(), Some("it died"));
    }
}
