//! Decides when recorded small ops are submitted to the device.
//!
//! A submission costs more than recording, for the worker and for other threads too: a driver may
//! be interrupted at the end of every batch, and the thread on the CPU that takes the interrupts
//! stands still meanwhile (30 µs on an H200). So ops gather:
//!
//! 1. While the device has work, ops gather until there are enough of them, or until nothing was
//!    submitted for a moment.
//! 2. When the device is idle they are submitted at once; after a large batch as soon as the stream
//!    pauses.
//! 3. When ops came during each of the last batches, more are likely to come: from the same caller,
//!    or from callers who have just got their answers. Then they are submitted when as many are
//!    there as may come, or when none has come for a while. Without this rule, a caller that is
//!    held up by the interrupts of small batches keeps the batches small for ever.

use std::time::{Duration, Instant};

/// The most small ops in one submission.
const GATHERED_MAX: usize = 256;
/// This many ops are submitted even while the device has work, as long as it has only a few
/// batches.
const GATHERED_WANTED: usize = 64;
/// The number of batches in flight from which that no longer applies.
pub const FLIGHTS_WANTED: usize = 4;
/// Fewer ops are submitted when nothing was submitted for this long.
const GATHERING_MAX: Duration = Duration::from_micros(100);
/// After a batch of this many ops more are expected,
const STREAM_OPS_MIN: usize = 8;
/// until none has come for this long.
const STREAM_PAUSE: Duration = Duration::from_micros(4);
/// After this many batches in a row during which ops came more are expected,
const OVERLAPS_MIN: u32 = 3;
/// until none has come for this long: longer than an interrupt.
const OVERLAP_PAUSE: Duration = Duration::from_micros(50);

/// The recent arrivals and submissions.
pub struct Gathering {
    last_launch: Instant,
    last_arrival: Instant,
    /// Number of ops in the last batch.
    last_batch: usize,
    /// Number of batches in a row that left the device idle while recorded ops were waiting.
    overlaps: u32,
    /// Number of ops that may come together: those that waited when the device became idle, and
    /// those that it had just finished.
    expected: usize,
}

impl Gathering {
    pub fn new(now: Instant) -> Gathering {
        Gathering { last_launch: now, last_arrival: now, last_batch: 0, overlaps: 0, expected: 0 }
    }

    /// Notes that ops were recorded.
    pub fn arrived(&mut self, now: Instant) {
        self.last_arrival = now;
    }

    /// Notes that `ops` ops were submitted.
    pub fn launched(&mut self, now: Instant, ops: usize) {
        (self.last_launch, self.last_batch) = (now, ops);
    }

    /// Notes that a batch of `ops` ops has landed; `gathered` ops are waiting, and `flights`
    /// batches are still in flight.
    pub fn landed(&mut self, ops: usize, gathered: usize, flights: usize) {
        match (flights, gathered) {
            (0, 0) => (self.overlaps, self.expected) = (0, 0),
            (0, _) => (self.overlaps, self.expected) = (self.overlaps.saturating_add(1), gathered + ops),
            _ => {}
        }
    }

    /// Time since the last submission.
    pub fn since_launch(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_launch)
    }

    /// Whether `gathered` ops should be submitted now, with `flights` batches in flight.
    pub fn is_due(&self, now: Instant, gathered: usize, flights: usize) -> bool {
        let quiet = now.saturating_duration_since(self.last_arrival);
        let enough = if flights < FLIGHTS_WANTED { GATHERED_WANTED } else { GATHERED_MAX };
        let streams = self.last_batch >= STREAM_OPS_MIN && quiet < STREAM_PAUSE;
        let overlaps = self.overlaps >= OVERLAPS_MIN && gathered < self.expected && quiet < OVERLAP_PAUSE;
        gathered >= enough || self.since_launch(now) >= GATHERING_MAX || (flights == 0 && !streams && !overlaps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Durations of a submission, and from then until the device is seen to have finished it.
    const LAUNCH: Duration = Duration::from_micros(17);
    const FLIGHT: Duration = Duration::from_micros(19);
    /// Time to make an op, for a caller that does not wait.
    const OP: Duration = Duration::from_nanos(2_200);

    /// The batches of a caller that makes `ops` ops without waiting for any, and that the end of
    /// each batch holds up.
    fn batches_of_a_stream(ops: usize, held_up: Duration) -> Vec<usize> {
        let start = Instant::now();
        let mut gathering = Gathering::new(start);
        let (mut now, mut next_op, mut made) = (start, start, 0);
        let (mut gathered, mut flight, mut batches) = (0, None::<(Instant, usize)>, Vec::new());
        while batches.iter().sum::<usize>() < ops {
            while made < ops && next_op <= now {
                (made, gathered, next_op) = (made + 1, gathered + 1, next_op + OP);
                gathering.arrived(now);
            }
            if let Some((end, size)) = flight.take_if(|(end, _)| *end <= now) {
                next_op = next_op.max(end + held_up);
                gathering.landed(size, gathered, 0);
            }
            // One batch in flight is enough here: the test is about the beginning of batches when
            // the device is idle.
            if gathered > 0 && flight.is_none() && gathering.is_due(now, gathered, 0) {
                gathering.launched(now, gathered);
                batches.push(gathered);
                now += LAUNCH;
                flight = Some((now + FLIGHT, std::mem::take(&mut gathered)));
            }
            now += Duration::from_nanos(500);
        }
        batches
    }

    #[test]
    fn interrupts_do_not_keep_the_batches_of_a_stream_small() {
        for held_up_us in [0, 10, 25, 30, 32, 35] {
            let batches = batches_of_a_stream(10_000, Duration::from_micros(held_up_us));
            let ops_per_batch = 10_000 / batches.len();
            assert!(ops_per_batch >= 20, "held up for {held_up_us} µs: {ops_per_batch} ops in a batch");
        }
    }

    #[test]
    fn the_ops_of_a_caller_that_waits_go_at_once() {
        let mut now = Instant::now();
        let mut gathering = Gathering::new(now);
        for _ in 0..20 {
            now += Duration::from_micros(5);
            gathering.arrived(now);
            assert!(gathering.is_due(now, 1, 0));
            gathering.launched(now, 1);
            // Two more came while the first was in flight, and the caller waits for all.
            gathering.arrived(now + OP);
            now += LAUNCH + FLIGHT;
            assert!(!gathering.is_due(now, 2, 1));
            gathering.landed(1, 2, 0);
            assert!(gathering.is_due(now, 2, 0), "nothing else is expected after a few ops");
            gathering.launched(now, 2);
            now += LAUNCH + FLIGHT;
            gathering.landed(2, 0, 0);
        }
    }

    /// The state after ops came while others were in flight, several times: one more may come, or
    /// not.
    fn after_overlaps() -> (Gathering, Instant) {
        let mut now = Instant::now();
        let mut gathering = Gathering::new(now);
        for _ in 0..OVERLAPS_MIN {
            gathering.launched(now, 1);
            now += LAUNCH + FLIGHT;
            gathering.arrived(now);
            gathering.landed(1, 1, 0);
        }
        (gathering, now)
    }

    #[test]
    fn callers_that_take_turns_are_waited_for_and_go_together() {
        let (mut gathering, now) = after_overlaps();
        assert!(!gathering.is_due(now, 1, 0));
        gathering.arrived(now + OP);
        assert!(gathering.is_due(now + OP, 2, 0), "all that could come are there");
    }

    #[test]
    fn nobody_waits_long_for_an_op_that_does_not_come() {
        let (gathering, now) = after_overlaps();
        assert!(!gathering.is_due(now + OVERLAP_PAUSE / 2, 1, 0));
        assert!(gathering.is_due(now + OVERLAP_PAUSE, 1, 0));
    }
}
