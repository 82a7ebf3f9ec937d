//! A program's own workers: a state that one thread owns, and messages to it.
//!
//! Implement [`Worker`] and give it to a [`crate::WorkerPool`]. The value is made on the thread that owns it and never
//! leaves it, so it needs to be neither `Send` nor `Sync`. A worker that panics or answers with an error is replaced by a
//! new one, after a wait that grows; the messages behind the failed one are handled by the new worker, in order.

use std::time::Instant;

pub(crate) mod thread;

/// An error of a program's own, whatever its type.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A state that one thread owns. The state is the implementing type itself.
pub trait Worker: 'static {
    /// What is sent to it.
    type Message: Send + 'static;
    /// What it answers to a request.
    type Reply: Send + 'static;

    /// Called once on the worker's thread before the first message. An error at the start of a pool is the pool's error.
    fn init(&mut self) -> Result<(), BoxError> {
        Ok(())
    }

    /// Handles one message. The reply reaches whoever made a request; after `send` it is dropped. An error means that
    /// the worker can no longer be trusted: it is reported to the requester, and the worker is replaced. An answer that a
    /// requester should see as a plain "no" belongs into `Reply`.
    fn handle(&mut self, envelope: Envelope<Self::Message>) -> Result<Self::Reply, BoxError>;

    /// Called at the pool's tick interval, if it has one, between messages.
    fn tick(&mut self) -> Result<(), BoxError> {
        Ok(())
    }

    /// Called once after the last message, unless the worker failed.
    fn shutdown(&mut self) {}
}

/// A message with what is known of its way.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope<M> {
    /// Counts the messages to this worker from 1.
    pub id: u64,
    /// Who sent it, if the sender said so.
    pub source: Option<u32>,
    /// The index of the worker it was sent to.
    pub target: u32,
    /// When it was sent, where the pool was asked to take timestamps.
    pub sent_at: Option<Instant>,
    /// The message.
    pub message: M,
}

/// What can go wrong with a program's own workers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// `init` failed when the pool was started.
    #[error("worker {worker} could not be started: {reason}")]
    InitFailed {
        /// Which worker.
        worker: usize,
        /// What it said.
        reason: String,
    },
    /// The worker answered with an error.
    #[error("worker {worker} failed: {reason}")]
    Failed {
        /// Which worker.
        worker: usize,
        /// What it said.
        reason: String,
    },
    /// The worker panicked.
    #[error("worker {worker} panicked: {reason}")]
    Panicked {
        /// Which worker.
        worker: usize,
        /// The panic's message.
        reason: String,
    },
    /// The worker failed too often and was given up.
    #[error("worker {worker} was given up after {restarts} restarts in a row: {reason}")]
    GivenUp {
        /// Which worker.
        worker: usize,
        /// How often it was restarted.
        restarts: u32,
        /// What went wrong last.
        reason: String,
    },
    /// The pool has been stopped.
    #[error("the pool has been stopped")]
    Stopped,
    /// The worker's queue is full.
    #[error("the queue of worker {worker} is full ({queue_depth_max} messages)")]
    Busy {
        /// Which worker.
        worker: usize,
        /// How many messages its queue holds.
        queue_depth_max: usize,
    },
    /// No such worker.
    #[error("there is no worker {worker}; expected less than {workers}")]
    NoSuchWorker {
        /// The index that was given.
        worker: usize,
        /// How many workers there are.
        workers: usize,
    },
    /// The partitioner could not choose.
    #[error("the message could not be assigned to a worker: {0}")]
    Partition(#[from] crate::partition::PartitionError),
    /// A pool's options make no sense.
    #[error("{what}: expected {expected}, got {got}")]
    BadOption {
        /// Which option.
        what: &'static str,
        /// What would have been accepted.
        expected: &'static str,
        /// What was given.
        got: String,
    },
    /// The reply did not come within the given time.
    #[error("worker {worker} did not reply in time")]
    TimedOut {
        /// Which worker.
        worker: usize,
    },
}
