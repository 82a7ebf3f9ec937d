//! The errors of operations and sessions.

use panoply_core::DType;

/// The reason why an operation has no result, or why a session ended.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation that is not served.
    #[error("{op} is not served: {reason}")]
    Unsupported {
        /// The operation, by Burn's name.
        op: String,
        /// The unsupported part of the operation.
        reason: String,
    },
    /// An operation whose operands do not fit, or that failed when it ran.
    #[error("{op}: {cause}")]
    Operation {
        /// The operation, by Burn's name.
        op: String,
        /// The runtime's error.
        cause: panoply_core::Error,
    },
    /// The client expects another result type than the operands give.
    #[error("{op}: the client expects {expected}, its operands give {got}")]
    Expected {
        /// The operation, by Burn's name.
        op: String,
        /// The element type and shape in the message.
        expected: String,
        /// The inferred element type and shape.
        got: String,
    },
    /// A tensor that the session does not have.
    #[error("tensor {id} does not exist in this session")]
    UnknownTensor {
        /// The client's number of the tensor.
        id: u64,
    },
    /// An element type that is not served.
    #[error("element type {got} is not served; {expected} are")]
    ElementType {
        /// Burn's name of the element type.
        got: String,
        /// The served element types.
        expected: &'static str,
    },
    /// A value is beyond its limit.
    #[error("{what}: at most {limit}, got {got}")]
    Limit {
        /// The name of the limited value.
        what: &'static str,
        /// The limit.
        limit: u64,
        /// The requested value.
        got: u64,
    },
    /// A message that cannot be read, or that comes at the wrong time.
    #[error("protocol: {0}")]
    Protocol(String),
    /// The runtime failed to create a tensor, or to bring a tensor to the host.
    #[error(transparent)]
    Runtime(#[from] panoply_core::Error),
}

impl Error {
    pub(crate) fn unsupported(op: impl Into<String>, reason: impl Into<String>) -> Error {
        Error::Unsupported { op: op.into(), reason: reason.into() }
    }

    /// Adds the name of the operation to the error.
    pub(crate) fn of(self, op: &str) -> Error {
        match self {
            Error::Runtime(cause) => Error::Operation { op: op.to_owned(), cause },
            Error::Unsupported { op: own, reason } if own.is_empty() => Error::unsupported(op, reason),
            Error::Limit { .. } | Error::ElementType { .. } => Error::unsupported(op, self.to_string()),
            other => other,
        }
    }
}

/// Formats a type such as `f32[2, 3]`.
pub(crate) fn type_text(dtype: DType, dims: &[usize]) -> String {
    format!("{dtype}{dims:?}")
}
