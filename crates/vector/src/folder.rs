//! The folder of a durable collection: its files' names, its lock, and the manifest that says which of them count.
//!
//! The manifest is replaced by renaming a complete new one over it; that rename is what commits a new segment, a
//! compaction, an index or `clear`. Files that the manifest does not name are left over from a crash, and are deleted
//! when the collection has been opened for writing. A collection's own folder is made durable in the same way: with the
//! folder above it.
//!
//! The manifest says of every segment that is complete how long its log is. Of the newest it says so after the collection
//! was closed in order, until it is written to again; without that, its log may have a torn end. Version 1 says nothing of
//! lengths; the first change makes it version 2.
//!
//! The manifest of an encrypted collection is the text of a vault's head; the other files hold frames of that vault (`sealed`).
//!
//! A writer has the lock, and files are made, renamed and deleted only while the path leads to the file that it has locked: whoever
//! moves or deletes the folder of an open collection, and puts another one in its place, keeps that other one.
//!
//! A writer has the lock. Readers need none: they take the manifest as it is, and begin again where a file that it names
//! is deleted before they have opened it.

use std::collections::HashSet;
use std::fs::{self, File, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use panoply_runtime::Runtime;
use panoply_store::{MasterKey, Vault};

use crate::error::{Error, Failure, Result};
use crate::region::{Access, Region, open_file, read_file, sync_folder};
use crate::schema::{Schema, Storage, parse_metric};
use crate::sealed::Sealing;

const MANIFEST: &str = "MANIFEST";
const MANIFEST_NEW: &str = "MANIFEST.new";
const LOCK: &str = "LOCK";
/// What the first line of a manifest of any version begins with.
const MANIFEST_NAME: &str = "panoply vectors ";
/// What the manifest's first line begins with; a checksum follows.
const MANIFEST_HEAD: &str = "panoply vectors 2 ";
/// The same of the version before.
const MANIFEST_HEAD_OLD: &str = "panoply vectors 1 ";
/// A manifest is small; a longer one is no manifest.
const MANIFEST_BYTES_MAX: u64 = 16 << 20;

/// What opens an encrypted collection: its key, and the runtime that works with it. `None` for one that is not encrypted.
pub(crate) type Opener<'a> = Option<(&'a Arc<Runtime>, &'a MasterKey)>;

/// Files are numbered below this.
const NUMBERS_MAX: u32 = u32::MAX - 1;

/// What a damaged file is called once its collection was repaired.
const DAMAGED: &str = "damaged";

/// A collection's folder: locked for this process, or only read.
pub(crate) struct Folder {
    path: PathBuf,
    /// Held for the lock that ends with it; `None` for readers.
    lock: Option<File>,
    sealing: Sealing,
}

/// What the manifest says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    name: String,
    dimension: usize,
    metric: String,
    storage: Storage,
    /// The segments, oldest first.
    pub(crate) segments: Vec<ListedSegment>,
    /// The number of the next new file.
    pub(crate) next: u32,
    /// The number of the file with the index's centroids.
    pub(crate) centroids: Option<u32>,
    /// Whether it was written by the version before, which says nothing of lengths.
    #[serde(skip)]
    pub(crate) old: bool,
}

/// A segment that counts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ListedSegment {
    pub(crate) id: u32,
    /// Whether its rows are in the order of the index's lists.
    pub(crate) lists: bool,
    /// How much of it there is; `None` while it grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) extent: Option<Extent>,
}

/// How much of a segment there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Extent {
    pub(crate) log_bytes: u64,
    /// Records of the log.
    pub(crate) records: u64,
    pub(crate) rows: u32,
}

impl Manifest {
    pub(crate) fn new(schema: &Schema) -> Manifest {
        let (name, metric) = (schema.name.clone(), schema.metric.name().to_owned());
        let (dimension, storage) = (schema.dimension, schema.storage);
        Manifest { name, dimension, metric, storage, segments: Vec::new(), next: 0, centroids: None, old: false }
    }

    pub(crate) fn schema(&self) -> Result<Schema> {
        let metric = parse_metric(&self.metric)?;
        let schema = Schema::new(self.name.clone(), self.dimension, metric).storage(self.storage);
        schema.validate()?;
        Ok(schema)
    }

    /// The number for a new file.
    pub(crate) fn take_number(&mut self) -> Result<u32> {
        let taken = self.next;
        self.next = taken.checked_add(1).filter(|next| *next <= NUMBERS_MAX).ok_or_else(|| {
            Error::invalid("number of a new file", format!("fewer than {NUMBERS_MAX}; a snapshot begins anew"), taken)
        })?;
        Ok(taken)
    }

    /// The manifest in the content of its file.
    pub(crate) fn parse(path: &Path, text: &[u8]) -> Result<Manifest> {
        let damaged = |reason: &str| Error::corrupt(path, 0, reason);
        let text = str::from_utf8(text).map_err(|_| damaged("it is not text"))?;
        let (head, body) = text.split_once('\n').ok_or_else(|| damaged("it has no first line"))?;
        let body = body.trim_end();
        let old = head.strip_prefix(MANIFEST_HEAD_OLD);
        let checksum = old.or_else(|| head.strip_prefix(MANIFEST_HEAD));
        let checksum = checksum.ok_or_else(|| damaged(unread_version(head)))?;
        if checksum != format!("{:08x}", crc32fast::hash(body.as_bytes())) {
            return Err(damaged("its checksum does not fit"));
        }
        let mut manifest: Manifest = serde_json::from_str(body).map_err(|error| damaged(&error.to_string()))?;
        manifest.old = old.is_some();
        manifest.contradiction().map_or(Ok(manifest), |reason| Err(damaged(reason)))
    }

    /// The content of a manifest's file.
    pub(crate) fn text(body: &str) -> String {
        format!("{MANIFEST_HEAD}{:08x}\n{body}\n", crc32fast::hash(body.as_bytes()))
    }

    /// What cannot be true of it.
    fn contradiction(&self) -> Option<&'static str> {
        let mut seen = HashSet::new();
        let numbers = || self.segments.iter().map(|segment| segment.id);
        if self.segments.is_empty() {
            Some("it names no segment")
        } else if !numbers().all(|number| seen.insert(number)) {
            Some("it names a segment twice")
        } else if self.next > NUMBERS_MAX || numbers().chain(self.centroids).any(|number| number >= self.next) {
            Some("it names a file whose number was never given out")
        } else if self.centroids.is_none() && self.segments.iter().any(|segment| segment.lists) {
            Some("it names lists of an index that it does not name")
        } else if !self.old && self.segments.iter().rev().skip(1).any(|segment| segment.extent.is_none()) {
            Some("it does not say how long a segment is that does not grow")
        } else {
            None
        }
    }
}

impl Folder {
    /// Makes a folder for a new collection.
    pub(crate) fn create(path: &Path, sealing: Sealing) -> Result<Folder> {
        let path = &absolute(path);
        refuse_if_taken(path)?;
        create_durably(path)?;
        let folder = Folder::lock(path, sealing)?;
        // Another process may have created a collection here before the lock was taken; none can from now on.
        refuse_if_taken(path)?;
        folder.remove_strangers(&[])?;
        // This marker tells the folder, until its manifest is written, from that of a collection whose manifest was lost.
        open_file(&path.join(MANIFEST_NEW), Access::New)?;
        Ok(folder)
    }

    /// Opens the folder of a collection to be written to, and reads its manifest. Nothing is changed; once all of it was
    /// found in order, [`Folder::tidy`] deletes what was left over.
    pub(crate) fn open(path: &Path, opener: Opener<'_>) -> Result<(Folder, Manifest)> {
        let path = &absolute(path);
        expect_collection(path)?;
        // The manifest is read before the lock file is made, so that a folder which is no collection gets none; and again
        // under the lock, since another writer may have replaced it in between.
        let (sealing, _) = unlock(path, opener)?;
        let folder = Folder::lock(path, sealing)?;
        let manifest = folder.read_manifest()?;
        Ok((folder, manifest))
    }

    /// Opens the folder of a collection to be read alone, whoever writes to it meanwhile, and reads its manifest.
    pub(crate) fn open_read_only(path: &Path, opener: Opener<'_>) -> Result<(Folder, Manifest)> {
        let path = absolute(path);
        expect_collection(&path)?;
        let (sealing, manifest) = unlock(&path, opener)?;
        Ok((Folder { path, lock: None, sealing }, manifest))
    }

    /// Whether the collection in a folder is encrypted.
    pub(crate) fn is_encrypted(path: &Path) -> Result<bool> {
        let path = absolute(path);
        expect_collection(&path)?;
        Ok(Vault::is_head(&read_manifest(&path)?))
    }

    /// How its files are written.
    pub(crate) fn sealing(&self) -> &Sealing {
        &self.sealing
    }

    /// Whether its files are sealed.
    pub(crate) fn is_sealed(&self) -> bool {
        self.sealing.vault().is_some()
    }

    /// A new file that grows.
    pub(crate) fn new_region(&self, path: &Path) -> Result<Region> {
        match self.sealing.create(path)? {
            Some(sealed) => Ok(Region::sealed(sealed, &Region::in_memory()?.view())),
            None => Region::in_file(open_file(path, Access::New)?, path, 0),
        }
    }

    /// What a file holds now; `None` where it is not there any more, since others have taken its place.
    pub(crate) fn read_again(&self, path: &Path) -> Result<Option<Vec<u8>>> {
        match self.sealing.salvage_file(path) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    /// Locks the folder for a user who may not write to it, until what is returned is dropped. `None`: it has no lock file
    /// that this user may read, so that nobody has it open, or nobody can know.
    pub(crate) fn keep_writers_out(path: &Path) -> Result<Option<File>> {
        let Ok(lock) = open_file(&path.join(LOCK), Access::Read) else { return Ok(None) };
        match lock.try_lock_shared() {
            Ok(()) => Ok(Some(lock)),
            Err(TryLockError::WouldBlock) => Err(Error::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(error)) => Err(Error::io("lock", &path.join(LOCK), error)),
        }
    }

    /// Whether a path leads to a place in this folder. What is not there yet is judged by where it would be.
    pub(crate) fn holds(&self, path: &Path) -> bool {
        let Ok(folder) = fs::canonicalize(&self.path) else { return false };
        let path = absolute(path);
        let there = path.ancestors().find_map(|part| fs::canonicalize(part).ok());
        there.is_some_and(|there| there.starts_with(folder))
    }

    /// The manifest as it is now.
    pub(crate) fn read_manifest(&self) -> Result<Manifest> {
        let (path, bytes) = (self.path.join(MANIFEST), read_manifest(&self.path)?);
        match self.sealing.vault() {
            Some(vault) => Manifest::parse(&path, &vault.open_again(&path, &bytes)?),
            None => Manifest::parse(&path, &bytes),
        }
    }

    /// Whether nothing in it may be changed.
    pub(crate) fn is_read_only(&self) -> bool {
        self.lock.is_none()
    }

    /// Deletes files that a crash has left over.
    pub(crate) fn tidy(&self, manifest: &Manifest) -> Result<()> {
        self.remove_strangers(&self.names(manifest))
    }

    fn lock(path: &Path, sealing: Sealing) -> Result<Folder> {
        let lock_path = path.join(LOCK);
        let lock = open_file(&lock_path, Access::Make)?;
        match lock.try_lock() {
            Ok(()) if is_same_file(&lock, &lock_path) => {
                Ok(Folder { path: path.to_owned(), lock: Some(lock), sealing })
            }
            // Another process deleted the collection, and its lock file, between the opening and the locking of that file.
            Ok(()) => Err(Error::InUse { path: path.to_owned() }),
            Err(TryLockError::WouldBlock) => Err(Error::InUse { path: path.to_owned() }),
            Err(TryLockError::Error(error)) => Err(Error::io("lock", &lock_path, error)),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn rows_path(&self, segment: u32) -> PathBuf {
        self.path.join(format!("segment-{segment:06}.rows"))
    }

    pub(crate) fn log_path(&self, segment: u32) -> PathBuf {
        self.path.join(format!("segment-{segment:06}.log"))
    }

    pub(crate) fn lists_path(&self, segment: u32) -> PathBuf {
        self.path.join(format!("segment-{segment:06}.lists"))
    }

    pub(crate) fn centroids_path(&self, number: u32) -> PathBuf {
        self.path.join(format!("index-{number:06}.centroids"))
    }

    /// Refuses to change anything where the path does not lead to this folder any more.
    pub(crate) fn expect_in_place(&self) -> Result<()> {
        let Some(lock) = &self.lock else { return Ok(()) };
        let path = self.path.join(LOCK);
        let there = match fs::symlink_metadata(&path) {
            Ok(_) => is_same_file(lock, &path),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => false,
            Err(error) => return Err(Error::io("look at", &path, error)),
        };
        if there { Ok(()) } else { Err(Error::Moved { path: self.path.clone() }) }
    }

    /// Makes this the manifest. When it returns, the files it names and itself have reached the disk.
    pub(crate) fn write_manifest(&self, manifest: &Manifest) -> Result<(), Failure> {
        self.expect_in_place()?;
        let body = serde_json::to_string(manifest).map_err(|error| Error::invalid("manifest", "JSON", error))?;
        let text = Manifest::text(&body).into_bytes();
        let bytes =
            self.sealing.vault().map_or(Ok(text.clone()), |vault| vault.seal_head(&text)).map_err(Error::from)?;
        write_manifest_to(&self.path, &bytes)
    }

    /// Deletes the files of segments and of an index. Maps of them stay valid while they are used.
    pub(crate) fn remove(&self, segments: impl IntoIterator<Item = u32>, centroids: Option<u32>) {
        if self.expect_in_place().is_err() {
            return;
        }
        let files = segments.into_iter().flat_map(|segment| self.segment_files(segment));
        for path in files.chain(centroids.map(|number| self.centroids_path(number))) {
            // What cannot be deleted now is deleted when the collection is opened next.
            let _ = fs::remove_file(path);
        }
    }

    /// Gives damaged files names under which nobody takes them for parts of the collection.
    pub(crate) fn set_aside(&self, files: &[PathBuf]) {
        for path in files {
            let mut name = path.clone().into_os_string();
            name.push(format!(".{DAMAGED}"));
            // The manifest does not name it any more; what cannot be renamed is deleted when the collection is opened.
            let _ = fs::rename(path, name);
        }
    }

    fn segment_files(&self, segment: u32) -> [PathBuf; 3] {
        [self.rows_path(segment), self.log_path(segment), self.lists_path(segment)]
    }

    fn names(&self, manifest: &Manifest) -> Vec<PathBuf> {
        let segments = manifest.segments.iter().flat_map(|segment| self.segment_files(segment.id));
        segments.chain(manifest.centroids.map(|number| self.centroids_path(number))).collect()
    }

    /// Deletes what a repair has set aside.
    fn remove_damaged(&self) {
        let Ok(entries) = fs::read_dir(&self.path) else { return };
        for path in entries.filter_map(|entry| entry.ok().map(|entry| entry.path())) {
            if path.extension().is_some_and(|end| end == DAMAGED) && is_ours(&path.with_extension("")) {
                let _ = fs::remove_file(&path);
            }
        }
    }

    /// Deletes what looks like a collection's file and is not among the names.
    fn remove_strangers(&self, names: &[PathBuf]) -> Result<()> {
        let entries = fs::read_dir(&self.path).map_err(|error| Error::io("list", &self.path, error))?;
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
        // The marker of a folder that is being made or deleted goes last, so that a crash leaves it with the other files.
        paths.sort_by_key(|path| path.ends_with(MANIFEST_NEW));
        for path in paths {
            if is_ours(&path) && !names.contains(&path) && !path.ends_with(LOCK) && !path.ends_with(MANIFEST) {
                fs::remove_file(&path).map_err(|error| Error::io("delete", &path, error))?;
            }
        }
        Ok(())
    }
}

/// Why the first line of a manifest is not read.
fn unread_version(head: &str) -> &'static str {
    let version = head.strip_prefix(MANIFEST_NAME).and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
    match version.is_some_and(|version| version > 2) {
        true => "a newer version of panoply wrote it, which this one cannot read",
        false => "it is no manifest of version 1 or 2",
    }
}

/// The path from the root, so that it leads to the same place when the program changes its current folder.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn has_segments(path: &Path) -> bool {
    let is_log = |path: PathBuf| is_ours(&path) && path.extension().is_some_and(|end| end == "log");
    fs::read_dir(path).is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(|entry| is_log(entry.path()))))
}

/// Refuses a path that does not hold a collection.
fn expect_collection(path: &Path) -> Result<()> {
    let manifest = path.join(MANIFEST);
    match manifest.symlink_metadata() {
        Ok(metadata) if !metadata.is_dir() => return Ok(()),
        // Whether there is one is not for this user to know.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Err(Error::io("open", &manifest, error)),
        Ok(_) | Err(_) => {}
    }
    let reason = match (path.is_file(), path.exists()) {
        (true, _) => "it is a file; a collection is a folder",
        (false, true) if !holds_only_leftovers(path).unwrap_or(true) && has_segments(path) => {
            "its manifest is missing, though there are segments"
        }
        (false, true) => "the folder has no manifest",
        (false, false) => "there is nothing at this path",
    };
    Err(Error::NotACollection { path: path.to_owned(), reason: reason.to_owned() })
}

/// Deletes a collection's folder. What is not a collection, or is open for writing, is refused.
pub(crate) fn destroy(path: &Path) -> Result<()> {
    expect_collection(path)?;
    let folder = Folder::lock(path, Sealing::default())?;
    // A folder without a manifest cannot be opened, so that a crash leaves no half collection. Under its new name the manifest
    // marks the other files as left over.
    let (manifest, given_up) = (path.join(MANIFEST), path.join(MANIFEST_NEW));
    let _ = fs::remove_file(&given_up);
    fs::rename(&manifest, &given_up).map_err(|error| Error::io("delete", &manifest, error))?;
    folder.remove_strangers(&[])?;
    folder.remove_damaged();
    drop(folder);
    remove_leftovers(path);
    Ok(())
}

/// Deletes what is left of a folder that is no collection, or did not become one. One in which somebody keeps other files
/// stays.
pub(crate) fn remove_leftovers(path: &Path) {
    if path.join(MANIFEST).exists() {
        return;
    }
    if let Ok(folder) = Folder::lock(path, Sealing::default()) {
        let _ = folder.remove_strangers(&[]);
        let _ = fs::remove_file(path.join(LOCK));
        let _ = fs::remove_dir(path);
    }
}

/// Writes a manifest into a folder, durably and all at once. Once it has its name it may count, whether or not the name is
/// known to have reached the disk: a failure after that is unclear.
fn write_manifest_to(folder: &Path, content: &[u8]) -> Result<(), Failure> {
    let (new, path) = (folder.join(MANIFEST_NEW), folder.join(MANIFEST));
    // A file that a crash or another program has left under this name is deleted, never written to.
    let _ = fs::remove_file(&new);
    let mut file = open_file(&new, Access::New)?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    written.map_err(|error| Error::io("write", &new, error))?;
    // A system that says that renaming failed may have done it.
    fs::rename(&new, &path).map_err(|error| Failure::unclear(Error::io("write", &path, error)))?;
    sync_folder(folder).map_err(Failure::unclear)
}

/// The content of a manifest's file. Sealed it is a little longer.
fn read_manifest(folder: &Path) -> Result<Vec<u8>> {
    read_file(&folder.join(MANIFEST), MANIFEST_BYTES_MAX + (1 << 20))
}

/// Reads the manifest in a folder, and finds out how the other files are written. A key for what is not encrypted is refused as well: whoever
/// gives one wants to know that nobody has put another collection there.
fn unlock(folder: &Path, opener: Opener<'_>) -> Result<(Sealing, Manifest)> {
    let (path, bytes) = (folder.join(MANIFEST), read_manifest(folder)?);
    match (Vault::is_head(&bytes), opener) {
        (false, None) => Ok((Sealing::default(), Manifest::parse(&path, &bytes)?)),
        (false, Some(_)) => Err(Error::NotEncrypted { path: folder.to_owned() }),
        (true, None) => Err(Error::Locked { path: folder.to_owned() }),
        (true, Some((runtime, key))) => {
            let (vault, text) = Vault::open(Arc::clone(runtime), folder, &path, &bytes, key)?;
            let manifest = Manifest::parse(&path, &text)?;
            Ok((Sealing::with(vault), manifest))
        }
    }
}

fn refuse_if_taken(path: &Path) -> Result<()> {
    match path.join(MANIFEST).exists() || path.exists() && !holds_only_leftovers(path)? {
        true => Err(Error::AlreadyExists { path: path.to_owned() }),
        false => Ok(()),
    }
}

/// Makes a folder and those above it that are missing. When it returns, their names have reached the disk.
fn create_durably(path: &Path) -> Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|folder| !folder.exists()).collect();
    fs::create_dir_all(path).map_err(|error| Error::io("create", path, error))?;
    missing.iter().filter_map(|folder| folder.parent()).try_for_each(|above| {
        // The folder above a relative path of one name is the current one.
        sync_folder(if above.as_os_str().is_empty() { Path::new(".") } else { above })
    })
}

/// Whether the path still names the file that is open.
#[cfg(unix)]
fn is_same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let place = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    file.metadata().ok().map(place) == fs::symlink_metadata(path).ok().map(place)
}

/// Other systems do not let an open file be deleted, so the path still names it.
#[cfg(not(unix))]
fn is_same_file(_: &File, _: &Path) -> bool {
    true
}

/// Whether a folder holds nothing but what a crash can leave while a collection is created or deleted. Segments without any
/// manifest are not that: they are a collection whose manifest was lost.
fn holds_only_leftovers(path: &Path) -> Result<bool> {
    let entries = fs::read_dir(path).map_err(|error| Error::io("list", path, error))?;
    let mut paths = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let is_marked = path.join(MANIFEST_NEW).symlink_metadata().is_ok();
    Ok(paths.all(|path| is_ours(&path) && (is_marked || path.ends_with(LOCK))))
}

fn is_ours(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let numbered = |prefix: &str, ends: &[&str]| {
        let number = name.strip_prefix(prefix).and_then(|rest| rest.split_once('.'));
        number.is_some_and(|(digits, end)| digits.bytes().all(|byte| byte.is_ascii_digit()) && ends.contains(&end))
    };
    name == LOCK
        || name == MANIFEST_NEW
        || numbered("segment-", &["rows", "log", "lists"])
        || numbered("index-", &["centroids"])
}

/// A number for one log, different each time.
pub(crate) fn nonce() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::hash::RandomState::new().build_hasher();
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    hasher.write_u64(time);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use panoply_core::op::compute::Metric;

    #[test]
    fn numbers_of_files_end_before_they_wrap() {
        let mut manifest = Manifest::new(&Schema::new("a", 2, Metric::Dot));
        assert_eq!((manifest.take_number().unwrap(), manifest.next), (0, 1));
        manifest.next = NUMBERS_MAX - 1;
        assert_eq!(manifest.take_number().unwrap(), NUMBERS_MAX - 1);
        assert!(matches!(manifest.take_number(), Err(Error::InvalidArgument { .. })));
        assert_eq!(manifest.next, NUMBERS_MAX);
    }
}
