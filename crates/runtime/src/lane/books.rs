//! A lane's books: what it has accepted, and how each of it ended. Whoever ends an op does it here, so that it is taken off
//! the books exactly once.
//!
//! Ending an op with an error calls foreign code: its caller's waker, destructors of what it held, listeners of events. All of it
//! comes after the answer, as an [`Ended`]. Whoever ends the ops of others, such as a supervisor or a shutdown, gives all of them
//! their answers first, and has the rest done elsewhere.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use panoply_core::{DeviceId, Error, ErrorKind};
use tracing::Level;

use super::task::{Seat, Task};
use super::{ABORT, Lane, OpRemains, OpTicket, WorkerCounters, WorkerReport};
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

/// The foreign code that an op which has ended leaves to be called: that is done when this is dropped.
pub(crate) struct Ended {
    device: DeviceId,
    /// The circuit of the device opened over it.
    tripped: bool,
    /// Why it left for another device, if it did.
    left: Option<Error>,
    /// What is left of its ticket, unless it left.
    remains: Option<OpRemains>,
}

impl Drop for Ended {
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
    /// Ends an op with an error, and calls the foreign code that belongs to it; see [`Lane::end`].
    pub(crate) fn fail(&self, ticket: OpTicket, error: Error) {
        drop(self.end(ticket, error));
    }

    /// Ends an op with an error: it goes elsewhere where its caller allows that, and otherwise the caller gets the error. No foreign
    /// code is called.
    pub(crate) fn end(&self, mut ticket: OpTicket, error: Error) -> Ended {
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
        Ended { device: self.info.id, tripped, left, remains }
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
        if let Err((ticket, failure)) = self.try_hand_over(ticket, fallback) {
            self.fail_finally(ticket, failure);
        }
    }

    /// [`Lane::hand_over`] that hands the op back, with the error for its caller, where the relay does not take it.
    #[allow(clippy::result_large_err)] // A ticket that is handed back with the reason.
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

    /// Ends an op that was settled before with an error for its caller.
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
    pub(crate) fn settle(&self, task: &mut Task, mark: Mark, now: Instant) {
        if self.take_off_books(task, mark, now) {
            tell_tripped(self.info.id);
        }
    }

    /// [`Lane::settle`] that tells nobody. Returns whether the device's circuit has opened.
    fn take_off_books(&self, task: &mut Task, mark: Mark, now: Instant) -> bool {
        self.unload(std::mem::take(&mut task.load_ns));
        // At other stops than its target an op is neither a probe nor an explorer.
        let seat = if task.forecast.target == self.number { task.seat.take() } else { None };
        let probe = seat.is_some_and(Seat::end_probe);
        self.gate.breaker.note(mark, probe, self.since_epoch_ns(now), &self.rules)
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

    /// Closes the lane, and ends everything that waits in it or for room in it: it is answered, or goes elsewhere.
    #[must_use = "what is foreign is called when this is dropped"]
    pub(crate) fn end_queued(&self) -> Vec<Ended> {
        self.shut();
        std::iter::from_fn(|| self.next_left()).map(|ticket| self.end(ticket, self.refusal())).collect()
    }
}
