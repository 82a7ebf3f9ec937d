//! What can go wrong in this crate. Errors of ops and devices stay what they are, with the layer that met them.

use std::path::PathBuf;

/// The result of everything here that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a network, its training or its files.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A layer was given what it cannot take.
    #[error("layer {layer}: {cause}")]
    Layer {
        /// The layer's path, such as `encoder.0.fc1`.
        layer: String,
        /// What is wrong.
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
        /// What to do instead.
        hint: &'static str,
    },
    /// An argument outside its range.
    #[error("{what}: expected {expected}, got {got}")]
    Invalid {
        /// Which argument.
        what: &'static str,
        /// What would have been accepted.
        expected: String,
        /// What was given.
        got: String,
    },
    /// A parameter that must be there is not, or has another type or shape.
    #[error("parameter {name}: expected {expected}, got {got}")]
    Parameter {
        /// Its name.
        name: String,
        /// The type and shape that would have fitted.
        expected: String,
        /// What was given.
        got: String,
    },
    /// The loss is not a number.
    #[error("the loss of step {step} is {loss}; {origin}")]
    Diverged {
        /// The step.
        step: u64,
        /// The loss.
        loss: f32,
        /// The first op that made a number that is not finite, in debug mode; otherwise how to find it.
        origin: String,
    },
    /// Gradients are not finite, however small the factor of the loss.
    #[error("the gradients of step {step} are not finite with a loss scale of {scale}, the smallest there is")]
    NotFinite {
        /// The step.
        step: u64,
        /// The factor of the loss.
        scale: f32,
    },
    /// A file is damaged, hostile, or not what it should be.
    #[error("{path}: {reason}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
}

impl Error {
    pub(crate) fn invalid(what: &'static str, expected: impl Into<String>, got: impl ToString) -> Error {
        Error::Invalid { what, expected: expected.into(), got: got.to_string() }
    }

    pub(crate) fn file(path: impl Into<PathBuf>, reason: impl ToString) -> Error {
        Error::File { path: path.into(), reason: reason.to_string() }
    }

    /// The same, met in this layer. The innermost layer stays.
    pub(crate) fn in_layer(self, layer: &str) -> Error {
        match self {
            Error::Layer { .. } => self,
            cause => Error::Layer { layer: layer.to_owned(), cause: Box::new(cause) },
        }
    }

    /// Whether a device failed, rather than the caller.
    pub fn is_device(&self) -> bool {
        match self {
            Error::Op(error) => error.kind() == panoply_core::ErrorKind::Device,
            Error::Layer { cause, .. } => cause.is_device(),
            _ => false,
        }
    }
}
