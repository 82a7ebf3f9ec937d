//! Blocking on a future without an executor: each thread has one waker, made when it first waits, that unparks it.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Instant;

/// The limit passed before the answer came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimedOut;

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
    static WAKER: Waker = Waker::from(Arc::new(Unpark(std::thread::current())));
}

/// Calls `poll` until it is ready, parking in between, at the longest until the limit.
pub(crate) fn block_until<T>(
    limit: Option<Instant>,
    mut poll: impl FnMut(&Context<'_>) -> Poll<T>,
) -> Result<T, TimedOut> {
    WAKER.with(|waker| {
        let context = Context::from_waker(waker);
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
    })
}
