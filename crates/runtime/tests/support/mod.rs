//! Shared parts of several tests, of this crate and of the pipelines above it: a minimal executor.
#![allow(dead_code)] // Each test uses a part of it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

/// Polls a future on this thread until it is ready, for `time_max` at the longest. Polls from time
/// to time even without a wake-up, so that a failing waker does not matter.
pub fn poll_for<F: Future>(future: &mut Pin<Box<F>>, waker: &Waker, time_max: Duration) -> Option<F::Output> {
    let start = Instant::now();
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(waker)) {
            return Some(value);
        }
        if start.elapsed() > time_max {
            return None;
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// A waker that unparks the thread that made it.
pub fn unpark() -> Waker {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    Waker::from(Arc::new(Unpark(std::thread::current())))
}

/// Waits until a condition is true.
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A number from the environment, or `otherwise`.
pub fn asked_for(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}
