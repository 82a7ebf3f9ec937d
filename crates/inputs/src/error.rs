//! Errors of inputs: in a file, in an unsupported feature of it, or in a caller's value.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why an input cannot be read, or an output has no meaning.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("{}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        cause: Arc<std::io::Error>,
    },
    /// Something is larger than this crate accepts.
    #[error("{what}: at most {limit}, got {got}")]
    Limit {
        /// The quantity that is too large.
        what: &'static str,
        /// The bound.
        limit: u64,
        /// The requested amount.
        got: u64,
    },
    /// A value is not as required.
    #[error("{what}: expected {expected}, got {got}")]
    Invalid {
        /// The value's name.
        what: Cow<'static, str>,
        /// The accepted values.
        expected: Cow<'static, str>,
        /// The value found.
        got: String,
    },
    /// A file or an output needs something that is not implemented.
    #[error("not supported: {what}")]
    Unsupported {
        /// The feature.
        what: String,
    },
    /// A tensor cannot be made, for example for lack of memory.
    #[error(transparent)]
    Tensor(#[from] panoply_core::Error),
}

impl Error {
    /// An [`Error::Invalid`].
    pub(crate) fn invalid(
        what: impl Into<Cow<'static, str>>,
        expected: impl Into<Cow<'static, str>>,
        got: impl ToString,
    ) -> Error {
        Error::Invalid { what: what.into(), expected: expected.into(), got: got.to_string() }
    }

    /// An [`Error::Unsupported`].
    pub(crate) fn unsupported(what: impl Into<String>) -> Error {
        Error::Unsupported { what: what.into() }
    }

    /// Whether a file or an output needs something that is not implemented, as opposed to being
    /// wrong.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Error::Unsupported { .. })
    }

    pub(crate) fn file(path: &Path, cause: std::io::Error) -> Error {
        Error::File { path: path.to_owned(), cause: Arc::new(cause) }
    }
}
