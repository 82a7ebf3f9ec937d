//! The folder of a store: its files, its lock, and what reaches the disk when.
//!
//! ```text
//! HEAD               what counts; replaced by renaming a complete new one over it
//! HEAD.new           the next one, while it is written
//! LOCK               an empty file: writers have it for themselves, readers share it
//! catalog-<id>       the log of changes that HEAD names
//! data/<id>          the extents
//! ```
//!
//! Files are regular files, and `data` is a folder, never links: what a link leads to is not the store's. Files are made, renamed and deleted only while the path
//! leads to the folder that was locked. What HEAD does not lead to is left over from a crash, and is deleted by the next writer.

use std::collections::HashSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::encode::hex;
use crate::error::{Error, Result};

const HEAD: &str = "HEAD";
const HEAD_NEW: &str = "HEAD.new";
const LOCK: &str = "LOCK";
const DATA: &str = "data";
const CATALOG: &str = "catalog-";
/// How long a process sleeps before it tries again to get a lock.
const LOCK_RETRY: Duration = Duration::from_millis(20);

/// A store's folder, locked for this process: alone, or with others that read.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    lock: File,
    is_writer: bool,
}

/// A change to files that did not succeed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// Whether it is unclear what the disk holds now.
    pub(crate) is_unclear: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure { error, is_unclear: false }
    }
}

impl Failure {
    /// One after which nobody knows what the disk holds.
    pub(crate) fn unclear(error: Error) -> Failure {
        Failure { error, is_unclear: true }
    }
}

impl Folder {
    /// Makes the folder of a new store, and locks it.
    pub(crate) fn create(path: &Path) -> Result<Folder> {
        let path = &std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        refuse_if_taken(path)?;
        let missing: Vec<&Path> = path.ancestors().take_while(|folder| !folder.exists()).collect();
        let data = path.join(DATA);
        fs::create_dir_all(&data).map_err(|error| Error::io("create", &data, error))?;
        expect_folder(&data)?;
        missing.iter().filter_map(|folder| folder.parent()).try_for_each(sync_folder)?;
        let folder = Folder::lock(path, true, Duration::ZERO)?;
        // Another process may have made a store here before the lock was taken; none can from now on.
        refuse_if_taken(path)?;
        folder.remove_strangers(None, &HashSet::new())?;
        Ok(folder)
    }

    /// Locks the folder of a store, for up to so long.
    pub(crate) fn open(path: &Path, is_writer: bool, wait_max: Duration) -> Result<Folder> {
        let path = &std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let head = path.join(HEAD);
        match head.symlink_metadata() {
            Ok(_) => {
                expect_folder(&path.join(DATA))?;
                Folder::lock(path, is_writer, wait_max)
            }
            Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(Error::io("open", &head, error)),
            Err(_) => {
                let reason = match (path.is_dir(), path.exists()) {
                    (true, _) => "the folder has no HEAD",
                    (false, true) => "it is a file; a store is a folder",
                    (false, false) => "there is nothing at this path",
                };
                Err(Error::NotAStore { path: path.clone(), reason })
            }
        }
    }

    /// Deletes what there is of a store that could not be made, unless it has a head after all.
    pub(crate) fn give_up(self) {
        if self.head_path().symlink_metadata().is_err() && self.remove_strangers(None, &HashSet::new()).is_ok() {
            let _ = fs::remove_dir(self.path.join(DATA));
            let _ = fs::remove_file(self.path.join(LOCK));
            let _ = fs::remove_dir(&self.path);
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn is_writer(&self) -> bool {
        self.is_writer
    }

    pub(crate) fn head_path(&self) -> PathBuf {
        self.path.join(HEAD)
    }

    pub(crate) fn catalog_path(&self, id: &[u8]) -> PathBuf {
        self.path.join(format!("{CATALOG}{}", hex(id)))
    }

    pub(crate) fn extent_path(&self, id: &[u8]) -> PathBuf {
        self.path.join(DATA).join(hex(id))
    }

    /// Replaces the head. Before it is given its name nothing has changed. From then on a failure is unclear, also one of the renaming itself:
    /// a system that says that it failed may have done it.
    pub(crate) fn write_head(&self, bytes: &[u8]) -> Result<(), Failure> {
        self.expect_in_place()?;
        let (new, path) = (self.path.join(HEAD_NEW), self.head_path());
        let _ = fs::remove_file(&new);
        let mut file = open_file(&new, Access::New)?;
        if let Err(error) = file.write_all(bytes).and_then(|()| file.sync_all()) {
            let _ = fs::remove_file(&new);
            return Err(Error::io("write", &path, error).into());
        }
        fs::rename(&new, &path).map_err(|error| Failure::unclear(Error::io("replace", &path, error)))?;
        sync_folder(&self.path).map_err(Failure::unclear)
    }

    /// Makes the names of new extents durable.
    pub(crate) fn sync_data(&self) -> Result<()> {
        sync_folder(&self.path.join(DATA))
    }

    /// Deletes the files of extents. What cannot be deleted now is deleted by the next writer.
    pub(crate) fn remove_extents<'a>(&self, ids: impl IntoIterator<Item = &'a [u8; 32]>) {
        if self.expect_in_place().is_ok() {
            ids.into_iter().for_each(|id| drop(fs::remove_file(self.extent_path(id))));
        }
    }

    /// Deletes a log that does not count any more.
    pub(crate) fn remove_catalog(&self, id: &[u8]) {
        if self.expect_in_place().is_ok() {
            let _ = fs::remove_file(self.catalog_path(id));
        }
    }

    /// Deletes what a crash has left over: everything that looks like a store's file and is not named here.
    pub(crate) fn remove_strangers(&self, catalog: Option<&[u8]>, extents: &HashSet<String>) -> Result<()> {
        self.expect_in_place()?;
        let catalog = catalog.map(|id| self.catalog_path(id));
        for (path, name) in entries(&self.path)? {
            let stranger = name == HEAD_NEW || is_catalog(&name) && catalog.as_ref() != Some(&path);
            if stranger {
                fs::remove_file(&path).map_err(|error| Error::io("delete", &path, error))?;
            }
        }
        for (path, name) in entries(&self.path.join(DATA))? {
            if is_extent(&name) && !extents.contains(&name) {
                fs::remove_file(&path).map_err(|error| Error::io("delete", &path, error))?;
            }
        }
        Ok(())
    }

    /// Refuses to change anything where the path does not lead to this folder any more.
    pub(crate) fn expect_in_place(&self) -> Result<()> {
        if !self.is_writer {
            return Err(Error::ReadOnly);
        }
        match is_same_file(&self.lock, &self.path.join(LOCK)) {
            true => expect_folder(&self.path.join(DATA)),
            false => Err(Error::Moved { path: self.path.clone() }),
        }
    }

    fn lock(path: &Path, is_writer: bool, wait_max: Duration) -> Result<Folder> {
        let (lock_path, start) = (path.join(LOCK), Instant::now());
        let lock = open_file(&lock_path, if is_writer { Access::Make } else { Access::Read })?;
        loop {
            match if is_writer { lock.try_lock() } else { lock.try_lock_shared() } {
                Ok(()) if is_same_file(&lock, &lock_path) => {
                    return Ok(Folder { path: path.to_owned(), lock, is_writer });
                }
                Err(TryLockError::WouldBlock) if start.elapsed() < wait_max => std::thread::sleep(LOCK_RETRY),
                // Where it was locked, another process had deleted it between opening and locking.
                Ok(()) | Err(TryLockError::WouldBlock) => return Err(Error::InUse { path: path.to_owned() }),
                Err(TryLockError::Error(error)) => return Err(Error::io("lock", &lock_path, error)),
            }
        }
    }
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// To be read alone.
    Read,
    /// To be written as well.
    Write,
    /// To be written, and made where it is not there.
    Make,
    /// To be written; it must not be there.
    New,
}

/// Opens a regular file. Links, devices and the like are refused; what is made is its owner's alone.
pub(crate) fn open_file(path: &Path, access: Access) -> Result<File> {
    let mut options = File::options();
    options.read(true).write(access != Access::Read).create(access == Access::Make).create_new(access == Access::New);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // Without blocking: a pipe would wait for its other end.
        options.mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    }
    let strange = || Error::NotAFile { path: path.to_owned() };
    let file = options.open(path).map_err(|error| match error.raw_os_error() {
        #[cfg(unix)]
        Some(libc::ELOOP | libc::EISDIR | libc::ENXIO) => strange(),
        _ if error.kind() == ErrorKind::NotFound => Error::damaged(path, "it is missing"),
        _ => Error::io(if access == Access::New { "create" } else { "open" }, path, error),
    })?;
    let metadata = file.metadata().map_err(|error| Error::io("open", path, error))?;
    if metadata.is_file() { Ok(file) } else { Err(strange()) }
}

/// The whole of a file that has at most so many bytes.
pub(crate) fn read_file(path: &Path, bytes_max: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = open_file(path, Access::Read)?.take(bytes_max + 1).read_to_end(&mut bytes);
    read.map_err(|error| Error::io("read", path, error))?;
    if bytes.len() as u64 > bytes_max { Err(Error::damaged(path, "it is too long")) } else { Ok(bytes) }
}

/// Makes the names in a folder durable.
pub(crate) fn sync_folder(path: &Path) -> Result<()> {
    let synced: io::Result<()> =
        if cfg!(unix) { File::open(path).and_then(|folder| folder.sync_all()) } else { Ok(()) };
    synced.map_err(|error| Error::io("sync", path, error))
}

/// Refuses what is not a folder by itself: a link may lead to somebody else's files, which would be deleted as left over.
fn expect_folder(path: &Path) -> Result<()> {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(Error::NotAFolder { path: path.to_owned() }),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::damaged(path, "it is missing")),
        Err(error) => Err(Error::io("look at", path, error)),
    }
}

/// Refuses a folder with anything in it but what a crash leaves while a store is made.
fn refuse_if_taken(path: &Path) -> Result<()> {
    let is_left = |(path, name): &(PathBuf, String)| match name.as_str() {
        DATA => fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none()),
        LOCK | HEAD_NEW => true,
        name => is_catalog(name),
    };
    match path.symlink_metadata() {
        Err(_) => Ok(()),
        Ok(_) if path.is_dir() && entries(path)?.iter().all(is_left) => Ok(()),
        Ok(_) => Err(Error::AlreadyExists { path: path.to_owned() }),
    }
}

/// What is in a folder. Names that are no text are shown as what no file of a store is called.
fn entries(path: &Path) -> Result<Vec<(PathBuf, String)>> {
    let list = fs::read_dir(path).map_err(|error| Error::io("list", path, error))?;
    let named =
        |entry: fs::DirEntry| (entry.path(), entry.file_name().into_string().unwrap_or_else(|_| "?".to_owned()));
    Ok(list.filter_map(|entry| entry.ok().map(named)).collect())
}

fn is_catalog(name: &str) -> bool {
    name.strip_prefix(CATALOG).is_some_and(|id| id.len() == 32 && is_hex(id))
}

fn is_extent(name: &str) -> bool {
    name.len() == 64 && is_hex(name)
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Whether a file that is open has more than one name.
#[cfg(unix)]
pub(crate) fn has_other_names(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    file.metadata().is_ok_and(|metadata| metadata.nlink() > 1)
}

#[cfg(not(unix))]
pub(crate) fn has_other_names(_: &File) -> bool {
    false
}

/// Whether the path still names the file that is open.
#[cfg(unix)]
fn is_same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    file.metadata().is_ok_and(|metadata| fs::symlink_metadata(path).is_ok_and(|other| place(other) == place(metadata)))
}

/// Other systems do not let an open file be deleted, so the path still names it.
#[cfg(not(unix))]
fn is_same_file(_: &File, _: &Path) -> bool {
    true
}
