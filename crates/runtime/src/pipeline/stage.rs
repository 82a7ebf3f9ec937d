//! What every stage is to the machine that runs it: something that takes one step at a time.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::control::Control;
use super::meter::{Counts, Times};
use super::report::StageReport;

/// A stage. Its rings are its own affair: the machine sees that it moved something, or why it did not.
pub(crate) trait Stage: Send + Sync {
    /// Does a little of what there is to do. Several threads may be inside.
    fn step(&self, control: &Control) -> Step;

    /// How many threads would find something to do, by a look that takes no lock.
    fn wants(&self, control: &Control) -> usize;

    /// Whether a step may take long: it is in a program's own code.
    fn is_heavy(&self) -> bool;

    /// How many threads may be inside for long at the same time.
    fn threads_max(&self) -> usize;

    /// When it must be stepped, or looked at, though nothing else happens.
    fn alarm(&self, _control: &Control, _now: Instant) -> Option<Instant> {
        None
    }

    /// The item that a call has been inside for too long, if there is one.
    fn hung(&self, _now: Instant) -> Option<(u64, Duration)> {
        None
    }

    /// Lets go of everything it holds. The run has ended.
    fn abandon(&self);

    /// How many items it holds, those in its input included, and those that wait to be taken from it not.
    fn holds(&self) -> u64;

    /// How it is, one report for each of the stages that a program sees in it.
    fn report(&self, now: Instant, reports: &mut Vec<StageReport>);

    fn name(&self) -> &str;
}

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It moved something.
    Moved,
    /// There is nothing to do now.
    Nothing,
    /// It will never do anything again.
    Done,
}

/// What a report says of one stage's counts and times.
pub(crate) fn summary(name: &str, counts: &Counts, times: Times, lanes: usize) -> StageReport {
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
