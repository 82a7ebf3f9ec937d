//! A lane's books: the ops that it has accepted, and how each of them ended. Every op is ended
//! here, so that it is taken off the books exactly once.
//!
//! Ending an op with an error calls foreign code: its caller's waker, destructors of the values
//! that it held, listeners of events. All of this comes after the answer, as an [`ClosingCalls`]. A
//! supervisor or a shutdown, which ends the ops of other threads, answers all of them first and has
//! the rest done elsewhere.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use panoply_core::{DeviceId, Error, ErrorKind, Report};
use panoply_lockfree::CacheLine;
use panoply_lockfree::foreign::{discard, tell};
use tracing::Level;

use super::task::{OpRequest, ProbeSeat};
use super::{ABORT, Lane, OpRemains, OpTicket, WorkerCounters, WorkerReport};
use crate::health::Mark;
use crate::process;

#[derive(Default)]
pub(crate) struct OpCounters {
    /// Written by callers; the other counters are written by the worker. A separate cache line
    /// keeps them from slowing each other down.
    pub(crate) accepted: CacheLine<AtomicU64>,
    pub(crate) completed: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) moved: AtomicU64,
    pub(crate) fallbacks: AtomicU64,
    pub(crate) relieved: AtomicU64,
    pub(crate) panics: AtomicU64,
    pub(crate) reopened: AtomicU64,
    pub(crate) replaced: AtomicU64,
    pub(crate) stray_answers: AtomicU64,
    pub(crate) verified: AtomicU64,
    pub(crate) mismatched: AtomicU64,
    pub(crate) unverified: AtomicU64,
}

/// The foreign calls that remain after an op has ended. They are made when this is dropped.
pub(crate) struct ClosingCalls {
    device: DeviceId,
    /// Whether this op opened the device's circuit.
    tripped: bool,
    /// Why the op left for another device, if it did.
    left: Option<Error>,
    /// The remains of its ticket, unless the op left.
    remains: Option<OpRemains>,
}

impl Drop for ClosingCalls {
    fn drop(&mut self) {
        if self.tripped {
            tell_tripped(self.device);
        }
        if let Some(error) = &self.left {
            tell(Level::DEBUG, || {
                tracing::debug!(target: "panoply::fallback", device = %self.device, %error, "an op leaves its device");
            });
        }
        drop(self.remains.take());
    }
}

fn tell_tripped(device: DeviceId) {
    tell(Level::WARN, || {
        tracing::warn!(target: "panoply::health", %device, "the device fails too often: its circuit opens");
    });
}

impl Lane {
    /// Ends an op with an error, and makes the foreign calls that belong to it. See [`Lane::end`].
    pub(crate) fn fail(&self, ticket: OpTicket, error: Error) {
        drop(self.end(ticket, error));
    }

    /// Ends an op with an error: the op goes to another device if its caller allows that, otherwise
    /// the caller gets the error. No foreign code is called.
    pub(crate) fn end(&self, mut ticket: OpTicket, error: Error) -> ClosingCalls {
        let mark = match error.kind() {
            ErrorKind::Device if !matches!(error, Error::DeviceUnavailable { .. } | Error::ObjectLost { .. }) => {
                Mark::Failure
            }
            _ => Mark::Neither,
        };
        let (tripped, may_move) = match ticket.question_mut() {
            Some(task) => {
                let tripped = self.take_off_books(task, mark, self.clock.now());
                let may_move = task.may_move(&error) && self.mode.load(Ordering::Acquire) != ABORT;
                if may_move {
                    task.note_failure(self.number, self.info.id, &error);
                }
                (tripped, may_move)
            }
            None => (false, false),
        };
        let (left, remains) = if may_move {
            match self.try_hand_over(ticket, true) {
                Ok(()) => (Some(error), None),
                Err((ticket, failure)) => (None, Some(self.end_finally(ticket, failure))),
            }
        } else {
            (None, Some(self.end_finally(ticket, error)))
        };
        ClosingCalls { device: self.info.id, tripped, left, remains }
    }

    /// Ends an op that waited for room in a lane that is closed.
    pub(crate) fn refuse(&self, mut ticket: OpTicket, error: Error) {
        if let Some(task) = ticket.question_mut() {
            // It was never in the queue, so the only books that it is on are the router's.
            task.load_ns = 0;
        }
        self.counts.accepted.fetch_add(1, Ordering::Relaxed);
        self.fail(ticket, error);
    }

    /// Sends an op on, through the relay.
    pub(crate) fn hand_over(&self, ticket: OpTicket, fallback: bool) {
        if let Err((ticket, failure)) = self.try_hand_over(ticket, fallback) {
            self.fail_finally(ticket, failure);
        }
    }

    /// [`Lane::hand_over`] that returns the op, with the error for its caller, if the relay does
    /// not take it.
    #[allow(clippy::result_large_err)] // The ticket is returned with the reason.
    fn try_hand_over(&self, ticket: OpTicket, fallback: bool) -> Result<(), (OpTicket, Error)> {
        let refused = |(mut ticket, refusal): (OpTicket, Error)| {
            let failure = ticket.question_mut().and_then(|task| task.history.as_mut()?.failure.take());
            (ticket, failure.unwrap_or(refusal))
        };
        self.inlet.take(ticket, self.info.id).map_err(refused)?;
        self.counts.fallbacks.fetch_add(u64::from(fallback), Ordering::Relaxed);
        self.counts.moved.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Ends an op that was already settled, with an error for its caller.
    pub(crate) fn fail_finally(&self, ticket: OpTicket, error: Error) {
        drop(self.end_finally(ticket, error));
    }

    fn end_finally(&self, ticket: OpTicket, error: Error) -> OpRemains {
        self.counts.failed.fetch_add(1, Ordering::Release);
        ticket.answer_apart(Err(error))
    }

    /// Ends an op whose caller has gone.
    pub(crate) fn cancel(&self, mut ticket: OpTicket, now: Instant) {
        if let Some(task) = ticket.question_mut() {
            self.settle(task, Mark::Neither, now);
        }
        self.counts.cancelled.fetch_add(1, Ordering::Release);
        let question = ticket.take_question();
        ticket.answer(Err(Error::Cancelled));
        discard(question);
    }

    /// Takes an op off the lane's books.
    pub(crate) fn settle(&self, task: &mut OpRequest, mark: Mark, now: Instant) {
        if self.take_off_books(task, mark, now) {
            tell_tripped(self.info.id);
        }
    }

    /// Reports to listeners that the circuit opened.
    pub(crate) fn tell_tripped(&self) {
        tell_tripped(self.info.id);
    }

    /// [`Lane::settle`] without reporting to listeners. Returns whether the device's circuit has
    /// opened.
    pub(super) fn take_off_books(&self, task: &mut OpRequest, mark: Mark, now: Instant) -> bool {
        self.unload(std::mem::take(&mut task.load_ns));
        // At other stops than its target, an op is neither a probe nor an explorer.
        let seat = if task.forecast.target == self.id { task.seat.take() } else { None };
        let probe = seat.is_some_and(ProbeSeat::end_probe);
        self.gate.breaker.note(mark, probe, self.since_epoch_ns(now), &self.rules)
    }

    /// Adds the times and bytes of a finished op to the metrics.
    pub(crate) fn note_report(&self, report: &Report) {
        let metrics = &self.metrics;
        metrics.wait.note_time(report.queued);
        metrics.run.note_time(report.ran);
        metrics.batch.note(u64::from(report.batch_size));
        metrics.add_bytes(report.bytes_moved);
        if let Some(transferred) = report.transferred {
            metrics.transfer.note_time(transferred);
        }
    }

    pub(crate) fn unload(&self, load_ns: u64) {
        if load_ns > 0 {
            self.backlog_ns.fetch_sub(load_ns, Ordering::Relaxed);
        }
    }

    /// Whether every accepted op has ended.
    pub(crate) fn is_quiet(&self) -> bool {
        let counts = &self.counts;
        let ended = [&counts.completed, &counts.failed, &counts.cancelled, &counts.moved];
        let ended: u64 = ended.iter().map(|counter| counter.load(Ordering::Acquire)).sum();
        ended >= counts.accepted.load(Ordering::Acquire)
    }

    /// The predicted time of all work that waits or runs, in nanoseconds.
    pub(crate) fn backlog_ns(&self) -> u64 {
        self.backlog_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn report(&self) -> WorkerReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &self.counts;
        WorkerReport {
            device: self.info.id,
            state: self.state(),
            trouble: process::lock(&self.trouble, self.process).and_then(|trouble| trouble.clone()),
            placement: process::lock(&self.placement, self.process)
                .map(|placement| placement.clone())
                .unwrap_or_default(),
            queued: self.queued(),
            waiting: self.waiting(),
            queue_depth_max: self.normal.capacity(),
            counters: WorkerCounters {
                accepted: read(&counts.accepted),
                completed: read(&counts.completed),
                failed: read(&counts.failed),
                cancelled: read(&counts.cancelled),
                moved: read(&counts.moved),
                fallbacks: read(&counts.fallbacks),
                relieved: read(&counts.relieved),
                panics: read(&counts.panics),
                reopened: read(&counts.reopened),
                replaced: read(&counts.replaced),
                stray_answers: read(&counts.stray_answers),
                verified: read(&counts.verified),
                mismatched: read(&counts.mismatched),
                unverified: read(&counts.unverified),
            },
            health: self.gate.report(self.process),
            pool_workers: Vec::new(),
        }
    }

    /// Closes the lane, and ends every op that waits in it or for room in it: the op is answered,
    /// or goes to another device.
    #[must_use = "what is foreign is called when this is dropped"]
    pub(crate) fn end_queued(&self) -> Vec<ClosingCalls> {
        self.shut();
        self.refuse_memory_requests();
        std::iter::from_fn(|| self.next_left()).map(|ticket| self.end(ticket, self.refusal())).collect()
    }
}
