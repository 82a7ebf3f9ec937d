//! What can go wrong with an operation or a session.

use panoply_core::DType;

/// Why an operation has no result, or why a session ended.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation that is not served.
    #[error("{op} is not served: {reason}")]
    Unsupported {
        /// The operation, by Burn's name.
        op: String,
        /// What about it.
        reason: String,
    },
    /// An operation whose operands do not fit, or that failed when it ran.
    #[error("{op}: {cause}")]
    Operation {
        /// The operation, by Burn's name.
        op: String,
        /// What the runtime said.
        cause: panoply_core::Error,
    },
    /// The client expects another result than its operands give.
    #[error("{op}: the client expects {expected}, its operands give {got}")]
    Expected {
        /// The operation, by Burn's name.
        op: String,
        /// The element type and shape in the message.
        expected: String,
        /// The element type and shape that were inferred.
        got: String,
    },
    /// A tensor that the session does not have.
    #[error("tensor {id} does not exist in this session")]
    UnknownTensor {
        /// Its number.
        id: u64,
    },
    /// An element type that is not served.
    #[error("element type {got} is not served; {expected} are")]
    ElementType {
        /// Burn's name of it.
        got: String,
        /// Those that are.
        expected: &'static str,
    },
    /// Something is beyond its bound.
    #[error("{what}: at most {limit}, got {got}")]
    Limit {
        /// What is bounded.
        what: &'static str,
        /// The bound.
        limit: u64,
        /// What was asked for.
        got: u64,
    },
    /// Something that is no message, or comes at the wrong time.
    #[error("protocol: {0}")]
    Protocol(String),
    /// The runtime failed while it brought a tensor to the host, or made one.
    #[error(transparent)]
    Runtime(#[from] panoply_core::Error),
}

impl Error {
    pub(crate) fn unsupported(op: impl Into<String>, reason: impl Into<String>) -> Error {
        Error::Unsupported { op: op.into(), reason: reason.into() }
    }

    /// The error with the operation that it is about.
    pub(crate) fn of(self, op: &str) -> Error {
        match self {
            Error::Runtime(cause) => Error::Operation { op: op.to_owned(), cause },
            Error::Unsupported { op: own, reason } if own.is_empty() => Error::unsupported(op, reason),
            Error::Limit { .. } | Error::ElementType { .. } => Error::unsupported(op, self.to_string()),
            other => other,
        }
    }
}

/// `f32[2, 3]`.
pub(crate) fn type_text(dtype: DType, dims: &[usize]) -> String {
    format!("{dtype}{dims:?}")
}
