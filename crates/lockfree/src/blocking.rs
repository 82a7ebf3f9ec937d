//! Blocking on a future without an executor. Each thread has one waker, which unparks it and is
//! created when the thread first waits. The runtime knows that calling this waker takes no time and
//! harms no other thread; it knows this of no other waker (see [`unparks`]).

use std::sync::Arc;
use std::task::{Context, Poll, RawWakerVTable, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

use panoply_core::once::OnceBox;

/// The limit passed before the answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimedOut;

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

/// Calls `poll` until it is ready. Parks in between, until `limit` at the longest.
pub fn block_until<T>(limit: Option<Instant>, mut poll: impl FnMut(&Context<'_>) -> Poll<T>) -> Result<T, TimedOut> {
    // A thread that is ending has already lost its waker, but destructors of its thread-locals may
    // still block.
    let waker = WAKER.try_with(Waker::clone).unwrap_or_else(|_| waker());
    let context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(value) = poll(&context) {
            return Ok(value);
        }
        match limit {
            None => std::thread::park(),
            Some(limit) => match limit.checked_duration_since(Instant::now()) {
                Some(left) if !left.is_zero() => std::thread::park_timeout(left),
                _ => return Err(TimedOut),
            },
        }
    }
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
