//! The answer of an op that was recorded, but has not run.

use panoply_core::{DType, Shape, Value};

/// The result of a recorded op.
pub enum Answer {
    /// This value, when the work is done.
    Value(Value),
    /// A tensor on the host, made from a download.
    Host {
        /// The download's number in the batch.
        download: usize,
        /// The type of its elements.
        dtype: DType,
        /// Its shape.
        shape: Shape,
    },
    /// This value, unless a word of a download is not zero: then an index was out of range.
    Checked {
        /// The value.
        value: Value,
        /// The numbers of the downloads in the batch, each with the length that the indices refer
        /// to.
        checks: Vec<(usize, usize)>,
    },
}
