//! The folder of a store: its files, its lock, and what reaches the disk when.
//!
//! ```text
//! HEAD                 what counts, twice; replaced by renaming a complete new one over it
//! HEAD.<random>.new    the next one, while it is written
//! catalog-<id>         the log of changes that HEAD names
//! catalog-<id>.copy    the same bytes again
//! data/KEYS            the root keys as they are in HEAD, twice: what is needed beside the extents to find all objects again
//! data/<id>            the extents
//! RESERVE              room for removals where the disk is full; it is never read
//! *.damaged            files that a repair has set aside
//! LOCK                 an empty file that is locked beside the folder
//! ```
//!
//! 1. Files are regular files, and `data` is a folder, never links: a link could lead to files that
//!    are not the store's.
//! 2. Files are made, renamed and deleted only while the path leads to the folder that was locked
//!    ([`crate::lock`]).
//! 3. HEAD is replaced only while it has the bytes that this writer read or wrote last. The new
//!    one has a random name until then. So if another folder takes this one's place in between, it
//!    has no such file and keeps its own HEAD.
//! 4. Files that HEAD does not lead to are left over from a crash, and are deleted by the next
//!    writer. Folders are never deleted.

use std::collections::HashSet;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::catalog::Extent;
use crate::encode::{from_hex, hex, is_hex};
use crate::error::{Error, Result};
use crate::files::{Access, open_file, read_file, sync_folder};
use crate::head::HEAD_BYTES_MAX;
use crate::lock::{LOCK, Lock};
use crate::randomness::random;
use crate::reserve::{self, RESERVE};

const HEAD: &str = "HEAD";
const DATA: &str = "data";
const KEYS: &str = "KEYS";
const NEW: &str = ".new";
const CATALOG: &str = "catalog-";
const COPY: &str = ".copy";
const DAMAGED: &str = ".damaged";

/// A store's folder, locked for this process: exclusively, or shared with other readers.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    lock: Lock,
}

/// A failed change to files.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) error: Error,
    /// Whether it is unclear what the disk holds now.
    pub(crate) is_unclear: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        // After another writer, this writer's view of the folder is invalid.
        let is_unclear = matches!(error, Error::Overtaken { .. });
        Failure { error, is_unclear }
    }
}

impl Failure {
    /// A failure that leaves the state of the disk unclear.
    pub(crate) fn unclear(error: Error) -> Failure {
        Failure { error, is_unclear: true }
    }

    /// Names the change that was not made, if another writer was the cause.
    pub(crate) fn undoing(mut self, change: impl FnOnce() -> String) -> Failure {
        if let Error::Overtaken { undone, .. } = &mut self.error {
            *undone = change();
        }
        self
    }
}

impl Folder {
    /// Makes the folder of a new store, and locks it.
    pub(crate) fn create(path: &Path) -> Result<Folder> {
        let path = &std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        refuse_if_taken(path)?;
        let missing: Vec<&Path> = path.ancestors().take_while(|folder| !folder.exists()).collect();
        let data = path.join(DATA);
        make_private(path, &data)?;
        expect_folder(&data)?;
        missing.iter().filter_map(|folder| folder.parent()).try_for_each(sync_folder)?;
        let folder = Folder { path: path.clone(), lock: Lock::take(path, true, Duration::ZERO)? };
        // Another process may have made a store here before the lock was taken. From now on none
        // can.
        refuse_if_taken(path)?;
        folder.remove_strangers(None, &HashSet::new())?;
        Ok(folder)
    }

    /// Locks the folder of a store; waits up to `wait_max` for processes that hold the lock.
    pub(crate) fn open(path: &Path, is_writer: bool, wait_max: Duration) -> Result<Folder> {
        let folder = Folder::open_anyhow(path, is_writer, wait_max)?;
        let head = folder.head_path();
        match head.symlink_metadata() {
            Ok(_) => Ok(folder),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::damaged(&head, "it is missing")),
            Err(error) => Err(Error::io("open", &head, error)),
        }
    }

    /// Like `open`, but HEAD may be missing if other files of a store are there.
    pub(crate) fn open_anyhow(path: &Path, is_writer: bool, wait_max: Duration) -> Result<Folder> {
        let path = &std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let not = |reason| Error::NotAStore { path: path.clone(), reason };
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => {}
            Ok(_) => return Err(not("it is a file; a store is a folder")),
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(not("there is nothing at this path")),
            Err(error) => return Err(Error::io("open", path, error)),
        }
        let is_there =
            |name: &Path| !matches!(name.symlink_metadata(), Err(error) if error.kind() == ErrorKind::NotFound);
        let data = path.join(DATA);
        if !is_there(&path.join(HEAD)) && !is_there(&data.join(KEYS)) {
            let is_ours = |(_, name): &(PathBuf, String)| is_catalog(name);
            if !entries(path)?.iter().any(is_ours) {
                return Err(not("the folder has no HEAD"));
            }
        }
        expect_folder(&data)?;
        Ok(Folder { path: path.clone(), lock: Lock::take(path, is_writer, wait_max)? })
    }

    /// Deletes the files of a store whose creation failed, unless it has a head.
    pub(crate) fn give_up(self) {
        if self.head_path().symlink_metadata().is_err() && self.remove_strangers(None, &HashSet::new()).is_ok() {
            let _ = fs::remove_file(self.keys_path());
            let _ = fs::remove_dir(self.path.join(DATA));
            let _ = fs::remove_file(self.path.join(LOCK));
            let _ = fs::remove_file(self.path.join(RESERVE));
            let _ = fs::remove_dir(&self.path);
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn is_writer(&self) -> bool {
        self.lock.is_writer()
    }

    /// Whether no writer can be there: not on a file system without locks.
    pub(crate) fn is_locked(&self) -> bool {
        self.lock.is_held()
    }

    pub(crate) fn head_path(&self) -> PathBuf {
        self.path.join(HEAD)
    }

    pub(crate) fn keys_path(&self) -> PathBuf {
        self.path.join(DATA).join(KEYS)
    }

    /// The two files of a log.
    pub(crate) fn catalog_paths(&self, id: &[u8]) -> [PathBuf; 2] {
        let name = format!("{CATALOG}{}", hex(id));
        [self.path.join(&name), self.path.join(name + COPY)]
    }

    pub(crate) fn extent_path(&self, id: &[u8]) -> PathBuf {
        self.path.join(DATA).join(hex(id))
    }

    /// The ids of all logs that have a file.
    pub(crate) fn catalog_ids(&self) -> Result<Vec<[u8; 16]>> {
        let id = |(_, name): (PathBuf, String)| {
            Some(*from_hex(name.strip_prefix(CATALOG)?.trim_end_matches(COPY).as_bytes())?)
        };
        let mut ids: Vec<[u8; 16]> =
            entries(&self.path)?.into_iter().filter(|(_, name)| is_catalog(name)).filter_map(id).collect();
        ids.sort_unstable();
        ids.dedup();
        Ok(ids)
    }

    /// The ids of all extents that have a file.
    pub(crate) fn extent_ids(&self) -> Result<Vec<[u8; 32]>> {
        let id = |(_, name): (PathBuf, String)| from_hex(name.as_bytes()).map(|id| *id);
        Ok(entries(&self.path.join(DATA))?.into_iter().filter(|(_, name)| is_extent(name)).filter_map(id).collect())
    }

    /// Fails if HEAD does not have these bytes, because another writer has replaced it. `None`
    /// means that there must be no HEAD.
    pub(crate) fn expect_head(&self, bytes: Option<&[u8]>) -> Result<()> {
        let path = self.head_path();
        let is_missing = path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
        let is_same = match bytes {
            Some(bytes) => match read_file(&path, HEAD_BYTES_MAX) {
                Ok(found) => found == bytes,
                Err(error) if error.is_damage() => false,
                Err(error) => return Err(error),
            },
            None => is_missing,
        };
        if is_same { Ok(()) } else { Err(Error::overtaken(path)) }
    }

    /// Whether the file of an extent exists with the right length.
    pub(crate) fn has_extent(&self, extent: &Extent) -> bool {
        let metadata = self.extent_path(&extent.id).symlink_metadata();
        metadata.is_ok_and(|metadata| metadata.is_file() && metadata.len() == extent.file_bytes)
    }

    /// Fails if one of these extents is gone, because another writer deleted it as left over. Names
    /// of extents are random and never reused, so comparing name and length suffices. File numbers
    /// (inodes) are not compared: on some file systems they change once a file is closed.
    fn expect_extents(&self, extents: &[&Extent]) -> Result<()> {
        match extents.iter().find(|extent| !self.has_extent(extent)) {
            Some(extent) => Err(Error::overtaken(self.extent_path(&extent.id))),
            None => Ok(()),
        }
    }

    /// Replaces the head, which has the bytes `before`. Nothing has changed until the new file is
    /// renamed. From then on every failure is unclear, even one of the renaming itself: a system
    /// that reports a failure may have renamed the file. `named` are the extents that the new head
    /// names for the first time.
    pub(crate) fn write_head(&self, bytes: &[u8], before: Option<&[u8]>, named: &[&Extent]) -> Result<(), Failure> {
        self.expect_in_place()?;
        let (new, path) = (self.new_file(&self.head_path(), bytes)?, self.head_path());
        let checked = self.expect_in_place().and_then(|()| self.expect_extents(named));
        if let Err(error) = checked.and_then(|()| self.expect_head(before)) {
            let _ = fs::remove_file(&new);
            return Err(error.into());
        }
        fs::rename(&new, &path).map_err(|error| Failure::unclear(Error::io("replace", &path, error)))?;
        sync_folder(&self.path).map_err(Failure::unclear)?;
        self.expect_in_place().map_err(Failure::unclear)
    }

    /// Replaces the copy of the root keys.
    pub(crate) fn write_keys(&self, bytes: &[u8]) -> Result<()> {
        self.expect_in_place()?;
        let path = self.keys_path();
        let new = self.new_file(&path, bytes)?;
        if let Err(error) = fs::rename(&new, &path) {
            let _ = fs::remove_file(&new);
            return Err(Error::io("replace", &path, error));
        }
        self.sync_data()
    }

    /// Writes a file under a random name, for a later rename to `path`.
    fn new_file(&self, path: &Path, bytes: &[u8]) -> Result<PathBuf> {
        let mut name = path.as_os_str().to_owned();
        name.push(format!(".{}{NEW}", hex(&random::<8>()?)));
        let new = PathBuf::from(name);
        let mut file = open_file(&new, Access::New)?;
        if let Err(error) = file.write_all(bytes).and_then(|()| file.sync_all()) {
            let _ = fs::remove_file(&new);
            return Err(Error::io("write", path, error));
        }
        Ok(new)
    }

    /// Renames a file of the store to a name that no store reads or deletes. A missing file is
    /// skipped.
    pub(crate) fn set_aside(&self, path: &Path) -> Result<()> {
        self.expect_in_place()?;
        let mut aside = path.as_os_str().to_owned();
        aside.push(DAMAGED);
        // Earlier files that were set aside stay as well.
        while Path::new(&aside).symlink_metadata().is_ok() {
            aside = path.as_os_str().to_owned();
            aside.push(format!(".{}{DAMAGED}", hex(&random::<4>()?)));
        }
        match fs::rename(path, &aside) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("rename", path, error)),
            _ => Ok(()),
        }
    }

    /// Deletes heads that a repair has set aside: the master key of their time opens the root keys
    /// in them.
    pub(crate) fn remove_old_heads(&self) {
        if self.expect_in_place().is_err() {
            return;
        }
        for (folder, prefix) in [(self.path.clone(), HEAD), (self.path.join(DATA), KEYS)] {
            for (path, name) in entries(&folder).unwrap_or_default() {
                if name.starts_with(prefix) && name.ends_with(DAMAGED) {
                    let _ = fs::remove_file(path);
                }
            }
        }
    }

    /// Fills the reserve if the disk has room for it. A store works without a reserve, so a failure
    /// is no error.
    pub(crate) fn complete_reserve(&self) {
        let _ = self.expect_in_place().and_then(|()| reserve::complete(&self.path));
    }

    /// Frees the space of the reserve. Returns whether there was any.
    pub(crate) fn give_up_reserve(&self) -> bool {
        self.expect_in_place().is_ok() && reserve::give_up(&self.path)
    }

    /// Makes the names of new extents durable.
    pub(crate) fn sync_data(&self) -> Result<()> {
        sync_folder(&self.path.join(DATA))
    }

    /// Deletes the files of extents. The next writer deletes those that cannot be deleted now.
    pub(crate) fn remove_extents<'a>(&self, ids: impl IntoIterator<Item = &'a [u8; 32]>) {
        if self.expect_in_place().is_ok() {
            ids.into_iter().for_each(|id| drop(fs::remove_file(self.extent_path(id))));
        }
    }

    /// Deletes a log that no longer counts.
    pub(crate) fn remove_catalog(&self, id: &[u8]) {
        if self.expect_in_place().is_ok() {
            self.catalog_paths(id).iter().for_each(|path| drop(fs::remove_file(path)));
        }
    }

    /// Deletes files that a crash has left over: those that look like a store's file and are
    /// neither `catalog` nor one of `extents`.
    pub(crate) fn remove_strangers(&self, catalog: Option<&[u8]>, extents: &HashSet<String>) -> Result<()> {
        self.expect_in_place()?;
        let kept = catalog.map(|id| self.catalog_paths(id));
        let is_kept = |path: &PathBuf| kept.as_ref().is_some_and(|kept| kept.contains(path));
        for (path, name) in entries(&self.path)? {
            if is_new(&name, HEAD) || is_catalog(&name) && !is_kept(&path) {
                remove_stranger(&path)?;
            }
        }
        for (path, name) in entries(&self.path.join(DATA))? {
            if is_new(&name, KEYS) || is_extent(&name) && !extents.contains(&name) {
                remove_stranger(&path)?;
            }
        }
        Ok(())
    }

    /// Fails if this process does not hold the writer's lock, or the path no longer leads to this
    /// folder.
    pub(crate) fn expect_in_place(&self) -> Result<()> {
        if !self.is_writer() {
            return Err(Error::ReadOnly);
        }
        self.lock.expect_held()?;
        expect_folder(&self.path.join(DATA))
    }

    /// Fails in any process but the one that opened the store.
    pub(crate) fn expect_process(&self) -> Result<()> {
        self.lock.expect_process()
    }
}

/// Refuses a link to a folder: it may lead to files of others, which would be deleted as left over.
fn expect_folder(path: &Path) -> Result<()> {
    match path.symlink_metadata() {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Ok(_) => Err(Error::NotAFolder { path: path.to_owned() }),
        Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::damaged(path, "it is missing")),
        Err(error) => Err(Error::io("look at", path, error)),
    }
}

/// Refuses a folder that contains anything but files that a crash leaves while a store is made.
fn refuse_if_taken(path: &Path) -> Result<()> {
    let is_left = |(path, name): &(PathBuf, String)| match name.as_str() {
        DATA => entries(path).is_ok_and(|inner| inner.iter().all(|(_, name)| name == KEYS || is_new(name, KEYS))),
        LOCK | RESERVE => true,
        name => is_catalog(name) || is_new(name, HEAD),
    };
    match path.symlink_metadata() {
        Err(_) => Ok(()),
        Ok(_) if path.is_dir() && entries(path)?.iter().all(is_left) => Ok(()),
        Ok(_) => Err(Error::AlreadyExists { path: path.to_owned() }),
    }
}

/// Makes the folders of a store, private to their owner: anyone who may open a folder may lock it.
/// Missing parent folders get the default permissions.
fn make_private(path: &Path, data: &Path) -> Result<()> {
    let refused = |error| Error::io("create", path, error);
    path.parent().map_or(Ok(()), fs::create_dir_all).map_err(refused)?;
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    for folder in [path, data] {
        match builder.create(folder) {
            Err(error) if !folder.is_dir() => return Err(refused(error)),
            _ => {}
        }
    }
    Ok(())
}

/// Deletes a file or a link. A folder is never left over from a crash, and stays.
fn remove_stranger(path: &Path) -> Result<()> {
    if path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
        return Ok(());
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io("delete", path, error)),
        _ => Ok(()),
    }
}

/// The entries of a folder. A name that is not Unicode is replaced by one that no file of a store
/// has.
fn entries(path: &Path) -> Result<Vec<(PathBuf, String)>> {
    let list = fs::read_dir(path).map_err(|error| Error::io("list", path, error))?;
    let named =
        |entry: fs::DirEntry| (entry.path(), entry.file_name().into_string().unwrap_or_else(|_| "?".to_owned()));
    list.map(|entry| entry.map(named).map_err(|error| Error::io("list", path, error))).collect()
}

fn is_catalog(name: &str) -> bool {
    let id = name.strip_prefix(CATALOG).map(|id| id.strip_suffix(COPY).unwrap_or(id));
    id.is_some_and(|id| id.len() == 32 && is_hex(id))
}

fn is_extent(name: &str) -> bool {
    name.len() == 64 && is_hex(name)
}

/// Whether this is a new head, or new keys, that was never renamed to its final name.
fn is_new(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.') && rest.ends_with(NEW))
}
