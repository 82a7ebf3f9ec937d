//! Channels into a pipeline and out of it. Their rings are the pipeline's own, so a full pipeline
//! blocks its senders, and a slow receiver blocks the pipeline (back-pressure).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use futures_core::Stream;
use panoply_lockfree::blocking::block_until;
use panoply_lockfree::ring::Ring;

use super::control::Signals;
use super::error::PipelineError;

/// The end into which a program sends items. Clones share it; the pipeline's source ends when the
/// last clone is dropped.
pub struct Sender<T: Send + 'static>(Arc<ChannelState<T>>);

struct ChannelState<T: Send + 'static> {
    ring: Arc<Ring<T>>,
    signals: Arc<Signals>,
    taken: Arc<AtomicU64>,
}

/// The pipeline accepts no more items; the unsent value is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pipeline takes no more items")]
pub struct SendError<T>(pub T);

/// Why an item was not accepted; the item is returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrySendError<T> {
    /// The ring is full.
    #[error("the pipeline's first ring is full")]
    Full(T),
    /// The pipeline accepts no more items.
    #[error("the pipeline takes no more items")]
    Closed(T),
}

impl<T: Send + 'static> Sender<T> {
    pub(crate) fn new(ring: &Arc<Ring<T>>, signals: &Arc<Signals>, taken: &Arc<AtomicU64>) -> Sender<T> {
        let (ring, signals, taken) = (Arc::clone(ring), Arc::clone(signals), Arc::clone(taken));
        Sender(Arc::new(ChannelState { ring, signals, taken }))
    }

    /// Sends an item, waiting while the pipeline's first ring is full. Items may be sent before the
    /// pipeline is started.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        let mut unsent = match self.try_send(value) {
            Ok(()) => return Ok(()),
            Err(TrySendError::Closed(value)) => return Err(SendError(value)),
            Err(TrySendError::Full(value)) => Some(value),
        };
        let sent = block_until(self.0.signals.process, None, |context| {
            self.0.ring.wait_for_room(context.waker());
            match unsent.take().map(|value| self.try_send(value)) {
                None | Some(Ok(())) => Poll::Ready(Ok(())),
                Some(Err(TrySendError::Closed(value))) => Poll::Ready(Err(SendError(value))),
                Some(Err(TrySendError::Full(value))) => {
                    unsent = Some(value);
                    Poll::Pending
                }
            }
        });
        // In a fork the value is still here, unless it was sent before.
        sent.unwrap_or_else(|_| unsent.take().map_or(Ok(()), |value| Err(SendError(value))))
    }

    /// Sends an item if there is room now.
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        if !self.0.signals.process.is_here() {
            return Err(TrySendError::Closed(value));
        }
        match self.0.ring.push_next(Instant::now(), value) {
            Ok(()) => {
                self.0.taken.fetch_add(1, Ordering::Relaxed);
                self.0.signals.bell.ring();
                Ok(())
            }
            Err(value) if self.0.ring.is_ended() => Err(TrySendError::Closed(value)),
            Err(value) => Err(TrySendError::Full(value)),
        }
    }
}

impl<T: Send + 'static> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        Sender(Arc::clone(&self.0))
    }
}

impl<T: Send + 'static> Drop for ChannelState<T> {
    fn drop(&mut self) {
        if !self.signals.process.is_here() {
            return;
        }
        self.ring.end();
        self.signals.bell.ring();
    }
}

/// The end from which a program takes a pipeline's items: a blocking iterator and a [`Stream`].
/// Dropping it before the pipeline has ended stops the pipeline.
pub struct Receiver<T: Send + 'static> {
    ring: Arc<Ring<T>>,
    signals: Arc<Signals>,
    arrived: Arc<AtomicU64>,
    stage: String,
}

impl<T: Send + 'static> Receiver<T> {
    pub(crate) fn new(
        ring: Arc<Ring<T>>,
        signals: Arc<Signals>,
        arrived: Arc<AtomicU64>,
        stage: String,
    ) -> Receiver<T> {
        Receiver { ring, signals, arrived, stage }
    }

    /// Waits for the next item. `None` after the last one, or if the pipeline was stopped.
    pub fn recv(&mut self) -> Option<T> {
        let received = block_until(self.signals.process, None, |context| {
            self.poll_item(&mut Context::from_waker(context.waker()))
        });
        received.unwrap_or(None)
    }

    /// The next item, if it is available now.
    pub fn try_recv(&mut self) -> Option<T> {
        if !self.signals.process.is_here() {
            return None;
        }
        loop {
            let item = self.ring.pop()?;
            self.signals.bell.ring();
            // An item that was left out on its way has no value.
            if let Some(value) = item.value {
                self.arrived.fetch_add(1, Ordering::Relaxed);
                return Some(value);
            }
        }
    }

    fn poll_item(&mut self, context: &mut Context<'_>) -> Poll<Option<T>> {
        if !self.signals.process.is_here() {
            // In a fork, the run's output goes to the parent process.
            return Poll::Ready(None);
        }
        for look_again in [true, false] {
            if let Some(value) = self.try_recv() {
                return Poll::Ready(Some(value));
            }
            if self.ring.is_finished() {
                return Poll::Ready(None);
            }
            if look_again {
                self.ring.wait_for_items(context.waker());
            }
        }
        Poll::Pending
    }
}

impl<T: Send + 'static> Iterator for Receiver<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.recv()
    }
}

impl<T: Send + 'static> Stream for Receiver<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        self.poll_item(context)
    }
}

impl<T: Send + 'static> Drop for Receiver<T> {
    fn drop(&mut self) {
        if self.signals.process.is_here() && !self.ring.is_finished() {
            self.signals.stop(PipelineError::ReceiverGone { stage: std::mem::take(&mut self.stage) });
            self.ring.abandon();
        }
    }
}
