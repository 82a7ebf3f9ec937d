//! Answers that are held back until another device has confirmed them: which ops are chosen for
//! that, where they wait, and how each of them ends. The verifier takes them out of the queue here;
//! see `verify` for the rules.
//!
//! A worker puts a ticket into a bounded queue and goes on. If the queue is full, the answer is
//! handed out uncompared, and its report says so. The op stays on the books of its lane until its
//! answer is handed out, so that a shutdown waits for it.
//!
//! A device whose answer was wrong is suspected until one is right. Meanwhile all its answers are
//! compared.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use panoply_core::{DeviceId, Error, Fallback, Op, Outcome, Report, Value, Verification};
use panoply_lockfree::foreign::tell;
use panoply_lockfree::queue::{PushError, Queue};
use panoply_lockfree::sleeper::Sleeper;
use tracing::Level;

use super::{Lane, OpAnswer, OpRemains, OpTicket};
use crate::health::{Mark, WINDOW};
use crate::time::{later, nanoseconds};
use crate::verify::Verify;

/// The largest number of answers that may wait to be compared.
const COMPARISONS_MAX: usize = 8;
/// One compared op equals `1 << WHOLE_SHIFT` in the accumulator `chosen`. Every op adds its share.
const WHOLE_SHIFT: u32 = 32;
/// The start value of the accumulator, chosen so that the first op is compared.
pub(super) const CHOSEN_FIRST: u64 = (1 << WHOLE_SHIFT) - 1;
/// A device may spend this long on comparisons beyond its share of time.
const COMPARED_NS_FIRST: u64 = 1_000_000_000;

/// The comparison state that the lanes of a runtime share.
pub(crate) struct Opinions {
    pub(crate) verify: Verify,
    pub(crate) queue: Queue<PendingVerification>,
    pub(crate) sleeper: Sleeper,
}

impl Opinions {
    pub(crate) fn new(verify: Verify) -> Opinions {
        Opinions { verify, queue: Queue::new(COMPARISONS_MAX), sleeper: Sleeper::new() }
    }

    /// Refuses jobs from now on.
    pub(crate) fn close(&self) {
        self.queue.close();
        self.sleeper.wake();
    }
}

/// An op whose answer is held back.
pub(crate) struct PendingVerification {
    pub(crate) ticket: OpTicket,
    pub(crate) value: Value,
    pub(crate) report: Box<Report>,
    pub(crate) lane: Arc<Lane>,
    /// The latest time at which the answer is handed out.
    pub(crate) until: Instant,
}

impl Lane {
    /// Whether the answer to this op must be compared. An op that probes the device always is:
    /// otherwise a device that answers at once, and wrongly, would pass every probe.
    pub(crate) fn is_chosen(&self, op: &Op, asked: Option<u32>, probe: bool) -> bool {
        let Some(opinions) = &self.opinions else { return false };
        if self.info.is_processor() || !opinions.verify.wants(op, asked.is_some()) {
            return false;
        }
        // Ops with different shares use one accumulator, so that none of them avoids its turn.
        let part = match asked.unwrap_or(opinions.verify.every) {
            0 => 0,
            every => (1_u64 << WHOLE_SHIFT) / u64::from(every),
        };
        let before = if part > 0 { self.chosen.fetch_add(part, Ordering::Relaxed) } else { 0 };
        let is_turn = before >> WHOLE_SHIFT != before.wrapping_add(part) >> WHOLE_SHIFT;
        is_turn || probe || part > 0 && self.suspect.load(Ordering::Relaxed)
    }

    /// Whether the device may spend more time on comparing the answers of others.
    pub(crate) fn may_compare(&self, now: Instant) -> bool {
        let percent = self.opinions.as_ref().map_or(0, |opinions| opinions.verify.time_percent_max.min(100));
        let allowed_ns = COMPARED_NS_FIRST.saturating_add(self.since_epoch_ns(now) / 100 * u64::from(percent));
        self.compared_ns.load(Ordering::Relaxed) < allowed_ns
    }

    /// Adds the device time that a comparison took.
    pub(crate) fn note_compared(&self, taken: Duration) {
        self.compared_ns.fetch_add(nanoseconds(taken), Ordering::Relaxed);
    }

    /// Holds an answer back until it was compared. Returns all values if there is no room.
    #[allow(clippy::result_large_err)] // The values are returned.
    pub(crate) fn hold_back(
        self: &Arc<Lane>,
        ticket: OpTicket,
        value: Value,
        report: Report,
        now: Instant,
    ) -> Result<(), (OpTicket, Value, Report)> {
        let Some(opinions) = &self.opinions else { return Err((ticket, value, report)) };
        let (report, lane) = (Box::new(report), Arc::clone(self));
        let mut job = PendingVerification { ticket, value, report, lane, until: later(now, opinions.verify.wait_max) };
        if let Some(task) = job.ticket.question_mut() {
            // The device has finished with this op.
            self.unload(std::mem::take(&mut task.load_ns));
            if let Some(deadline) = task.wishes.deadline {
                // The caller must get the answer in time, compared or not.
                job.until = job.until.min(now + deadline.saturating_duration_since(now) / 2);
            }
        }
        let (job, reason) = match opinions.queue.push(job) {
            Ok(()) => {
                opinions.sleeper.wake();
                return Ok(());
            }
            Err(PushError::Full(job)) => (job, format!("{COMPARISONS_MAX} other answers wait to be compared")),
            Err(PushError::Closed(job)) => (job, "the runtime is shutting down".to_owned()),
        };
        self.counts.unverified.fetch_add(1, Ordering::Relaxed);
        let mut report = *job.report;
        report.verification = Some(Verification::Skipped { reason });
        Err((job.ticket, job.value, report))
    }

    /// Notes that an answer of the device was wrong. A single wrong answer may come from a value
    /// close to a boundary, and counts as one failure. A second one in a row counts for all the
    /// answers that were not compared.
    pub(crate) fn note_mismatch(&self) {
        self.counts.mismatched.fetch_add(1, Ordering::Relaxed);
        let every = self.opinions.as_ref().map_or(1, |opinions| opinions.verify.every.clamp(1, WINDOW));
        let stands_for = if self.suspect.swap(true, Ordering::Relaxed) { every } else { 1 };
        self.note_failures(stands_for);
    }

    /// Notes that the device and another one gave different answers, and that it is unknown which
    /// is right.
    pub(crate) fn note_doubt(&self) {
        self.counts.mismatched.fetch_add(1, Ordering::Relaxed);
        self.note_failures(1);
    }

    /// Notes that an answer of the device was right.
    fn note_agreement(&self) {
        if self.suspect.load(Ordering::Relaxed) {
            self.suspect.store(false, Ordering::Relaxed);
        }
    }

    fn note_failures(&self, count: u32) {
        let now_ns = self.since_epoch_ns(self.clock.now());
        for _ in 0..count {
            if self.gate.breaker.note(Mark::Failure, false, now_ns, &self.rules) {
                self.note_tripped();
            }
        }
    }

    /// Notes that the circuit was opened, so that every worker of the device sends the ops in its
    /// queue to other devices.
    pub(crate) fn note_tripped(&self) {
        self.trips.fetch_add(1, Ordering::Release);
        self.sleeper.wake();
    }

    /// Notes that this worker has seen the circuit open, and that the device's other workers have
    /// not.
    pub(crate) fn note_tripped_elsewhere(&self) {
        let trips = self.trips.fetch_add(1, Ordering::AcqRel) + 1;
        self.trips_seen.store(trips, Ordering::Release);
    }

    /// Whether the circuit was opened since the last call.
    pub(crate) fn take_tripped(&self) -> bool {
        let trips = self.trips.load(Ordering::Relaxed);
        trips != self.trips_seen.load(Ordering::Relaxed) && trips != self.trips_seen.swap(trips, Ordering::AcqRel)
    }
}

/// The foreign calls that remain after an answer was handed out. They are made when this is
/// dropped.
pub(crate) struct AnswerFollowUp {
    /// The device and the reason, if its answer was wrong.
    wrong: Option<(DeviceId, String)>,
    remains: Option<OpRemains>,
}

impl Drop for AnswerFollowUp {
    fn drop(&mut self) {
        if let Some((device, reason)) = &self.wrong {
            tell(Level::WARN, || {
                tracing::warn!(target: "panoply::verify", %device, %reason, "an answer is wrong");
            });
        }
        drop(self.remains.take());
    }
}

impl PendingVerification {
    /// Hands out the device's own answer.
    #[must_use = "what is foreign is called when this is dropped"]
    pub(crate) fn confirm(self, verification: Verification) -> AnswerFollowUp {
        let lane = Arc::clone(&self.lane);
        let counter = if verification.is_verified() { &lane.counts.verified } else { &lane.counts.unverified };
        counter.fetch_add(1, Ordering::Relaxed);
        if verification.is_verified() {
            lane.note_agreement();
        }
        let PendingVerification { ticket, value: output, mut report, .. } = self;
        report.verification = Some(verification);
        lane.note_report(&report);
        let answer = Ok(Outcome { output, report: *report });
        let remains = end(&lane, ticket, answer, Mark::Success, &lane.counts.completed);
        AnswerFollowUp { wrong: None, remains: Some(remains) }
    }

    /// Hands out an error: two answers differ, and it is unknown which is right.
    #[must_use = "what is foreign is called when this is dropped"]
    pub(crate) fn doubt(self, reason: &str) -> AnswerFollowUp {
        // This counts as one failure, which is noted when the op is ended with a failure mark.
        self.lane.counts.mismatched.fetch_add(1, Ordering::Relaxed);
        self.overrule(None, reason)
    }

    /// Hands out the right answer `right`, or an error if there is none that the caller's policy
    /// allows. The mismatch was already counted.
    #[must_use = "what is foreign is called when this is dropped"]
    pub(crate) fn overrule(self, right: Option<(Outcome<Value>, Verification)>, reason: &str) -> AnswerFollowUp {
        let (lane, device) = (Arc::clone(&self.lane), self.lane.info.id);
        let cause = Error::DeviceFault { device, reason: format!("its answer is wrong: {reason}") };
        let wrong = Some((device, reason.to_owned()));
        let PendingVerification { ticket, report: first, .. } = self;
        let Some((outcome, verification)) = right else {
            let remains = end(&lane, ticket, Err(cause), Mark::Failure, &lane.counts.failed);
            return AnswerFollowUp { wrong, remains: Some(remains) };
        };
        let mut report = outcome.report;
        report.queued = first.queued;
        report.ran = first.ran.saturating_add(report.ran);
        report.attempts = first.attempts.saturating_add(1);
        report.fallback = first.fallback.or(Some(Fallback { from: device, cause }));
        report.alternatives = first.alternatives;
        report.verification = Some(verification);
        lane.counts.fallbacks.fetch_add(1, Ordering::Relaxed);
        let answer = Ok(Outcome { output: outcome.output, report });
        let remains = end(&lane, ticket, answer, Mark::Failure, &lane.counts.moved);
        AnswerFollowUp { wrong, remains: Some(remains) }
    }
}

/// Takes an op off the books of its lane, and answers it.
fn end(lane: &Lane, mut ticket: OpTicket, answer: OpAnswer, mark: Mark, ended: &AtomicU64) -> OpRemains {
    let now = lane.clock.now();
    if let Some(task) = ticket.question_mut()
        && lane.take_off_books(task, mark, now)
    {
        lane.note_tripped();
    }
    ended.fetch_add(1, Ordering::Release);
    ticket.answer_apart(answer)
}
