//! Measures how a stage's time was spent. Each moment is busy, blocked (no room for its output),
//! starved (no input), or held (work was available, but no thread was free or the run was paused).

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Why a stage does nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Idle {
    Starved,
    Blocked,
    Held,
}

/// The time meter of a stage. Changed under the stage's own lock.
#[derive(Debug)]
pub(crate) struct Meter {
    active: u32,
    idle: Idle,
    since: Instant,
    times: Times,
}

/// How a stage's time was spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    /// Time in which at least one item was worked on.
    pub(crate) busy: Duration,
    pub(crate) blocked: Duration,
    pub(crate) starved: Duration,
    pub(crate) held: Duration,
    /// Working time, summed over the items that were worked on at the same time.
    pub(crate) work: Duration,
}

impl Meter {
    pub(crate) fn new(now: Instant) -> Meter {
        Meter { active: 0, idle: Idle::Starved, since: now, times: Times::default() }
    }

    /// Starts work on one more item, or run of items.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.settle(now);
        self.active += 1;
    }

    /// Ends work on one item, or run of items.
    pub(crate) fn end(&mut self, now: Instant) {
        self.settle(now);
        self.active = self.active.saturating_sub(1);
        self.idle = Idle::Held;
    }

    /// Whether the meter of a stage without work must change to this idle reason.
    pub(crate) fn differs(&self, idle: Idle) -> bool {
        self.active == 0 && self.idle != idle
    }

    /// Sets the idle reason of a stage without work from now on.
    pub(crate) fn idle(&mut self, idle: Idle, now: Instant) {
        if self.differs(idle) {
            self.settle(now);
            self.idle = idle;
        }
    }

    pub(crate) fn read(&self, now: Instant) -> Times {
        let mut copy = Meter { times: self.times, ..*self };
        copy.settle(now);
        copy.times
    }

    fn settle(&mut self, now: Instant) {
        let time = now.saturating_duration_since(self.since);
        self.since = now.max(self.since);
        if self.active > 0 {
            self.times.busy += time;
            self.times.work += time * self.active;
            return;
        }
        match self.idle {
            Idle::Starved => self.times.starved += time,
            Idle::Blocked => self.times.blocked += time,
            Idle::Held => self.times.held += time,
        }
    }
}

/// The counters of a stage.
#[derive(Debug, Default)]
pub(crate) struct StageCounters {
    pub(crate) taken: AtomicU64,
    pub(crate) given: AtomicU64,
    /// Items left out because they failed, or arrived without a value.
    pub(crate) skipped: AtomicU64,
    pub(crate) dead: AtomicU64,
    pub(crate) retried: AtomicU64,
    /// Items restarted from the host after a device failed.
    pub(crate) replaced: AtomicU64,
    /// Items discarded when the run ended early.
    pub(crate) dropped: AtomicU64,
}

impl StageCounters {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        if count > 0 {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_moment_goes_to_one_account() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut meter = Meter::new(start);
        meter.begin(at(2));
        meter.begin(at(3));
        meter.end(at(5));
        meter.end(at(6));
        meter.idle(Idle::Blocked, at(7));
        let times = meter.read(at(10));
        let ms = Duration::from_millis;
        let expected = Times { busy: ms(4), blocked: ms(3), starved: ms(2), held: ms(1), work: ms(6) };
        assert_eq!(times, expected);
    }
}
