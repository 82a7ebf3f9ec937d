//! The errors of a collection. After any error the collection is as it was before the call.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::embedding_model::EmbeddingModel;

/// The result of every fallible function in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a collection.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A vector has the wrong number of components.
    #[error("the collection holds vectors of {expected} components, got {got}")]
    DimensionMismatch {
        /// The collection's dimension.
        expected: usize,
        /// The number of components given.
        got: usize,
    },
    /// A component is NaN or infinite, or overflows the collection's storage type.
    #[error("component {index} of `{id}` is {value}; expected a finite number that {storage} can hold")]
    NotFinite {
        /// The record's id; `query` for a query.
        id: String,
        /// Index of the component.
        index: usize,
        /// The component's value.
        value: f32,
        /// The collection's storage type.
        storage: &'static str,
    },
    /// A zero vector has no direction, so it has no cosine with anything.
    #[error("`{id}` is a zero vector, which has no direction; the cosine metric cannot rank it")]
    ZeroVector {
        /// The record's id; `query` for a query.
        id: String,
    },
    /// The same id appears twice in one batch. Nothing of the batch was applied.
    #[error("the id `{id}` appears twice in one batch; nothing of it was applied")]
    DuplicateId {
        /// The id.
        id: String,
    },
    /// An insert would replace a record. Nothing of its batch was applied.
    #[error("there is a record `{id}` already")]
    IdExists {
        /// The id.
        id: String,
    },
    /// An update names a record that does not exist.
    #[error("there is no record `{id}`")]
    NoSuchId {
        /// The id.
        id: String,
    },
    /// An argument, or a part of a batch, does not have the expected size or value.
    #[error("{what}: expected {expected}, got {got}")]
    InvalidArgument {
        /// The argument.
        what: &'static str,
        /// The accepted values.
        expected: String,
        /// The given value.
        got: String,
    },
    /// A filter asks for a field that no record of the collection has ever had.
    #[error("no record has a metadata field `{field}`; there are: {known}")]
    UnknownField {
        /// The field.
        field: String,
        /// The fields that exist.
        known: String,
    },
    /// A filter compares a field with a value of another type than the field has in any record.
    #[error("`{field}` is {expected} in the records, so it cannot be compared with {got}")]
    FieldType {
        /// The path of the field.
        field: String,
        /// The type of the field's values.
        expected: &'static str,
        /// The type of the value in the filter.
        got: &'static str,
    },
    /// Vectors of one model were to be stored or searched in a collection of another model.
    #[error("the collection's vectors come from the model {expected}, these from {got}; they cannot be compared")]
    OtherModel {
        /// The model of the collection.
        expected: Box<EmbeddingModel>,
        /// The other model.
        got: Box<EmbeddingModel>,
    },
    /// A filter was refused.
    #[error(transparent)]
    Filter(#[from] crate::filter::FilterError),
    /// A file of vectors could not be read or written.
    #[error(transparent)]
    Format(#[from] crate::formats::FormatError),
    /// The path exists already.
    #[error("{} exists already; open it, or choose another path", path.display())]
    AlreadyExists {
        /// The path.
        path: PathBuf,
    },
    /// The path does not hold a collection.
    #[error("{} does not hold a vector collection: {reason}", path.display())]
    NotACollection {
        /// The path.
        path: PathBuf,
        /// The missing or wrong part.
        reason: String,
    },
    /// Another process, or another handle, has the collection open for writing.
    #[error("{} is open elsewhere; a collection has one writer at a time, and any number of readers", path.display())]
    InUse {
        /// The collection's folder.
        path: PathBuf,
    },
    /// The path no longer leads to the folder that was opened. Nothing was changed, neither in that
    /// folder nor elsewhere.
    #[error("{} was moved, deleted or replaced while the collection was open; open it again where it is now", path.display())]
    Moved {
        /// The path.
        path: PathBuf,
    },
    /// The collection was opened read-only.
    #[error("{} was opened read-only; open it for writing to change it", path.display())]
    ReadOnly {
        /// The collection's folder.
        path: PathBuf,
    },
    /// A file in the folder is a link, a folder or a device.
    #[error("{} is not a regular file; a collection consists of those alone, and follows no links", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// A file that would be written to has further names (hard links), under which it would change
    /// too.
    #[error("{} has {names} names (hard links), and would change under each of them; put a copy in its place", path.display())]
    SharedFile {
        /// The path.
        path: PathBuf,
        /// Number of names of the file.
        names: u64,
    },
    /// The length of a vector is outside the range in which scores can be computed.
    #[error("`{id}` has the length {length:e}; expected {length_min:e} to {length_max:e}, so that scores fit f32")]
    LengthOutOfRange {
        /// The record's id; `query` for a query.
        id: String,
        /// Its Euclidean length.
        length: f64,
        /// The shortest that is accepted.
        length_min: f64,
        /// The longest that is accepted.
        length_max: f64,
    },
    /// A file does not hold what was written to it. Nothing was changed.
    #[error("{} is damaged at byte {offset}: {reason}; go back to a snapshot of the collection, or repair it", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Byte offset of the damage.
        offset: u64,
        /// The inconsistency.
        reason: String,
    },
    /// The collection is encrypted, and no key was given.
    #[error("{} is encrypted; it opens with its key alone", path.display())]
    Locked {
        /// The collection's folder.
        path: PathBuf,
    },
    /// A key was given, but the collection is not encrypted.
    #[error("{} is not encrypted, though a key was given; it may be another collection than was meant", path.display())]
    NotEncrypted {
        /// The collection's folder.
        path: PathBuf,
    },
    /// A key was refused, or sealing with it failed.
    #[error(transparent)]
    Key(panoply_store::Error),
    /// The disk is full. The write was not applied. The collection stays usable, and accepts writes
    /// again once there is room.
    #[error("no space is left for {}; free some and try again", path.display())]
    DiskFull {
        /// The file that could not grow.
        path: PathBuf,
    },
    /// An operating system call failed.
    #[error("could not {action} {}: {source}", path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// After an earlier failure the state of the disk is uncertain. Searches go on; to write, open
    /// the collection again.
    #[error("writes have stopped after a failure: {reason}; open the collection again")]
    WritesStopped {
        /// The failure.
        reason: String,
    },
    /// The queue is full. Non-blocking forms do not wait for room, since that would block their
    /// executor.
    #[error("{waiting_max} {unit} wait already; await some of them first, or use the blocking form, which waits")]
    Busy {
        /// Maximum number that may wait.
        waiting_max: usize,
        /// The counted unit.
        unit: &'static str,
    },
    /// The collection was closed, or its writer has ended.
    #[error("the collection is closed")]
    Closed,
    /// A device, or the runtime, failed.
    #[error(transparent)]
    Device(#[from] panoply_core::Error),
}

/// A failed change to files.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// Whether the state of the disk is uncertain.
    pub(crate) unclear: bool,
}

impl Failure {
    /// A failure after which the state of the disk is uncertain.
    pub(crate) fn unclear(error: Error) -> Failure {
        Failure { error, unclear: true }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { error, unclear: false }
    }
}

impl From<panoply_store::Error> for Error {
    fn from(error: panoply_store::Error) -> Error {
        match error {
            panoply_store::Error::Damaged { path, reason } => Error::corrupt(&path, 0, reason),
            panoply_store::Error::Device(error) => Error::Device(error),
            panoply_store::Error::InUse { path } => Error::InUse { path },
            panoply_store::Error::Moved { path } => Error::Moved { path },
            // A file of it was deleted or replaced.
            panoply_store::Error::Overtaken { path, .. } => Error::Moved { path },
            panoply_store::Error::NotAFile { path } => Error::NotAFile { path },
            panoply_store::Error::DiskFull { path } => Error::DiskFull { path },
            panoply_store::Error::Io { action, path, source } => Error::Io { action, path, source },
            other => Error::Key(other),
        }
    }
}

impl Error {
    /// An argument outside its range.
    pub(crate) fn invalid(what: &'static str, expected: impl Into<String>, got: impl ToString) -> Error {
        Error::InvalidArgument { what, expected: expected.into(), got: got.to_string() }
    }

    /// An operating system error on a file. A full disk becomes `Error::DiskFull`.
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Error {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::DiskFull { path },
            _ => Error::Io { action, path, source: Arc::new(source) },
        }
    }

    /// A file that does not hold what was written to it.
    pub(crate) fn corrupt(path: &Path, offset: u64, reason: impl Into<String>) -> Error {
        Error::Corrupt { path: path.to_owned(), offset, reason: reason.into() }
    }
}
