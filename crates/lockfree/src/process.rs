//! Detects a fork. A child process has a copy of its parent's memory, but only the thread that
//! called `fork`. So objects made before the fork have lost their threads, and locks that those
//! threads held are never released.
//!
//! 1. Every object with threads keeps the [`Process`] in which it was made, and compares it.
//!    [`panoply_core::process`] describes how a fork is detected: two reads of memory that is
//!    rarely written.
//! 2. A call on an object of another process is refused with [`Error::Forked`] and never waits.
//!    Such an object is dropped without joining its threads: it stays in memory until the child
//!    ends. Device memory belongs to the parent and is not released.
//! 3. In a fork a lock may stay locked for ever, so [`lock`] gives up there after a while. State of
//!    the whole process, rather than of one runtime, is made again in a fork: see [`PerProcess`].
//! 4. A signal handler may fork while the interrupted thread waits. The child returns into a wait
//!    that no thread will end. So callers wait in parts, and look between two parts whether they
//!    are still in the process: see [`crate::blocking`] and [`lock`].

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use panoply_core::Error;

/// How long a fork waits for a lock that a thread of its parent may have held.
const FORK_LOCK_WAIT_MAX: Duration = Duration::from_millis(50);

/// The pauses between two tries to take a lock.
const LOCK_PAUSE_MIN: Duration = Duration::from_micros(20);
const LOCK_PAUSE_MAX: Duration = Duration::from_millis(1);

/// The process in which something was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(panoply_core::process::Process);

impl Process {
    /// The calling process.
    #[inline]
    pub fn current() -> Process {
        Process(panoply_core::process::Process::current())
    }

    /// Whether this is the calling process.
    #[inline]
    pub fn is_here(self) -> bool {
        self.0.is_current()
    }

    /// Returns an error in a fork of this process. `what` names the called object, such as
    /// `the runtime`.
    #[inline]
    pub fn check(self, what: &'static str) -> Result<(), Error> {
        if self.is_here() { Ok(()) } else { Err(self.refusal(what)) }
    }

    /// The error for a caller in another process.
    #[cold]
    pub fn refusal(self, what: &'static str) -> Error {
        Error::Forked { what, made_in: self.id(), called_in: std::process::id() }
    }

    /// The id of the process.
    pub fn id(self) -> u32 {
        self.0.id()
    }
}

impl Default for Process {
    fn default() -> Process {
        Process::current()
    }
}

/// A value that each process has for itself. A fork begins with a new value and leaks its parent's,
/// because a thread of the parent may have been changing it.
pub struct PerProcess<T: 'static>(AtomicPtr<(Process, T)>);

impl<T: Default + Send + Sync> Default for PerProcess<T> {
    fn default() -> PerProcess<T> {
        PerProcess::new()
    }
}

impl<T: Default + Send + Sync> PerProcess<T> {
    /// A value that no process has used yet.
    pub const fn new() -> PerProcess<T> {
        PerProcess(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// The value of the calling process. It is created on first use, without waiting for any other
    /// thread.
    pub fn get(&'static self) -> &'static T {
        let mut known = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: the pointer is null, or came from `Box::into_raw` below and is never freed
            // once it was stored.
            if let Some((process, value)) = unsafe { known.as_ref() }
                && process.is_here()
            {
                return value;
            }
            let made = Box::into_raw(Box::new((Process::current(), T::default())));
            match self.0.compare_exchange(known, made, Ordering::AcqRel, Ordering::Acquire) {
                // SAFETY: the value was just allocated, and is never freed from now on.
                Ok(_) => return unsafe { &(*made).1 },
                Err(other) => {
                    // SAFETY: the value was just allocated, and no other thread has seen it.
                    drop(unsafe { Box::from_raw(made) });
                    known = other;
                }
            }
        }
    }
}

/// Takes a lock. `None` in a fork if a thread that does not exist there holds it, even if the fork
/// happens during this call.
pub fn lock<T>(mutex: &Mutex<T>, made_in: Process) -> Option<MutexGuard<'_, T>> {
    let mut forked_since: Option<Instant> = None;
    let mut pause = LOCK_PAUSE_MIN;
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
        if !made_in.is_here() && forked_since.get_or_insert_with(Instant::now).elapsed() > FORK_LOCK_WAIT_MAX {
            return None;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LOCK_PAUSE_MAX);
    }
}
