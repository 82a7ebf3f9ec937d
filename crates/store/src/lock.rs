//! The lock of a folder: of a store's folder, and of other folders with one writing process at a
//! time.
//!
//! 1. The lock is on the folder itself, so no file can be deleted or replaced to bypass it.
//! 2. The file `LOCK` in the folder is locked as well. On network file systems the lock of a
//!    folder may hold on this host alone, and that of a file on all hosts. A writer also locks the
//!    files that it appends to ([`Alone`]) before it changes or deletes anything, so deleting
//!    `LOCK` there does not admit a second writer.
//! 3. A writer holds the lock alone; readers share it. The lock belongs to one opening of the
//!    folder: two writers in one process exclude each other as two processes do.
//! 4. A file system without locks is recognised by its error; any other error is reported. A
//!    reader that can lock neither, as on read-only media, continues without a lock: it changes
//!    nothing. It does not create `LOCK`.
//! 5. A child of `fork()` shares the lock of its parent, and would share its random bytes and
//!    counters. The lock remembers its process and refuses any other. The owner unlocks explicitly
//!    when it drops the lock: closing alone would leave it locked for as long as a child lives.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use panoply_core::process::Process;

use crate::error::{Error, Result};
use crate::files::{Access, is_same_file, leads_to, open_kept};

/// The file that is locked in addition to the folder.
pub(crate) const LOCK: &str = "LOCK";
/// Pause between two attempts to take the lock.
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// A folder that is locked until this is dropped.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    /// The folder; `None` if the system cannot open folders.
    folder: Option<File>,
    is_folder_locked: bool,
    /// `LOCK`, if it is locked.
    file: Option<File>,
    is_writer: bool,
    process: Process,
}

/// A file that this writer has locked exclusively until this is dropped.
#[derive(Debug)]
pub struct Alone {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    process: Process,
}

impl Lock {
    /// Locks a folder, exclusively or shared with other readers; waits up to `wait_max` for
    /// processes that hold the lock.
    pub fn take(path: &Path, is_writer: bool, wait_max: Duration) -> Result<Lock> {
        let start = Instant::now();
        loop {
            match Lock::try_take(path, is_writer)? {
                Some(lock) => return Ok(lock),
                None if start.elapsed() < wait_max => std::thread::sleep(LOCK_RETRY),
                None => return Err(Error::InUse { path: path.to_owned() }),
            }
        }
    }

    /// Whether anything is locked: a reader of read-only media may have locked nothing.
    pub(crate) fn is_held(&self) -> bool {
        self.is_folder_locked || self.file.is_some()
    }

    pub(crate) fn is_writer(&self) -> bool {
        self.is_writer
    }

    /// Fails in any process but the one that took the lock.
    pub fn expect_process(&self) -> Result<()> {
        expect_process(self.process)
    }

    /// Fails in any process but the one that took the lock, or if the path no longer leads to the
    /// locked folder.
    pub fn expect_held(&self) -> Result<()> {
        expect_process(self.process)?;
        let is_in_place = self.folder.as_ref().is_none_or(|folder| leads_to(&self.path, folder));
        // If the folder itself is locked, `LOCK` may be deleted.
        let counts = self.file.as_ref().filter(|_| !self.is_folder_locked);
        let is_same = counts.is_none_or(|file| is_same_file(file, &self.path.join(LOCK)));
        if is_in_place && is_same { Ok(()) } else { Err(Error::Moved { path: self.path.clone() }) }
    }

    /// Tries once; `None` if others hold the lock.
    fn try_take(path: &Path, is_writer: bool) -> Result<Option<Lock>> {
        let (folder, process) = (open_folder(path)?, Process::current());
        let mut lock = Lock { path: path.to_owned(), folder, is_folder_locked: false, file: None, is_writer, process };
        match lock.folder.as_ref().map(|folder| try_lock(folder, is_writer)) {
            Some(Ok(())) => lock.is_folder_locked = true,
            Some(Err(TryLockError::WouldBlock)) => return Ok(None),
            Some(Err(TryLockError::Error(error))) if !is_unsupported(&error) => {
                return Err(Error::io("lock", path, error));
            }
            Some(Err(TryLockError::Error(_))) | None => {}
        }
        if !lock.take_file()? {
            return Ok(None);
        }
        lock.expect_held().map(|()| Some(lock))
    }

    /// Locks `LOCK` as well; false if others hold it.
    fn take_file(&mut self) -> Result<bool> {
        let path = self.path.join(LOCK);
        let file = match open_kept(&path, if self.is_writer { Access::Make } else { Access::Read }) {
            Ok(file) => file,
            Err(error) if !self.is_writer && (error.is_damage() || is_forbidden(&error)) => return Ok(true),
            // Not fatal if the folder itself is locked: on a full disk, or where something else has
            // the name `LOCK`, the files that are appended to will be locked as well.
            Err(Error::NotAFile { .. } | Error::DiskFull { .. }) if self.is_folder_locked => return Ok(true),
            Err(error) => return Err(error),
        };
        match try_lock(&file, self.is_writer) {
            // The file was deleted or replaced before it was locked: another process may hold the
            // new one.
            Ok(()) if self.is_writer && !is_same_file(&file, &path) => Ok(false),
            Ok(()) => {
                self.file = Some(file);
                Ok(true)
            }
            Err(TryLockError::WouldBlock) => Ok(false),
            Err(TryLockError::Error(error)) => {
                let can_do_without = self.is_folder_locked || !self.is_writer;
                match can_do_without && is_unsupported(&error) {
                    true => Ok(true),
                    false => Err(Error::io("lock", &path, error)),
                }
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.process.is_current() {
            [&self.file, &self.folder].into_iter().flatten().for_each(|file| drop(file.unlock()));
        }
    }
}

impl Alone {
    /// Locks a file that is written to. A file system without locks is no error: the folder's lock
    /// counts.
    pub fn lock(file: File, path: PathBuf) -> Result<Alone> {
        // On other systems a lock would keep readers out as well, and `LOCK` cannot be deleted
        // while it is open.
        match if cfg!(unix) { try_lock(&file, true) } else { Ok(()) } {
            Err(TryLockError::WouldBlock) => Err(Error::InUse { path }),
            Err(TryLockError::Error(error)) if !is_unsupported(&error) => Err(Error::io("lock", &path, error)),
            Ok(()) | Err(TryLockError::Error(_)) => Ok(Alone { file, path, process: Process::current() }),
        }
    }

    /// Fails if the path no longer leads to this file: data written to it would be lost.
    pub fn expect_in_place(&self) -> Result<()> {
        match is_same_file(&self.file, &self.path) {
            true => Ok(()),
            false => Err(Error::overtaken(self.path.clone())),
        }
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        if self.process.is_current() {
            let _ = self.file.unlock();
        }
    }
}

/// Fails in a process that did not open the object: a child of `fork()`.
pub(crate) fn expect_process(opened: Process) -> Result<()> {
    match opened.is_current() {
        true => Ok(()),
        false => Err(Error::Forked { expected: opened.id(), got: Process::current().id() }),
    }
}

fn try_lock(file: &File, is_writer: bool) -> Result<(), TryLockError> {
    loop {
        match if is_writer { file.try_lock() } else { file.try_lock_shared() } {
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            tried => return tried,
        }
    }
}

/// Whether the file may not be opened: a reader does without its lock.
fn is_forbidden(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
}

/// Whether the error means that the file system has no such locks at all.
fn is_unsupported(error: &io::Error) -> bool {
    #[cfg(unix)]
    // EBADF: a folder cannot be opened for writing, which range locks require.
    if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::EBADF)) {
        return true;
    }
    error.kind() == io::ErrorKind::Unsupported
}

#[cfg(unix)]
fn open_folder(path: &Path) -> Result<Option<File>> {
    use std::os::unix::fs::OpenOptionsExt;
    let opened = File::options().read(true).custom_flags(libc::O_DIRECTORY).open(path);
    opened.map(Some).map_err(|error| Error::io("open", path, error))
}

#[cfg(not(unix))]
fn open_folder(_: &Path) -> Result<Option<File>> {
    Ok(None)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Regression: a lock that is momentarily unavailable was taken for a file system without
    /// locks.
    #[test]
    fn a_lock_that_fails_is_not_one_that_there_cannot_be() {
        let is_without = |code| is_unsupported(&io::Error::from_raw_os_error(code));
        assert!([libc::ENOSYS, libc::EOPNOTSUPP, libc::EINVAL].into_iter().all(is_without));
        assert!(![libc::ENOLCK, libc::EINTR, libc::EIO, libc::EACCES].into_iter().any(is_without));
    }
}
