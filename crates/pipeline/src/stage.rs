//! The interface of every stage to the machine that runs it: a stage takes one step at a time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use panoply_runtime::time::nanoseconds;

use super::control::Control;
use super::meter::{StageCounters, Times};
use super::report::StageReport;

/// A stage. It handles its rings itself: the machine only learns whether it moved something.
pub(crate) trait Stage: Send + Sync {
    /// Does a small part of the available work. Several threads may be inside.
    fn step(&self, control: &Control) -> StepOutcome;

    /// The work that could be done now. This check takes no lock.
    fn wanted(&self, control: &Control) -> StageDemand;

    /// Whether there is something to do now, and a step is expected to take [`LONG`] or more.
    fn is_slow(&self, control: &Control) -> bool;

    /// Whether a step may take long because it runs a program's own code.
    fn is_heavy(&self) -> bool;

    /// How many threads may be inside for long at the same time.
    fn threads_max(&self) -> usize;

    /// When the stage must be stepped, or checked, even if nothing else happens.
    fn alarm(&self, _control: &Control, _now: Instant) -> Option<Instant> {
        None
    }

    /// The item of a call that has exceeded its time limit, if there is one, and the limit.
    fn hung(&self, _now: Instant) -> Option<(u64, Duration)> {
        None
    }

    /// Discards everything that the stage holds. The run has ended.
    fn abandon(&self);

    /// How many items it holds, including those in its input ring, but not those in its output
    /// ring.
    fn holds(&self) -> u64;

    /// Appends one report for each of the stages that a program sees in it.
    fn report(&self, now: Instant, reports: &mut Vec<StageReport>);

    fn name(&self) -> &str;
}

/// A call into a program's code, or a run of calls, that is expected to take this long is a long
/// one: other threads must not wait for the thread that makes it. Runs of short calls are at most
/// this long.
pub(crate) const LONG: Duration = Duration::from_micros(20);

/// Items that take less than this are not worth another thread, however many of them wait: the
/// locks and the transfer from one cache to the other cost as much.
pub(crate) const SHARED_ITEM_NS_MIN: u64 = 500;

/// The work that a stage could do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StageDemand {
    /// How many threads would find something to do.
    pub(crate) threads: usize,
    /// How long all of it is expected to take, if it is worth more than one thread; otherwise zero.
    pub(crate) time_ns: u64,
}

impl StageDemand {
    pub(crate) const NOTHING: StageDemand = StageDemand { threads: 0, time_ns: 0 };

    pub(crate) fn and(self, other: StageDemand) -> StageDemand {
        let (threads, time_ns) = (self.threads + other.threads, self.time_ns.saturating_add(other.time_ns));
        StageDemand { threads, time_ns }
    }
}

/// How long an item, or a turn, of a stage takes, smoothed. Each stage writes its pace under its
/// own lock; any thread reads it.
#[derive(Debug)]
pub(crate) struct Pace(AtomicU64);

impl Pace {
    /// The initial pace: as long as nothing was measured, calls count as long.
    pub(crate) fn new() -> Pace {
        Pace(AtomicU64::new(nanoseconds(LONG)))
    }

    /// In nanoseconds, at least one.
    pub(crate) fn ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed).max(1)
    }

    pub(crate) fn is_long(&self) -> bool {
        self.ns() >= nanoseconds(LONG)
    }

    /// Adds a measurement: the last items took `each_ns` each.
    pub(crate) fn note(&self, each_ns: u64) {
        let smoothed = self.ns() - self.ns() / 4 + each_ns / 4;
        self.0.store(smoothed, Ordering::Relaxed);
    }
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepOutcome {
    /// The stage moved something.
    Moved,
    /// There is nothing to do now.
    Nothing,
    /// The stage will never do anything again.
    Done,
}

/// The report of one stage's counts and times.
pub(crate) fn summary(name: &str, counts: &StageCounters, times: Times, lanes: usize) -> StageReport {
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    StageReport {
        name: name.to_owned(),
        parallelism: lanes,
        taken: count(&counts.taken),
        given: count(&counts.given),
        skipped: count(&counts.skipped),
        dead: count(&counts.dead),
        retried: count(&counts.retried),
        replaced: count(&counts.replaced),
        dropped: count(&counts.dropped),
        busy: times.busy,
        blocked: times.blocked,
        starved: times.starved,
        held: times.held,
        work: times.work,
        queued: 0,
        queued_max: 0,
        queue_depth: 0,
        chain: None,
    }
}
