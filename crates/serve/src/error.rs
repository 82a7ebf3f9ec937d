//! Errors of serving: of a model, of its inputs, of a caller's settings, or for lack of room.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use panoply_runtime::TaskError;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason why a request, a model or an ensemble has no answer. All variants except `Busy` and
/// `Run` are the fault of a file or of the caller.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A folder cannot be read, or a thread cannot be started.
    #[error("{}: {cause}", path.display())]
    File {
        /// The folder.
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
    /// The model has inputs or outputs for which nothing is implemented.
    #[error("not supported: {what}")]
    Unsupported {
        /// The input or output.
        what: String,
    },
    /// There is no room at the moment. The caller may try again.
    #[error("{what}: there is no room for more than {limit}")]
    Busy {
        /// The queue or memory that is full.
        what: &'static str,
        /// The bound.
        limit: u64,
    },
    /// The model's file, or the inputs that the model was given.
    #[error(transparent)]
    Model(panoply_models::Error),
    /// A picture, a text, labels, or an output that has no meaning for the task.
    #[error(transparent)]
    Input(panoply_inputs::Error),
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

    pub(crate) fn file(path: &Path, cause: std::io::Error) -> Error {
        Error::File { path: path.to_owned(), cause: Arc::new(cause) }
    }

    /// Whether something that is needed is not implemented, as opposed to being wrong.
    pub fn is_unsupported(&self) -> bool {
        match self {
            Error::Unsupported { .. } => true,
            Error::Model(cause) => cause.is_unsupported(),
            Error::Input(cause) => cause.is_unsupported(),
            _ => false,
        }
    }
}

impl From<panoply_models::Error> for Error {
    fn from(error: panoply_models::Error) -> Error {
        match error {
            panoply_models::Error::Run(cause) => Error::Run(cause),
            other => Error::Model(other),
        }
    }
}

impl From<panoply_inputs::Error> for Error {
    fn from(error: panoply_inputs::Error) -> Error {
        match error {
            panoply_inputs::Error::Tensor(cause) => Error::Run(cause),
            other => Error::Input(other),
        }
    }
}

impl TaskError for Error {
    fn of_op(&self) -> Option<&panoply_core::Error> {
        match self {
            Error::Run(cause) => Some(cause),
            Error::Model(cause) => cause.of_op(),
            _ => None,
        }
    }
}
