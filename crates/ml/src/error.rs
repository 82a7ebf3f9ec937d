//! What can go wrong with a model: its file, what it asks for, or a run of it.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a model cannot be loaded or run. Every variant but `Run` is the fault of the model's file or of the caller.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("{}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        cause: Arc<std::io::Error>,
    },
    /// The bytes are no ONNX model.
    #[error("not an ONNX model: {what} (byte {at})")]
    Malformed {
        /// What is wrong.
        what: &'static str,
        /// Where, counted from the start of the message that holds it.
        at: usize,
    },
    /// Something is larger than this crate accepts.
    #[error("{what}: at most {limit}, got {got}")]
    Limit {
        /// What is too large.
        what: &'static str,
        /// The bound.
        limit: u64,
        /// What was asked for.
        got: u64,
    },
    /// A value is not what it has to be.
    #[error("{what}: expected {expected}, got {got}")]
    Invalid {
        /// Which value.
        what: Cow<'static, str>,
        /// What would have fitted.
        expected: Cow<'static, str>,
        /// What was there.
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
        /// Its name, or that of its first output.
        node: String,
        /// Its op.
        op: String,
        /// What is wrong.
        cause: Box<Error>,
    },
    /// There is no room at the moment; what was asked for may be asked for again.
    #[error("{what}: there is no room for more than {limit}")]
    Busy {
        /// What is full.
        what: &'static str,
        /// The bound.
        limit: u64,
    },
    /// Running on a device failed.
    #[error(transparent)]
    Run(#[from] panoply_core::Error),
}

impl Error {
    /// A value that is not what it has to be.
    pub(crate) fn invalid(
        what: impl Into<Cow<'static, str>>,
        expected: impl Into<Cow<'static, str>>,
        got: impl ToString,
    ) -> Error {
        Error::Invalid { what: what.into(), expected: expected.into(), got: got.to_string() }
    }

    /// Something that is not implemented.
    pub(crate) fn unsupported(what: impl Into<String>) -> Error {
        Error::Unsupported { what: what.into() }
    }

    pub(crate) fn file(path: &std::path::Path, cause: std::io::Error) -> Error {
        Error::File { path: path.to_owned(), cause: Arc::new(cause) }
    }

    /// Whether the model asks for something that is not implemented, as opposed to something wrong.
    pub fn is_unsupported(&self) -> bool {
        match self {
            Error::Unsupported { .. } => true,
            Error::Node { cause, .. } => cause.is_unsupported(),
            _ => false,
        }
    }
}
