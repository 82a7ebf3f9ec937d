//! The runtime's source of time: the system clock, or a virtual clock that a simulation moves by
//! hand.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A source of time.
pub trait Clock: Send + Sync {
    /// The current time.
    fn now(&self) -> Instant;

    /// Waits for this time, or moves a virtual clock by it.
    fn sleep(&self, time: Duration);
}

/// The system's monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// A clock that changes only when it is moved.
#[derive(Debug)]
pub struct VirtualClock {
    start: Instant,
    elapsed_ns: AtomicU64,
}

impl VirtualClock {
    /// A clock at its start time.
    pub fn new() -> VirtualClock {
        VirtualClock { start: Instant::now(), elapsed_ns: AtomicU64::new(0) }
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.elapsed_ns.fetch_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl Default for VirtualClock {
    fn default() -> VirtualClock {
        VirtualClock::new()
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Instant {
        self.start + Duration::from_nanos(self.elapsed_ns.load(Ordering::Relaxed))
    }

    /// Moves the clock forward instead of waiting.
    fn sleep(&self, time: Duration) {
        self.advance(time);
    }
}
