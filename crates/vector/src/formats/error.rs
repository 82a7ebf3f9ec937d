//! The errors of files of vectors.

use std::io;
use std::sync::Arc;

/// The result of reading and writing files.
pub type Result<T, E = FormatError> = std::result::Result<T, E>;

/// The reason why a file could not be read or written. Rows are counted from zero, as in array
/// libraries. JSON lines are counted from one, as in editors.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// Files of this kind are read from the end, which needs a seekable file.
    #[error("{kind} cannot be read from a stream; name a file")]
    NoStream {
        /// The kind.
        kind: &'static str,
    },
    /// An operating system call failed.
    #[error("{source}")]
    Io {
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The file name's extension is not known.
    #[error(
        "{name}: expected a name that ends in npy, fvecs, bvecs, ivecs, jsonl, ndjson, parquet, pq, arrow, arrows, feather or ipc"
    )]
    UnknownKind {
        /// The name.
        name: String,
    },
    /// The file is not of the kind that its name indicates, or its header is damaged.
    #[error("not a readable {format} file: {reason}")]
    Header {
        /// The format.
        format: &'static str,
        /// The inconsistency.
        reason: String,
    },
    /// The file is valid but uses a feature that is not supported.
    #[error("{format}: {what} is not supported; {advice}")]
    Unsupported {
        /// The format.
        format: &'static str,
        /// The feature.
        what: String,
        /// The remedy.
        advice: &'static str,
    },
    /// The file ends before the length that its header gives.
    #[error("the {format} file is cut short: expected {expected_bytes} bytes, got {got_bytes}")]
    Truncated {
        /// The format.
        format: &'static str,
        /// Number of bytes according to the header.
        expected_bytes: u64,
        /// Number of bytes present.
        got_bytes: u64,
    },
    /// A dimension outside the range of a collection.
    #[error("vectors of {got} components; expected 1 to {dimension_max}")]
    DimensionRange {
        /// The dimension.
        got: u64,
        /// Maximum dimension.
        dimension_max: usize,
    },
    /// A row has a different dimension from the rows before.
    #[error("row {row} has {got} components, the rows before have {expected}")]
    DimensionChange {
        /// The row.
        row: u64,
        /// The dimension so far.
        expected: usize,
        /// The row's dimension.
        got: u64,
    },
    /// A component is NaN or infinite, or too large for single precision.
    #[error("component {component} of row {row} is {value}; expected a finite number")]
    NotFinite {
        /// The row.
        row: u64,
        /// Index of the component.
        component: usize,
        /// The component's value.
        value: f32,
    },
    /// A record is invalid.
    #[error("{place} {at}: {reason}")]
    Record {
        /// `line` or `row`.
        place: &'static str,
        /// Its number.
        at: u64,
        /// The fault.
        reason: String,
    },
    /// A line, a record batch or a page exceeds the size limit.
    #[error("{what} of {bytes} bytes; at most {bytes_max} are read")]
    TooLarge {
        /// The item that is too large.
        what: &'static str,
        /// Its size, or the part of it that was seen.
        bytes: u64,
        /// Maximum size.
        bytes_max: u64,
    },
    /// A required column is missing or has the wrong type.
    #[error("no column {wanted}; the file has: {known}")]
    MissingColumn {
        /// The required column.
        wanted: String,
        /// The columns of the file.
        known: String,
    },
    /// A file of vectors and a file of records differ in length.
    #[error("{vectors} vectors, but {records} records to go with them")]
    CountMismatch {
        /// Number of vectors counted.
        vectors: u64,
        /// Number of records counted.
        records: u64,
    },
    /// A component cannot be written in the format's element type.
    #[error("component {component} of row {row} is {value}, which {format} cannot hold; choose another format")]
    NotRepresentable {
        /// The format.
        format: &'static str,
        /// The row.
        row: u64,
        /// Index of the component.
        component: usize,
        /// The component's value.
        value: f32,
    },
}

impl FormatError {
    pub(super) fn io(source: io::Error) -> FormatError {
        FormatError::Io { source: Arc::new(source) }
    }

    pub(super) fn header(format: &'static str, reason: impl Into<String>) -> FormatError {
        FormatError::Header { format, reason: reason.into() }
    }

    /// Whether the error is a full disk.
    pub fn is_disk_full(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, FormatError::Io { source } if full.contains(&source.kind()))
    }
}
