//! How a supervisor detects that a driver is stuck: by comparing what it sees at each look with the
//! look before.
//!
//! 1. A driver is stuck if it has been inside one and the same call for longer than its limit. The
//!    word of its tenure identifies that call, and another word means another call. So a driver
//!    that makes progress is never stuck, however long a visit of many calls lasts.
//! 2. A call that was not seen at the last look has begun since.
//! 3. A look that comes much later than planned shows that the supervisor was held up, and probably
//!    every other thread too: the process was stopped, its control group had used up its share, or
//!    the machine was suspended. That time does not count.

use std::time::{Duration, Instant};

use super::visit::Generation;

/// A look may be late by this multiple of its interval. Beyond that, the time counts as time in
/// which no thread ran.
const LATE_MAX: u32 = 2;

/// One look of a supervisor.
#[derive(Clone, Copy, Debug)]
pub(super) struct SupervisorLook {
    last: Instant,
    pub(super) now: Instant,
    /// How long the supervisor was held up since the last look.
    held_up: Duration,
}

impl SupervisorLook {
    /// A look at `now`, after the look at `last` and a planned wait of `wait`.
    pub(super) fn new(last: Instant, now: Instant, wait: Duration) -> SupervisorLook {
        let held_up = now.saturating_duration_since(last).saturating_sub(wait.saturating_mul(LATE_MAX));
        SupervisorLook { last, now, held_up }
    }
}

/// A supervisor's observations of one driver.
#[derive(Debug, Default)]
pub(super) struct DriverObservation {
    /// The call that the driver was inside at the last look, and how long it had lasted.
    seen: Option<(u64, Duration)>,
}

impl DriverObservation {
    /// Replaces the driver if it is stuck, and returns whether it did. The caller must then empty
    /// its table of flights, and repeat this until its thread has ended.
    pub(super) fn replaces(&mut self, generation: &Generation, look: SupervisorLook, inside_max: Duration) -> bool {
        let Some(word) = generation.tenure.entered() else {
            self.seen = None;
            return false;
        };
        let passed = look.now.saturating_duration_since(look.last).saturating_sub(look.held_up);
        let told = generation.since(word, look.now).saturating_sub(look.held_up);
        let lasted = match self.seen {
            Some((seen, lasted)) if seen == word => lasted.saturating_add(passed),
            // The call began after the last look. A word with an earlier time belongs to a driver
            // that went on to its next call without reading the clock.
            _ if told > passed => Duration::ZERO,
            _ => told,
        };
        self.seen = Some((word, lasted));
        lasted > inside_max && generation.tenure.replace(word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(100);
    const EVERY: Duration = Duration::from_millis(25);

    /// Simulates a driver, and a supervisor that looks at it at these times, in milliseconds.
    /// `between` is called before each look.
    fn stuck_at(looks: &[u64], between: impl Fn(&Generation, u64)) -> Option<u64> {
        let epoch = Instant::now();
        let (generation, mut vigil) = (Generation::new(4, epoch), DriverObservation::default());
        generation.enter(epoch);
        let mut last = epoch;
        for &ms in looks {
            let now = epoch + Duration::from_millis(ms);
            between(&generation, ms);
            if vigil.replaces(&generation, SupervisorLook::new(last, now, EVERY), LIMIT) {
                assert!(generation.tenure.is_over());
                return Some(ms);
            }
            last = now;
        }
        None
    }

    #[test]
    fn a_driver_is_stuck_after_its_limit_inside_one_call() {
        assert_eq!(stuck_at(&[25, 50, 75, 100, 125, 150], |_, _| {}), Some(125));
        let leaves = |generation: &Generation, ms| assert!(ms != 100 || generation.tenure.leave());
        assert_eq!(stuck_at(&[25, 50, 75, 100, 125, 150, 500], leaves), None);
    }

    #[test]
    fn a_driver_that_goes_on_within_its_visit_is_not_stuck() {
        let goes_on = |generation: &Generation, _| assert!(generation.tenure.go_on());
        let looks: Vec<u64> = (1..40).map(|look| 25 * look).collect();
        assert_eq!(stuck_at(&looks, goes_on), None);
        let goes_on_at_first = |generation: &Generation, ms| assert!(ms > 200 || generation.tenure.go_on());
        assert_eq!(stuck_at(&looks, goes_on_at_first), Some(325), "a whole limit after it last went on, and no sooner");
    }

    #[test]
    fn time_in_which_the_whole_process_was_stopped_does_not_count() {
        assert_eq!(stuck_at(&[25, 50, 5000], |_, _| {}), None);
        assert_eq!(stuck_at(&[5000, 5025], |_, _| {}), None);
        // Looks that are slightly late count in full.
        assert_eq!(stuck_at(&[50, 100, 150], |_, _| {}), Some(150));
        assert_eq!(stuck_at(&[25, 5000, 5025, 5050, 5075], |_, _| {}), Some(5050));
    }
}
