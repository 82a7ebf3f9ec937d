//! What can go wrong with a store.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The result of an operation on a store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation did not succeed. Unless a variant says otherwise, everything is as it was before.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument outside its range.
    #[error("{what}: expected {expected}, got {got}")]
    InvalidArgument {
        /// Which argument.
        what: &'static str,
        /// What it may be.
        expected: String,
        /// What it was.
        got: String,
    },
    /// There is no store at this path.
    #[error("{} is no store: {reason}", path.display())]
    NotAStore {
        /// The path.
        path: PathBuf,
        /// What is there instead.
        reason: &'static str,
    },
    /// Something is at the path already.
    #[error("{} exists already, and is no empty folder", path.display())]
    AlreadyExists {
        /// The path.
        path: PathBuf,
    },
    /// Another process has the store open: one that writes, or one that reads while this one wants to write.
    #[error("{} is in use by another process", path.display())]
    InUse {
        /// The store.
        path: PathBuf,
    },
    /// The path does not lead to the folder any more that was opened. Nothing is written there.
    #[error("{} was moved or deleted while it was open; open it again", path.display())]
    Moved {
        /// Where it was.
        path: PathBuf,
    },
    /// The key, or the passphrase, is not the one that this store was locked with.
    #[error("this key does not open {}; the store has another one, or its head was altered", path.display())]
    WrongKey {
        /// The store.
        path: PathBuf,
    },
    /// A key where a passphrase is needed, or the other way round.
    #[error("{} opens with {expected}, and {got} was given", path.display())]
    KeyKind {
        /// The store.
        path: PathBuf,
        /// What it was locked with.
        expected: &'static str,
        /// What was given.
        got: &'static str,
    },
    /// What should be a key is none. What it was is not said.
    #[error("{origin}: expected {expected}")]
    InvalidKey {
        /// Where it came from.
        origin: String,
        /// What a key looks like.
        expected: &'static str,
    },
    /// Others may read or replace a file with a key.
    #[error("{} {reason}; `chmod 600` and `chown` make it its owner's alone", path.display())]
    ExposedKeyFile {
        /// The file.
        path: PathBuf,
        /// Who may do what.
        reason: String,
    },
    /// There is no object of this name.
    #[error("there is no object `{name}`")]
    NoObject {
        /// The name.
        name: String,
    },
    /// There is an object of this name already.
    #[error("there is an object `{name}` already")]
    ObjectExists {
        /// The name.
        name: String,
    },
    /// A file is not what was written: altered, cut, swapped or missing. Nothing of it was handed out.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        reason: &'static str,
    },
    /// The store is older than the anchor knows it: an earlier state of it was put back.
    #[error("{} is at generation {got}, and was at {expected} before: an older copy was put back, or another store", path.display())]
    RolledBack {
        /// The store.
        path: PathBuf,
        /// The anchor. Whoever put the copy back on purpose deletes it.
        anchor: PathBuf,
        /// The generation that the anchor knows.
        expected: u64,
        /// The generation that the store has.
        got: u64,
    },
    /// A path leads to something that is no regular file.
    #[error("{} is no regular file; links and the like are not followed", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The folder of a store's data is something else.
    #[error("{} is no folder; links and the like are not followed", path.display())]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },
    /// The disk is full. What was being written is not there; everything that was acknowledged is.
    #[error("no space is left for {}; free some and try again", path.display())]
    DiskFull {
        /// The file that could not grow.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("could not {action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The caller's own reader or writer failed.
    #[error("{what}: {source}")]
    Stream {
        /// Which of them.
        what: &'static str,
        /// What it said.
        source: Arc<io::Error>,
    },
    /// An earlier failure left it unclear what is on the disk. Reading goes on; writing needs the store opened again.
    #[error("writing has stopped after a failure: {reason}; open the store again")]
    WritesStopped {
        /// The failure.
        reason: String,
    },
    /// The store was opened to be read alone.
    #[error("the store was opened to be read alone")]
    ReadOnly,
    /// The system gave no random bytes.
    #[error("the system has no randomness: {reason}")]
    NoRandomness {
        /// What it said.
        reason: String,
    },
    /// A device, or the runtime, failed.
    #[error(transparent)]
    Device(#[from] panoply_core::Error),
}

impl Error {
    /// An argument outside its range.
    pub(crate) fn invalid(what: &'static str, expected: impl Into<String>, got: impl ToString) -> Error {
        Error::InvalidArgument { what, expected: expected.into(), got: got.to_string() }
    }

    /// What the operating system said about a file; a full disk, and a limit that a file has met, are an error of their own.
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Error {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Error::DiskFull { path }
            }
            _ => Error::Io { action, path, source: Arc::new(source) },
        }
    }

    /// A file that is not what was written.
    pub(crate) fn damaged(path: &Path, reason: &'static str) -> Error {
        Error::Damaged { path: path.to_owned(), reason }
    }

    /// The caller's reader or writer failed.
    pub(crate) fn stream(what: &'static str, source: io::Error) -> Error {
        Error::Stream { what, source: Arc::new(source) }
    }
}
