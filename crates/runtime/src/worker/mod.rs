//! A program's own workers: a state that one thread owns, and messages to it.
//!
//! Implement [`Worker`] and pass it to a [`crate::WorkerPool`]. The value is created on the thread
//! that owns it and never leaves it, so it needs to be neither `Send` nor `Sync`. A worker that
//! panics or returns an error is replaced by a new one, after a wait that grows. The messages
//! behind the failed one are handled by the new worker, in order.

use std::time::Instant;

pub(crate) mod thread;
pub(crate) mod waits;

/// An error of a program's own, of any type.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A state that one thread owns. The state is the implementing type itself.
pub trait Worker: 'static {
    /// The type of its messages.
    type Message: Send + 'static;
    /// The type of its replies to requests.
    type Reply: Send + 'static;

    /// Called once on the worker's thread before the first message. If it fails at the start of a
    /// pool, the pool does not start and returns the error.
    fn init(&mut self) -> Result<(), BoxError> {
        Ok(())
    }

    /// Handles one message. The reply goes to the requester; after a `send` it is dropped. An error
    /// means that the worker can no longer be trusted: it is reported to the requester, and the
    /// worker is replaced. An answer that is a plain "no" belongs into `Reply`.
    fn handle(&mut self, envelope: Envelope<Self::Message>) -> Result<Self::Reply, BoxError>;

    /// Called at the pool's tick interval, if it has one, between messages.
    fn tick(&mut self) -> Result<(), BoxError> {
        Ok(())
    }

    /// Called once after the last message, unless the worker failed.
    fn shutdown(&mut self) {}
}

/// A message with its metadata.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope<M> {
    /// Number of this message among all messages to this worker, from 1.
    pub id: u64,
    /// The number of the sender, if the sender gave one.
    pub source: Option<u32>,
    /// The index of the receiving worker.
    pub target: u32,
    /// When it was sent, if the pool takes timestamps.
    pub sent_at: Option<Instant>,
    /// The message.
    pub message: M,
}

/// The errors of a program's own workers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// `init` failed when the pool was started.
    #[error("worker {worker} could not be started: {reason}")]
    InitFailed {
        /// The worker.
        worker: usize,
        /// Its error message.
        reason: String,
    },
    /// The worker returned an error.
    #[error("worker {worker} failed: {reason}")]
    Failed {
        /// The worker.
        worker: usize,
        /// Its error message.
        reason: String,
    },
    /// The worker panicked.
    #[error("worker {worker} panicked: {reason}")]
    Panicked {
        /// The worker.
        worker: usize,
        /// The panic's message.
        reason: String,
    },
    /// The worker failed too often and was given up.
    #[error("worker {worker} was given up after {restarts} restarts in a row: {reason}")]
    GivenUp {
        /// The worker.
        worker: usize,
        /// How often it was restarted.
        restarts: u32,
        /// The last failure.
        reason: String,
    },
    /// The pool has been stopped.
    #[error("the pool has been stopped")]
    Stopped,
    /// The worker's queue is full.
    #[error("the queue of worker {worker} is full ({queue_depth_max} messages)")]
    Busy {
        /// The worker.
        worker: usize,
        /// The capacity of its queue.
        queue_depth_max: usize,
    },
    /// There is no worker with this index.
    #[error("there is no worker {worker}; expected less than {workers}")]
    NoSuchWorker {
        /// The given index.
        worker: usize,
        /// Number of workers.
        workers: usize,
    },
    /// The partitioner could not choose.
    #[error("the message could not be assigned to a worker: {0}")]
    Partition(#[from] crate::partition::PartitionError),
    /// An invalid option of a pool.
    #[error("{what}: expected {expected}, got {got}")]
    BadOption {
        /// The option.
        what: &'static str,
        /// The accepted values.
        expected: &'static str,
        /// The given value.
        got: String,
    },
    /// A worker would wait for itself: for its own reply, for room in its own queue, or for a
    /// worker that waits for it. A message that was sent is handled; only the wait was refused.
    #[error(
        "the calling worker would wait for itself at worker {worker}, which cannot go on before the caller does; \
         expected a wait from outside the pool, or `send` without a reply"
    )]
    WaitsForItself {
        /// The worker that the caller wanted to wait for.
        worker: usize,
    },
    /// The calling process is a fork: the pool's threads are in the parent process only.
    #[error(
        "the pool belongs to process {made_in}, and this is its fork {called_in}, which has none of its threads; \
         start a new pool after the fork"
    )]
    Forked {
        /// The process that started the pool.
        made_in: u32,
        /// The process that called it.
        called_in: u32,
    },
    /// The reply did not arrive within the given time.
    #[error("worker {worker} did not reply in time")]
    TimedOut {
        /// The worker.
        worker: usize,
    },
}
