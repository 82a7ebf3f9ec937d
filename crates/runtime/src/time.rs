//! Times: points that may lie too far ahead to be told, and spans as whole nanoseconds.

use std::time::{Duration, Instant};

/// Later than anything happens.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The time after this wait. A wait that ends beyond what the clock can tell ends in a hundred years.
pub(crate) fn later(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait.min(NEVER)).unwrap_or(now)
}

/// The first of two times, of which there may be none.
pub(crate) fn sooner(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// A span in whole nanoseconds.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
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
