//! A lane's books: what it has accepted, and how each of it ended. Whoever ends an op does it here, so that it is taken off
//! the books exactly once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use panoply_core::{Error, ErrorKind};
use tracing::Level;

use super::task::{Seat, Task};
use super::{ABORT, Lane, OpTicket, WorkerCounters, WorkerReport};
use crate::foreign::{discard, tell};
use crate::health::Mark;
use crate::sync::CacheLine;

#[derive(Default)]
pub(crate) struct Counts {
    /// Written by callers; the rest by the worker. Neither shall slow the other down.
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
}

impl Lane {
    /// Ends an op with an error: it goes elsewhere where its caller allows that, and otherwise the caller gets the error.
    pub(crate) fn fail(&self, mut ticket: OpTicket, error: Error) {
        let mark = match error.kind() {
            ErrorKind::Device if !matches!(error, Error::DeviceUnavailable { .. } | Error::ObjectLost { .. }) => {
                Mark::Failure
            }
            _ => Mark::Neither,
        };
        let may_move = match ticket.question_mut() {
            Some(task) => {
                self.settle(task, mark, self.clock.now());
                let may_move = task.may_move(&error) && self.mode.load(Ordering::Acquire) != ABORT;
                if may_move {
                    task.note_failure(self.number, self.info.id, &error);
                }
                may_move
            }
            None => false,
        };
        if !may_move {
            return self.fail_finally(ticket, error);
        }
        tell(Level::DEBUG, || {
            tracing::debug!(target: "panoply::fallback", device = %self.info.id, %error, "an op leaves its device");
        });
        self.hand_over(ticket, true);
    }

    /// Ends an op that waited for room in a lane that is closed.
    pub(crate) fn refuse(&self, mut ticket: OpTicket, error: Error) {
        if let Some(task) = ticket.question_mut() {
            // It was never in the queue, and so is on no books but the router's.
            task.load_ns = 0;
        }
        self.counts.accepted.fetch_add(1, Ordering::Relaxed);
        self.fail(ticket, error);
    }

    /// Sends an op on, by way of the relay.
    pub(crate) fn hand_over(&self, ticket: OpTicket, fallback: bool) {
        match self.inlet.take(ticket, self.info.id) {
            Ok(()) => {
                self.counts.fallbacks.fetch_add(u64::from(fallback), Ordering::Relaxed);
                self.counts.moved.fetch_add(1, Ordering::Release);
            }
            Err((mut ticket, refusal)) => {
                let failure = ticket.question_mut().and_then(|task| task.history.as_mut()?.failure.take());
                self.fail_finally(ticket, failure.unwrap_or(refusal));
            }
        }
    }

    /// Ends an op that was settled before with an error for its caller.
    pub(crate) fn fail_finally(&self, mut ticket: OpTicket, error: Error) {
        self.counts.failed.fetch_add(1, Ordering::Release);
        // The answer first: a destructor that does not return keeps nobody waiting.
        let question = ticket.take_question();
        ticket.answer(Err(error));
        discard(question);
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
    pub(crate) fn settle(&self, task: &mut Task, mark: Mark, now: Instant) {
        self.unload(std::mem::take(&mut task.load_ns));
        // At other stops than its target an op is neither a probe nor an explorer.
        let seat = if task.forecast.target == self.number { task.seat.take() } else { None };
        let probe = seat.is_some_and(Seat::end_probe);
        if self.gate.breaker.note(mark, probe, self.since_epoch_ns(now), &self.rules) {
            tell(Level::WARN, || {
                let device = self.info.id;
                tracing::warn!(target: "panoply::health", %device, "the device fails too often: its circuit opens");
            });
        }
    }

    pub(crate) fn unload(&self, load_ns: u64) {
        if load_ns > 0 {
            self.backlog_ns.fetch_sub(load_ns, Ordering::Relaxed);
        }
    }

    /// Whether everything that was accepted has ended.
    pub(crate) fn is_quiet(&self) -> bool {
        let counts = &self.counts;
        let ended = [&counts.completed, &counts.failed, &counts.cancelled, &counts.moved];
        let ended: u64 = ended.iter().map(|counter| counter.load(Ordering::Acquire)).sum();
        ended >= counts.accepted.load(Ordering::Acquire)
    }

    /// The work that waits or runs, in nanoseconds as predicted.
    pub(crate) fn backlog_ns(&self) -> u64 {
        self.backlog_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn report(&self) -> WorkerReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &self.counts;
        WorkerReport {
            device: self.info.id,
            state: self.state(),
            trouble: self.trouble.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone(),
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
            },
            health: self.gate.report(),
        }
    }

    /// Answers everything that waits in the closed queues, or hands it on.
    pub(crate) fn refuse_queued(&self) {
        while let Some(ticket) = self.next_left() {
            self.fail(ticket, self.refusal());
        }
    }
}
