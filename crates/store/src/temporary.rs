//! Files that are complete before they have their final name.
//!
//! 1. A new file is written as `<name>.<16 hex digits>.new` beside its final name, private to its
//!    owner, and renamed once it has reached the disk. A kill or a failed write leaves the final
//!    name as it was.
//! 2. Its writer locks it, so [`remove_leftovers`] removes the files of killed writers and no
//!    other. A file may be removed between its creation and its lock; its writer notices this and
//!    begins again. Without locks leftovers stay.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::encode::{hex, is_hex};
use crate::error::{Error, Result};
use crate::files::{Access, folder_of, is_same_file, open_file, sync_folder};
use crate::randomness::random;

/// End of the name of a new file until it is renamed.
const NEW: &str = ".new";
/// Bytes of the random part of this name.
const NEW_RANDOM_BYTES: usize = 8;
/// Maximal number of new files that others may remove before writing fails.
const ATTEMPTS_MAX: usize = 100;
/// Maximal number of names in a folder that are checked for leftovers.
const NAMES_MAX: usize = 100_000;

/// How a complete file gets its final name: [`fs::rename`] or [`rename_new`].
pub(crate) type Rename = fn(&Path, &Path) -> io::Result<()>;

/// Writes a file under a temporary name, then renames it to `target`. Both the contents and the
/// name are durable afterwards.
pub(crate) fn write(target: &Path, bytes: &[u8], rename: Rename) -> Result<()> {
    for _ in 0..ATTEMPTS_MAX {
        let Some((mut file, new)) = new_file(target)? else { continue };
        let written = file.write_all(bytes).and_then(|()| file.sync_all());
        if !cfg!(unix) {
            // On other systems no process can read a locked file, even under its final name.
            let _ = file.unlock();
        }
        match written.and_then(|()| rename(&new, target)) {
            Ok(()) => return sync_folder(folder_of(target)),
            Err(error) if error.kind() == ErrorKind::NotFound && !cfg!(unix) => {}
            Err(error) => {
                let _ = fs::remove_file(&new);
                let is_taken = error.kind() == ErrorKind::AlreadyExists;
                return Err(Error::io(if is_taken { "create" } else { "write" }, target, error));
            }
        }
    }
    Err(Error::io("write", target, ErrorKind::ResourceBusy.into()))
}

/// Renames a file to a name that must not exist.
pub(crate) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match rename_exclusive(from, to) {
        Err(error) if matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::InvalidInput) => link_new(from, to),
        renamed => renamed,
    }
}

/// Does the same where the file system does not support an exclusive rename. If it does not support
/// hard links either, an empty file reserves the name first and is then replaced.
fn link_new(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Ok(()) => {
            // If the temporary name stays, it is a leftover like those of killed writers.
            let _ = fs::remove_file(from);
            return Ok(());
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Err(error),
        Err(_) => {}
    }
    drop(create_private(to)?);
    fs::rename(from, to).inspect_err(|_| drop(fs::remove_file(to)))
}

#[cfg(any(target_os = "linux", target_vendor = "apple"))]
fn rename_exclusive(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?)
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn rename_exclusive(_: &Path, _: &Path) -> io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// Creates and locks a temporary file for `target`. `None` if another process removed it before it
/// was locked.
fn new_file(target: &Path) -> Result<Option<(File, PathBuf)>> {
    let mut new = target.as_os_str().to_owned();
    // The name is random, so that neither another process with the same number (in another
    // namespace or on another host) nor an attacker can place a file there first.
    new.push(format!(".{}{NEW}", hex(&random::<NEW_RANDOM_BYTES>()?)));
    let new = PathBuf::from(new);
    let file = create_private(&new).map_err(|error| Error::io("create", target, error))?;
    Ok(lock_new(&file, &new).then_some((file, new)))
}

/// Creates a file that must not exist, private to its owner.
fn create_private(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Locks a new file; false if it is about to be removed, or was removed already. A file system
/// without locks is no error: no process removes a file there.
fn lock_new(file: &File, new: &Path) -> bool {
    !matches!(file.try_lock(), Err(TryLockError::WouldBlock)) && is_same_file(file, new)
}

/// Removes the temporary files of killed writers of `target`. A file that cannot be removed stays.
pub(crate) fn remove_leftovers(target: &Path) {
    let Some(name) = target.file_name().and_then(|name| name.to_str()) else { return };
    let Ok(entries) = fs::read_dir(folder_of(target)) else { return };
    for entry in entries.take(NAMES_MAX).flatten() {
        if entry.file_name().to_str().is_some_and(|other| is_new(other, name)) {
            let path = entry.path();
            let Ok(file) = open_file(&path, Access::Write) else { continue };
            // `file` stays locked until the name is gone, so that its writer cannot lock it before.
            if file.try_lock().is_ok() && is_same_file(&file, &path) {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

/// Whether `name` is a temporary name of the file with the name `target`.
fn is_new(name: &str, target: &str) -> bool {
    let random = name.strip_prefix(target).and_then(|rest| rest.strip_prefix('.')?.strip_suffix(NEW));
    random.is_some_and(|random| random.len() == 2 * NEW_RANDOM_BYTES && is_hex(random))
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
mod tests {
    use super::*;

    /// A folder that is removed at the end of a test.
    struct TemporaryFolder(PathBuf);

    impl TemporaryFolder {
        fn new(name: &str) -> TemporaryFolder {
            let path = std::env::temp_dir().join(format!("panoply-temporary-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            TemporaryFolder(path)
        }
    }

    impl Drop for TemporaryFolder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_writer_notices_that_its_file_was_removed() {
        let place = TemporaryFolder::new("removed");
        let new = place.0.join("anchor.0123456789abcdef.new");
        let file = create_private(&new).unwrap();
        // Another process is about to remove it.
        let other = open_file(&new, Access::Write).unwrap();
        other.lock().unwrap();
        assert!(!lock_new(&file, &new));
        drop(other);
        remove_leftovers(&place.0.join("anchor"));
        assert!(!new.exists() && !lock_new(&file, &new));
        let file = create_private(&new).unwrap();
        assert!(lock_new(&file, &new));
        remove_leftovers(&place.0.join("anchor"));
        assert!(new.exists(), "its writer lives");
    }

    /// Everything that is written arrives, while others look for leftovers all the time.
    #[test]
    fn writers_and_those_who_tidy_up_do_not_disturb_each_other() {
        const WRITES: u32 = 40;
        let place = TemporaryFolder::new("storm");
        let target = place.0.join("anchor");
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_done.load(std::sync::atomic::Ordering::Acquire) {
                        remove_leftovers(&target);
                    }
                });
            }
            let write = |number: u32| write(&target, &number.to_le_bytes(), |from, to| fs::rename(from, to));
            let failed = (1..=WRITES).find_map(|number| write(number).err());
            is_done.store(true, std::sync::atomic::Ordering::Release);
            assert!(failed.is_none(), "{failed:?}");
        });
        assert_eq!(fs::read(&target).unwrap(), WRITES.to_le_bytes());
        assert_eq!(fs::read_dir(&place.0).unwrap().count(), 1);
    }

    /// A name that is taken by a file, by a link to nothing or by a folder stays what it is.
    #[test]
    fn a_new_name_replaces_nothing() {
        let place = TemporaryFolder::new("taken");
        let target = place.0.join("key");
        let take: [&dyn Fn(); 3] = [
            &|| fs::write(&target, "theirs").unwrap(),
            &|| std::os::unix::fs::symlink("nowhere", &target).unwrap(),
            &|| fs::create_dir(&target).unwrap(),
        ];
        for rename in [rename_new as Rename, link_new] {
            for take in take {
                take();
                let kind = || fs::symlink_metadata(&target).unwrap().file_type();
                let before = kind();
                let error = write(&target, b"ours", rename).unwrap_err();
                assert!(matches!(&error, Error::Io { action: "create", path, .. } if *path == target), "{error}");
                assert_eq!((kind(), fs::read_dir(&place.0).unwrap().count()), (before, 1));
                let _ = fs::remove_file(&target).or_else(|_| fs::remove_dir(&target));
            }
            write(&target, b"ours", rename).unwrap();
            assert_eq!(fs::read(&target).unwrap(), b"ours");
            assert_eq!(fs::read_dir(&place.0).unwrap().count(), 1);
            fs::remove_file(&target).unwrap();
        }
    }
}
