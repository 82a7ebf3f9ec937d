//! What can be wrong with a recording.

use std::io;

/// Why a recording cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// The system refused.
    #[error("{what}: {source}")]
    Io {
        /// Which file, or which part of it.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// The recording ends before it should.
    #[error("{what}: cut short, expected {expected} bytes more, got {got}")]
    CutShort {
        /// Which part.
        what: &'static str,
        /// Bytes that should be there.
        expected: u64,
        /// Bytes that are.
        got: u64,
    },
    /// Something in it makes no sense.
    #[error("{what}: expected {expected}, got {got}")]
    Invalid {
        /// What.
        what: &'static str,
        /// What would have been accepted.
        expected: String,
        /// What is there.
        got: String,
    },
    /// The samples make no tensor.
    #[error(transparent)]
    Tensor(#[from] panoply_core::Error),
}

impl RecordingError {
    /// Something that makes no sense.
    pub(super) fn invalid(what: &'static str, expected: &str, got: impl ToString) -> RecordingError {
        RecordingError::Invalid { what, expected: expected.to_owned(), got: got.to_string() }
    }
}
