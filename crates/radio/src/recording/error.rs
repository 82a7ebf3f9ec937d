//! The errors of recordings.

use std::io;

/// The reason why a recording cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordingError {
    /// An I/O error of the system.
    #[error("{what}: {source}")]
    Io {
        /// The file, or the part of it.
        what: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The recording ends before it should.
    #[error("{what}: cut short, expected {expected} bytes more, got {got}")]
    CutShort {
        /// The part that is cut short.
        what: &'static str,
        /// The number of bytes that are missing.
        expected: u64,
        /// The number of bytes that are present.
        got: u64,
    },
    /// A part of the recording is invalid.
    #[error("{what}: expected {expected}, got {got}")]
    Invalid {
        /// The invalid part.
        what: &'static str,
        /// The values that are accepted.
        expected: String,
        /// The value that was found.
        got: String,
    },
    /// The samples cannot form a tensor.
    #[error(transparent)]
    Tensor(#[from] panoply_core::Error),
}

impl RecordingError {
    /// Makes the error for an invalid part.
    pub(super) fn invalid(what: &'static str, expected: &str, got: impl ToString) -> RecordingError {
        RecordingError::Invalid { what, expected: expected.to_owned(), got: got.to_string() }
    }
}
