//! Times: instants that may lie beyond the range of the clock, and durations in whole nanoseconds.

use std::time::{Duration, Instant};

/// A wait of one hundred years, longer than any program runs.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The instant after this wait. Waits are capped at a hundred years.
#[inline]
pub fn later(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait.min(NEVER)).unwrap_or(now)
}

/// The earlier of two optional times.
#[inline]
pub fn sooner(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// A duration in whole nanoseconds.
#[inline]
pub fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wait_is_too_long() {
        let now = Instant::now();
        assert_eq!(later(now, Duration::from_secs(5)), now + Duration::from_secs(5));
        assert!(later(now, Duration::MAX) > now + NEVER / 2);
    }
}
