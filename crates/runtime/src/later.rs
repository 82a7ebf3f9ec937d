//! Points in time that may lie too far ahead to be told.

use std::time::{Duration, Instant};

/// Later than anything happens.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The time after this wait. A wait that ends beyond what the clock can tell ends in a hundred years.
pub(crate) fn later(now: Instant, wait: Duration) -> Instant {
    now.checked_add(wait.min(NEVER)).unwrap_or(now)
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
