//! The errors of this crate. Errors of ops and devices are passed on unchanged, with the name of
//! the layer in which they occurred.

use std::path::PathBuf;

/// The result of every function of this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a network, its training or its files.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A layer got an argument or an input that it cannot take.
    #[error("layer {layer}: {cause}")]
    Layer {
        /// The layer's path, such as `encoder.0.fc1`.
        layer: String,
        /// The error inside the layer.
        cause: Box<Error>,
    },
    /// An op, a graph or a device failed.
    #[error(transparent)]
    Op(#[from] panoply_core::Error),
    /// A node has no derivative.
    #[error("{node} has no derivative; {hint}")]
    NotDifferentiable {
        /// The node: its name, its op and its operands.
        node: String,
        /// A hint what to do instead.
        hint: &'static str,
    },
    /// An argument is outside its range.
    #[error("{what}: expected {expected}, got {got}")]
    Invalid {
        /// The name of the argument.
        what: &'static str,
        /// The values that are accepted.
        expected: String,
        /// The value that was given.
        got: String,
    },
    /// A required parameter is missing, or has another element type or shape.
    #[error("parameter {name}: expected {expected}, got {got}")]
    Parameter {
        /// The name of the parameter.
        name: String,
        /// The element type and shape that are required.
        expected: String,
        /// The element type and shape that were given.
        got: String,
    },
    /// The loss is NaN or infinite.
    #[error("the loss of step {step} is {loss}; {origin}")]
    Diverged {
        /// The number of the step.
        step: u64,
        /// The value of the loss.
        loss: f32,
        /// In debug mode the first op that produced a NaN or an infinity; otherwise a hint how to
        /// find that op.
        origin: String,
    },
    /// Gradients are NaN or infinite even at the smallest loss scale.
    #[error("the gradients of step {step} are not finite with a loss scale of {scale}, the smallest there is")]
    NotFinite {
        /// The number of the step.
        step: u64,
        /// The loss scale.
        scale: f32,
    },
    /// A file is damaged, hostile, or of the wrong kind.
    #[error("{path}: {reason}", path = path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The defect that was found.
        reason: String,
    },
}

impl Error {
    /// The error for an argument with an unexpected value.
    pub fn invalid(what: &'static str, expected: impl Into<String>, got: impl ToString) -> Error {
        Error::Invalid { what, expected: expected.into(), got: got.to_string() }
    }

    pub(crate) fn file(path: impl Into<PathBuf>, reason: impl ToString) -> Error {
        Error::File { path: path.into(), reason: reason.to_string() }
    }

    /// Adds the name of this layer to the error. An error that already names an inner layer is
    /// kept.
    pub(crate) fn in_layer(self, layer: &str) -> Error {
        match self {
            Error::Layer { .. } => self,
            cause => Error::Layer { layer: layer.to_owned(), cause: Box::new(cause) },
        }
    }

    /// Whether the device failed, and not the caller.
    pub fn is_device(&self) -> bool {
        match self {
            Error::Op(error) => error.kind() == panoply_core::ErrorKind::Device,
            Error::Layer { cause, .. } => cause.is_device(),
            _ => false,
        }
    }
}
