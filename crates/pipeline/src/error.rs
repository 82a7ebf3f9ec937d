//! The errors of pipelines. Every error names the stage that it came from.

use std::any::Any;
use std::fmt;
use std::time::Duration;

/// Why a pipeline could not be built, or ended before its source did.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PipelineError {
    /// An invalid option of a stage.
    #[error("stage {stage}: {what}: expected {expected}, got {got}")]
    BadOption {
        /// The stage.
        stage: String,
        /// The option.
        what: &'static str,
        /// The accepted values.
        expected: String,
        /// The given value.
        got: String,
    },
    /// An item failed in a stage whose policy is to stop.
    #[error("stage {stage} failed item {item} after {attempts} attempts: {cause}")]
    Failed {
        /// The stage.
        stage: String,
        /// The item's number, counted from 0 at the source, or at the last stage that joined or
        /// split items.
        item: u64,
        /// How often it was tried.
        attempts: u32,
        /// The last failure.
        cause: Cause,
    },
    /// The source panicked or could not be read.
    #[error("source {stage} failed after {taken} items: {cause}")]
    SourceFailed {
        /// The source.
        stage: String,
        /// How many items it had given.
        taken: u64,
        /// The failure.
        cause: Cause,
    },
    /// A call in a stage did not return within the stage's time limit. Its thread ends when the
    /// call returns.
    #[error("stage {stage} has not returned from item {item} within {after:?}")]
    Hung {
        /// The stage.
        stage: String,
        /// The item of the call.
        item: u64,
        /// The limit.
        after: Duration,
    },
    /// The run's deadline passed.
    #[error("the pipeline's deadline of {after:?} passed; {inside} items were inside, most of them at stage {stage}")]
    DeadlineExceeded {
        /// The stage that had the most items.
        stage: String,
        /// How many items were inside the pipeline.
        inside: u64,
        /// The limit.
        after: Duration,
    },
    /// The receiver of the items was dropped.
    #[error("nobody takes what stage {stage} gives: its receiver was dropped")]
    ReceiverGone {
        /// The last stage.
        stage: String,
    },
    /// More items failed than the dead letters can hold.
    #[error("stage {stage} failed item {item}, and the dead letters are full ({dead_letters_max}): {cause}")]
    DeadLettersFull {
        /// The stage.
        stage: String,
        /// The item.
        item: u64,
        /// The capacity of the dead letters.
        dead_letters_max: usize,
        /// The item's failure.
        cause: Cause,
    },
    /// The program cancelled the run, or dropped it.
    #[error("the pipeline was cancelled")]
    Cancelled,
    /// The run belongs to the parent of this process, and so do its threads.
    #[error(transparent)]
    Forked(panoply_core::Error),
    /// A thread could not be started.
    #[error("the pipeline could not start its threads: {reason}")]
    NoThread {
        /// The system's error message.
        reason: String,
    },
}

/// Why one item failed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Cause {
    /// The stage's own code returned an error.
    Error(String),
    /// The stage's own code panicked.
    Panicked(String),
    /// An op failed.
    Op(panoply_core::Error),
    /// A worker of the program failed.
    Worker(panoply_runtime::WorkerError),
    /// A worker or a future did not answer in time.
    Unanswered {
        /// The time after which the request was given up.
        after: Duration,
    },
    /// The item exceeded its own deadline.
    Late {
        /// The limit.
        after: Duration,
    },
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Error(reason) => f.write_str(reason),
            Cause::Panicked(message) => write!(f, "it panicked: {message}"),
            Cause::Op(error) => error.fmt(f),
            Cause::Worker(error) => error.fmt(f),
            Cause::Unanswered { after } => write!(f, "there was no answer within {after:?}"),
            Cause::Late { after } => write!(f, "it was under way for more than {after:?}"),
        }
    }
}

/// A failed item that is not tried again, in a stage whose policy keeps such items.
pub struct DeadLetter {
    /// The stage that failed it.
    pub stage: String,
    /// Its number.
    pub item: u64,
    /// How often it was tried.
    pub attempts: u32,
    /// The last failure.
    pub cause: Cause,
    /// The item as it came to the stage, unless the stage had consumed it.
    pub value: Option<Box<dyn Any + Send>>,
}

impl fmt::Debug for DeadLetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeadLetter({}, item {}, {} attempts: {})", self.stage, self.item, self.attempts, self.cause)
    }
}
