//! What can be wrong with a file of vectors.

use std::io;
use std::sync::Arc;

/// Why a file could not be read or written. Rows and lines are counted from zero, as array libraries do, except that the
/// lines of JSON are counted from one, as editors do.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// Files of this kind are read from their end, which a stream does not have.
    #[error("{kind} cannot be read from a stream; name a file")]
    NoStream {
        /// The kind.
        kind: &'static str,
    },
    /// The operating system refused.
    #[error("{source}")]
    Io {
        /// What it said.
        source: Arc<io::Error>,
    },
    /// The file's name does not say of which kind it is.
    #[error(
        "{name}: expected a name that ends in npy, fvecs, bvecs, ivecs, jsonl, ndjson, parquet, pq, arrow, arrows, feather or ipc"
    )]
    UnknownKind {
        /// The name.
        name: String,
    },
    /// The file is not of the kind that its name says, or its header is damaged.
    #[error("not a readable {format} file: {reason}")]
    Header {
        /// The format.
        format: &'static str,
        /// What does not fit.
        reason: String,
    },
    /// The file is in order, but uses something that is not read here.
    #[error("{format}: {what} is not supported; {advice}")]
    Unsupported {
        /// The format.
        format: &'static str,
        /// What is used.
        what: String,
        /// What can be done about it.
        advice: &'static str,
    },
    /// The file ends before its header says it does.
    #[error("the {format} file is cut short: expected {expected_bytes} bytes, got {got_bytes}")]
    Truncated {
        /// The format.
        format: &'static str,
        /// The bytes that its header asks for.
        expected_bytes: u64,
        /// The bytes that there are.
        got_bytes: u64,
    },
    /// A vector's dimension is none that a collection can have.
    #[error("vectors of {got} components; expected 1 to {dimension_max}")]
    DimensionRange {
        /// The dimension.
        got: u64,
        /// The largest that is accepted.
        dimension_max: usize,
    },
    /// A row has another dimension than the rows before.
    #[error("row {row} has {got} components, the rows before have {expected}")]
    DimensionChange {
        /// The row.
        row: u64,
        /// The dimension so far.
        expected: usize,
        /// The row's own.
        got: u64,
    },
    /// A component is NaN or infinite, or too large for single precision.
    #[error("component {component} of row {row} is {value}; expected a finite number")]
    NotFinite {
        /// The row.
        row: u64,
        /// Which component.
        component: usize,
        /// What it is.
        value: f32,
    },
    /// A record is not what it should be.
    #[error("{place} {at}: {reason}")]
    Record {
        /// `line` or `row`.
        place: &'static str,
        /// Which one.
        at: u64,
        /// What is wrong with it.
        reason: String,
    },
    /// A line, a record batch or a page is larger than any that is read.
    #[error("{what} of {bytes} bytes; at most {bytes_max} are read")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size, or as much of it as was seen.
        bytes: u64,
        /// The largest that is accepted.
        bytes_max: u64,
    },
    /// A column that is needed is not there, or cannot hold what it should.
    #[error("no column {wanted}; the file has: {known}")]
    MissingColumn {
        /// What it should be.
        wanted: String,
        /// The columns that there are.
        known: String,
    },
    /// A file of vectors and a file of records do not belong together.
    #[error("{vectors} vectors, but {records} records to go with them")]
    CountMismatch {
        /// The vectors, as far as they were counted.
        vectors: u64,
        /// The records, as far as they were counted.
        records: u64,
    },
    /// A component cannot be written in the format's element type.
    #[error("component {component} of row {row} is {value}, which {format} cannot hold; choose another format")]
    NotRepresentable {
        /// The format.
        format: &'static str,
        /// The row.
        row: u64,
        /// Which component.
        component: usize,
        /// What it is.
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

    /// Whether the disk has no room for what is written.
    pub fn is_disk_full(&self) -> bool {
        let full = [io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded];
        matches!(self, FormatError::Io { source } if full.contains(&source.kind()))
    }
}
