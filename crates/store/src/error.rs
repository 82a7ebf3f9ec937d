//! The errors of a store.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The part of `Error::Overtaken` about a change that the writer does not name.
pub(crate) const NOTHING_CHANGED: &str = "this writer has changed nothing";

/// The result of an operation on a store.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed. Unless a variant says otherwise, nothing has changed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An argument outside its range.
    #[error("{what}: expected {expected}, got {got}")]
    InvalidArgument {
        /// Which argument.
        what: &'static str,
        /// The permitted values.
        expected: String,
        /// The given value.
        got: String,
    },
    /// There is no store at this path.
    #[error("{} is no store: {reason}", path.display())]
    NotAStore {
        /// The path.
        path: PathBuf,
        /// Why it is not a store.
        reason: &'static str,
    },
    /// Something is at the path already.
    #[error("{} exists already, and is no empty folder", path.display())]
    AlreadyExists {
        /// The path.
        path: PathBuf,
    },
    /// Another process has the store open: a writer, or a reader while this process wants to write.
    #[error("{} is in use by another process", path.display())]
    InUse {
        /// The store.
        path: PathBuf,
    },
    /// The path no longer leads to the folder that was opened. Nothing is written there.
    #[error("{} was moved or deleted while it was open; open it again", path.display())]
    Moved {
        /// The former path.
        path: PathBuf,
    },
    /// Another writer has changed the store while this one had it open: the lock was bypassed, or
    /// the file system has no locks. This writer's change was not made, and the store has the state
    /// that the other writer gave it.
    #[error("{}; open the store again, and repeat the change if it is still wanted", overtaken(path, undone))]
    Overtaken {
        /// The file that differs from the state this writer left.
        path: PathBuf,
        /// The change that was not made, with the name of its object: such as "`a` was not stored".
        undone: String,
    },
    /// The process is a fork of the one that opened the store. It would seal different texts under
    /// the same nonces.
    #[error("this was opened by process {expected}, and process {got} is a fork of it; open it again in the child")]
    Forked {
        /// The process that opened it.
        expected: u32,
        /// The process that used it.
        got: u32,
    },
    /// A file of another format version.
    #[error("{} has format {got}, and this version reads format {expected} alone", path.display())]
    UnknownFormat {
        /// The file.
        path: PathBuf,
        /// The versions that are read.
        expected: String,
        /// The version of the file.
        got: char,
    },
    /// A head asks for more Argon2id work than the owner permits before anything in it is known to
    /// be authentic.
    #[error("{} asks Argon2id for {got}; at most {expected} are spent before a head is known to be authentic, unless the options ask for more", path.display())]
    CostlyPassphrase {
        /// The head.
        path: PathBuf,
        /// The permitted cost.
        expected: String,
        /// The cost that the head asks for.
        got: String,
    },
    /// The key, or the passphrase, is not the one that this store was locked with.
    #[error("this key or passphrase does not open {}; it has another one, or its head was altered", path.display())]
    WrongKey {
        /// The store.
        path: PathBuf,
    },
    /// A key was given where a passphrase is needed, or the other way round.
    #[error("{} opens with {expected}, and {got} was given", path.display())]
    KeyKind {
        /// The store.
        path: PathBuf,
        /// The kind that the store was locked with.
        expected: &'static str,
        /// The kind that was given.
        got: &'static str,
    },
    /// The input is not a valid key. The error does not show the input.
    #[error("{origin}: expected {expected}")]
    InvalidKey {
        /// Where the input came from.
        origin: String,
        /// The form of a key.
        expected: &'static str,
    },
    /// Other users may read or replace a file with a key.
    #[error("{} {reason}; `chmod 600` and `chown` make it its owner's alone", path.display())]
    ExposedKeyFile {
        /// The file.
        path: PathBuf,
        /// Who has which access.
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
    /// A file differs from its written state: altered, truncated, swapped or missing. No byte of it
    /// was handed out.
    #[error("{} is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Why the contents are refused.
        reason: &'static str,
    },
    /// An anchor is invalid, or belongs to another store: a rollback cannot be detected.
    #[error("{} is damaged: {reason}; whether an older copy of {} was put back cannot be told", anchor.display(), path.display())]
    DamagedAnchor {
        /// The store.
        path: PathBuf,
        /// The anchor.
        anchor: PathBuf,
        /// Why the contents are refused.
        reason: &'static str,
    },
    /// The store does not contain the state that the anchor remembers: an older copy was put back,
    /// and perhaps continued.
    #[error("{} is at generation {got}, and its history does not contain the generation {expected} that it had before: an older copy was put back", path.display())]
    RolledBack {
        /// The store.
        path: PathBuf,
        /// The anchor. If the copy was put back on purpose, delete the anchor.
        anchor: PathBuf,
        /// The generation in the anchor.
        expected: u64,
        /// The generation that the store has.
        got: u64,
    },
    /// The anchor remembers a state older than the part of the history that the store still has.
    #[error("{} remembers generation {got} of {}, whose history is known from generation {expected} on: whether an older copy was put back cannot be told", anchor.display(), path.display())]
    AnchorTooOld {
        /// The store.
        path: PathBuf,
        /// The anchor. If the store is trusted, delete the anchor.
        anchor: PathBuf,
        /// The oldest generation in the store's history.
        expected: u64,
        /// The generation in the anchor.
        got: u64,
    },
    /// A file that is named as the anchor is something else, and is not replaced.
    #[error("{} is no anchor of a store, so it is not replaced; name another file, or remove it", anchor.display())]
    NotAnAnchor {
        /// The file.
        anchor: PathBuf,
    },
    /// HEAD is an older copy: the store's log goes on behind the commit that HEAD names. Everything
    /// in the log is intact.
    #[error("{} is an older copy: it names generation {got}, and the log goes on to generation {expected}", path.display())]
    OlderHead {
        /// The head.
        path: PathBuf,
        /// The newest generation in the log.
        expected: u64,
        /// The generation that the head names.
        got: u64,
    },
    /// A path leads to something other than a regular file.
    #[error("{} is no regular file; links and the like are not followed", path.display())]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// The path of a store's data folder leads to something else.
    #[error("{} is no folder; links and the like are not followed", path.display())]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },
    /// The disk is full. The data that was being written is not there; everything that was
    /// acknowledged is.
    #[error("no space is left for {}; free some and try again", path.display())]
    DiskFull {
        /// The file that could not grow.
        path: PathBuf,
    },
    /// The operating system reported an error.
    #[error("could not {action} {}: {source}", path.display())]
    Io {
        /// The action that failed.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The caller's own reader or writer failed.
    #[error("{what}: {source}")]
    Stream {
        /// Which of them.
        what: &'static str,
        /// Its error.
        source: Arc<io::Error>,
    },
    /// An earlier failure left the state of the disk unclear, or another writer has changed the
    /// store. Reading still works; to write, open the store again.
    #[error("nothing more is written, because an earlier change failed ({reason}); open the store again")]
    WritesStopped {
        /// The failure of the earlier change.
        reason: String,
    },
    /// The store was opened read-only.
    #[error("the store was opened to be read alone")]
    ReadOnly,
    /// The system supplied no random bytes.
    #[error("the system has no randomness: {reason}")]
    NoRandomness {
        /// The system's reason.
        reason: String,
    },
    /// A device or the runtime failed.
    #[error(transparent)]
    Device(#[from] panoply_core::Error),
}

/// The text of `Error::Overtaken`, without advice.
fn overtaken(path: &Path, undone: &str) -> String {
    let path = path.display();
    format!(
        "another writer has changed {path} while this one had the store open: {undone}, and the store is as the \
         other writer left it"
    )
}

impl Error {
    /// Makes `Error::Overtaken`. The caller adds the change that was not made.
    pub(crate) fn overtaken(path: PathBuf) -> Error {
        Error::Overtaken { path, undone: NOTHING_CHANGED.to_owned() }
    }

    /// The error as the reason why writing has stopped: without advice for the change itself.
    pub(crate) fn reason(&self) -> String {
        match self {
            Error::Overtaken { path, undone } => overtaken(path, undone),
            error => error.to_string(),
        }
    }

    /// Makes `Error::InvalidArgument`.
    pub(crate) fn invalid(what: &'static str, expected: impl Into<String>, got: impl ToString) -> Error {
        Error::InvalidArgument { what, expected: expected.into(), got: got.to_string() }
    }

    /// An error of the operating system about a file. A full disk, a quota and a file-size limit
    /// become `Error::DiskFull`.
    pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Error {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                Error::DiskFull { path }
            }
            _ => Error::Io { action, path, source: Arc::new(source) },
        }
    }

    /// Whether the file itself is bad: altered, missing, or on a failing disk. Any other error may
    /// pass, and says nothing about the file.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            Error::Damaged { .. } | Error::NotAFile { .. } => true,
            Error::Io { source, .. } => is_of_the_disk(source),
            _ => false,
        }
    }

    /// Makes `Error::Damaged`.
    pub(crate) fn damaged(path: &Path, reason: &'static str) -> Error {
        Error::Damaged { path: path.to_owned(), reason }
    }

    /// Makes `Error::Stream`.
    pub(crate) fn stream(what: &'static str, source: io::Error) -> Error {
        Error::Stream { what, source: Arc::new(source) }
    }
}

/// Whether the system reports a failing disk or file system, rather than too many open files, a
/// lack of memory or missing permissions.
fn is_of_the_disk(error: &io::Error) -> bool {
    #[cfg(unix)]
    if let Some(code) = error.raw_os_error() {
        let passing = [
            libc::EMFILE,
            libc::ENFILE,
            libc::ENOMEM,
            libc::ENOBUFS,
            libc::EINTR,
            libc::EAGAIN,
            libc::EBUSY,
            libc::ETIMEDOUT,
            libc::ENOLCK,
            libc::EACCES,
            libc::EPERM,
        ];
        return !passing.contains(&code);
    }
    !matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::OutOfMemory)
}
