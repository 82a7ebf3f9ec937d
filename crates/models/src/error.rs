//! Errors of models: in the file, in an unsupported feature, or in a run.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use panoply_runtime::TaskError;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a model cannot be loaded or run. All variants except `Run` are the fault of
/// the model's file or of the caller.
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
    /// The bytes are not an ONNX model.
    #[error("not an ONNX model: {what} (byte {at})")]
    Malformed {
        /// The problem.
        what: &'static str,
        /// The byte offset from the start of the enclosing message.
        at: usize,
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
    /// The model needs something that is not implemented.
    #[error("not supported: {what}")]
    Unsupported {
        /// The op, attribute or element type.
        what: String,
    },
    /// One node of the model is at fault.
    #[error("node {node:?} ({op}): {cause}")]
    Node {
        /// The node's name, or the name of its first output.
        node: String,
        /// The node's op.
        op: String,
        /// The problem.
        cause: Box<Error>,
    },
    /// Running on a device failed.
    #[error(transparent)]
    Run(#[from] panoply_core::Error),
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

    pub(crate) fn file(path: &std::path::Path, cause: std::io::Error) -> Error {
        Error::File { path: path.to_owned(), cause: Arc::new(cause) }
    }

    /// Whether the model needs something that is not implemented, as opposed to being wrong.
    pub fn is_unsupported(&self) -> bool {
        match self {
            Error::Unsupported { .. } => true,
            Error::Node { cause, .. } => cause.is_unsupported(),
            _ => false,
        }
    }
}

impl TaskError for Error {
    fn of_op(&self) -> Option<&panoply_core::Error> {
        match self {
            Error::Run(cause) => Some(cause),
            Error::Node { cause, .. } => cause.of_op(),
            _ => None,
        }
    }
}
