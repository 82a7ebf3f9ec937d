//! The future of a list of ops.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use panoply_core::{Outcome, Result};

use crate::pending::PendingOutcome;

/// A list of ops in flight. Their outcomes come together, in the order of the list, from `.await`
/// or from [`PendingMany::wait`]. Each op has an outcome of its own: one that fails does not affect
/// the others. Dropping the list cancels the ops that have not been started yet.
#[must_use = "dropping pending ops cancels them"]
pub struct PendingMany<T> {
    inner: PendingManyOutcomes<T>,
}

/// A list of ops in flight whose reports are wanted too; see [`PendingMany::with_reports`].
#[must_use = "dropping pending ops cancels them"]
pub struct PendingManyOutcomes<T> {
    /// The ops that are not known to be done, in order.
    pending: std::vec::IntoIter<PendingOutcome<T>>,
    /// The op that is waited for. The ops behind it are looked at when it is done: most are done by
    /// then, so each op is woken and polled about once.
    front: Option<PendingOutcome<T>>,
    done: Vec<Result<Outcome<T>>>,
}

impl<T> PendingMany<T> {
    pub(crate) fn new(pending: Vec<PendingOutcome<T>>) -> PendingMany<T> {
        let done = Vec::with_capacity(pending.len());
        PendingMany { inner: PendingManyOutcomes { pending: pending.into_iter(), front: None, done } }
    }

    /// Blocks until all outputs are available.
    pub fn wait(self) -> Vec<Result<T>> {
        outputs(self.inner.wait())
    }

    /// The same ops, returning their reports together with their outputs.
    pub fn with_reports(self) -> PendingManyOutcomes<T> {
        self.inner
    }

    /// Number of ops.
    pub fn len(&self) -> usize {
        self.inner.done.len() + self.inner.pending.len() + usize::from(self.inner.front.is_some())
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<T> PendingManyOutcomes<T> {
    /// Blocks until all outcomes are available.
    pub fn wait(mut self) -> Vec<Result<Outcome<T>>> {
        let front = self.front.take();
        self.done.extend(front.into_iter().chain(self.pending.by_ref()).map(PendingOutcome::wait));
        self.done
    }
}

fn outputs<T>(outcomes: Vec<Result<Outcome<T>>>) -> Vec<Result<T>> {
    outcomes.into_iter().map(|outcome| outcome.map(|outcome| outcome.output)).collect()
}

impl<T: Unpin> Future for PendingMany<T> {
    type Output = Vec<Result<T>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.inner).poll(context).map(outputs)
    }
}

impl<T: Unpin> Future for PendingManyOutcomes<T> {
    type Output = Vec<Result<Outcome<T>>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        while let Some(mut front) = this.front.take().or_else(|| this.pending.next()) {
            match Pin::new(&mut front).poll(context) {
                Poll::Ready(outcome) => this.done.push(outcome),
                Poll::Pending => {
                    this.front = Some(front);
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(std::mem::take(&mut this.done))
    }
}
