//! Blocking on a future without an executor. Each thread has one waker, which unparks it and is
//! created when the thread first waits. The runtime knows that calling this waker takes no time and
//! harms no other thread; it knows this of no other waker (see [`unparks`]).
//!
//! A signal handler may fork while a thread is parked. The child's copy of the thread parks on, and
//! no thread there unparks it: an interrupted park is resumed, not ended. So a thread parks for
//! [`FORK_LOOK_EVERY`] at the longest, and then looks whether it is still in the process whose
//! threads it waits for. In a fork it polls no more, since a thread that does not exist there may
//! hold a lock.

use std::sync::Arc;
use std::task::{Context, Poll, RawWakerVTable, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use panoply_core::once::OnceBox;

use crate::process::Process;

/// How long a child that was forked in the middle of a wait goes on waiting, at the longest.
const FORK_LOOK_EVERY: Duration = Duration::from_millis(200);

/// Why a wait ended without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitError {
    /// The limit passed before the answer came.
    TimedOut,
    /// The caller is a fork of the process whose threads would answer.
    Forked,
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

thread_local! {
    static WAKER: Waker = waker();
}

/// The vtable of the wakers made here.
static OURS: OnceBox<&'static RawWakerVTable> = OnceBox::new();

#[inline(never)]
fn waker() -> Waker {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    OURS.get_or_make(|| waker.vtable());
    waker
}

/// Whether `waker` is the waker of a thread that blocks here. Any other waker is foreign code.
#[inline]
pub fn unparks(waker: &Waker) -> bool {
    OURS.get().is_some_and(|ours| std::ptr::eq(*ours, waker.vtable()))
}

/// Calls `poll` until it is ready. Parks in between, until `limit` at the longest, and no longer
/// than the caller is in the process `made_in`.
pub fn block_until<T>(
    made_in: Process,
    limit: Option<Instant>,
    mut poll: impl FnMut(&Context<'_>) -> Poll<T>,
) -> Result<T, WaitError> {
    // A thread that is ending has already lost its waker, but destructors of its thread-locals may
    // still block.
    let waker = WAKER.try_with(Waker::clone).unwrap_or_else(|_| waker());
    let context = Context::from_waker(&waker);
    while made_in.is_here() {
        if let Poll::Ready(value) = poll(&context) {
            return Ok(value);
        }
        let left = limit.map_or(FORK_LOOK_EVERY, |limit| limit.saturating_duration_since(Instant::now()));
        if left.is_zero() {
            return Err(WaitError::TimedOut);
        }
        std::thread::park_timeout(left.min(FORK_LOOK_EVERY));
    }
    Err(WaitError::Forked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_wakers_are_known_and_no_others() {
        let mine = WAKER.with(Waker::clone);
        let elsewhere = std::thread::spawn(|| WAKER.with(Waker::clone)).join().unwrap();
        assert!(unparks(&mine) && unparks(&elsewhere) && unparks(&mine.clone()));
        struct Other;
        impl Wake for Other {
            fn wake(self: Arc<Self>) {}
        }
        assert!(!unparks(Waker::noop()) && !unparks(&Waker::from(Arc::new(Other))));
    }
}
