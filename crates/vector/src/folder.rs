//! The folder of a durable collection: its file names, its lock, and the manifest that names the
//! current files.
//!
//! The manifest is replaced by renaming a complete new one over it; that rename commits a new
//! segment, a compaction, an index or `clear`. Files that the manifest does not name are left over
//! from a crash, and are deleted when the collection has been opened for writing. A collection's
//! own folder is made durable in the same way: with its parent folder.
//!
//! The manifest has the length of the log of every complete segment. For the newest segment it has
//! the length after an orderly close, until the next write; without it, the log may have a torn
//! end. Version 1 has no lengths; the first change converts it to version 2.
//!
//! The manifest of an encrypted collection is the text of a vault's head; the other files hold
//! frames of that vault (`sealed`).
//!
//! A writer holds the lock, which is that of stores ([`panoply_store::lock`]): on the folder
//! itself, on `LOCK`, and on the log that grows. So deleting `LOCK` admits no second writer, and
//! deleting that log stops the writer. Files are made, renamed and deleted only while the path
//! leads to the locked folder: if the folder of an open collection is moved or deleted, and another
//! one takes its place, that other one is not changed.
//!
//! Readers need no lock: they take the manifest as it is, and begin again if a file that it names
//! is deleted before they have opened it.

use std::collections::HashSet;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use panoply_runtime::Runtime;
use panoply_store::lock::{Alone, Lock};
use panoply_store::{MasterKey, PassphraseCost, Vault};

use crate::embedding_model::EmbeddingModel;
use crate::error::{Error, Failure, Result};
use crate::held_log::HeldLog;
use crate::region::{Access, Region, open_file, read_file, sync_folder};
use crate::schema::{Schema, Storage, parse_metric};
use crate::sealed::Sealing;

const MANIFEST: &str = "MANIFEST";
const MANIFEST_NEW: &str = "MANIFEST.new";
const LOCK: &str = "LOCK";
/// Beginning of the first line of a manifest of any version.
const MANIFEST_NAME: &str = "panoply vectors ";
/// Beginning of the manifest's first line; a checksum follows.
const MANIFEST_HEAD: &str = "panoply vectors 2 ";
/// The same for the previous version.
const MANIFEST_HEAD_OLD: &str = "panoply vectors 1 ";
/// Maximal length of a manifest.
const MANIFEST_BYTES_MAX: u64 = 16 << 20;

/// The key of an encrypted collection, and the runtime that processes it. `None` if the collection
/// is not encrypted.
pub(crate) type Opener<'a> = Option<(&'a Arc<Runtime>, &'a MasterKey)>;

/// File numbers are below this.
const NUMBERS_MAX: u32 = u32::MAX - 1;

/// Extension of a damaged file after a repair.
const DAMAGED: &str = "damaged";

/// A collection's folder: locked for this process, or only read.
pub(crate) struct Folder {
    path: PathBuf,
    /// `None` for readers.
    lock: Option<Lock>,
    /// The growing log, locked as well. This mutex is held only briefly.
    pub(crate) log: Mutex<Option<HeldLog>>,
    sealing: Sealing,
}

/// Content of the manifest.
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
    /// The model that computed the vectors, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) model: Option<EmbeddingModel>,
    /// Whether it was written by the previous version, which has no lengths.
    #[serde(skip)]
    pub(crate) old: bool,
}

/// A current segment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ListedSegment {
    pub(crate) id: u32,
    /// Whether its rows are in the order of the index's lists.
    pub(crate) lists: bool,
    /// Its extent; `None` while it grows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) extent: Option<Extent>,
}

/// The extent of a complete segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Extent {
    pub(crate) log_bytes: u64,
    /// Number of records in the log.
    pub(crate) records: u64,
    pub(crate) rows: u32,
}

impl Manifest {
    pub(crate) fn new(schema: &Schema) -> Manifest {
        let (name, metric) = (schema.name.clone(), schema.metric.name().to_owned());
        let (dimension, storage) = (schema.dimension, schema.storage);
        let (segments, centroids, model) = (Vec::new(), None, None);
        Manifest { name, dimension, metric, storage, segments, next: 0, centroids, model, old: false }
    }

    pub(crate) fn schema(&self) -> Result<Schema> {
        let metric = parse_metric(&self.metric)?;
        let schema = Schema::new(self.name.clone(), self.dimension, metric).storage(self.storage);
        schema.validate()?;
        Ok(schema)
    }

    /// Takes the number for a new file.
    pub(crate) fn take_number(&mut self) -> Result<u32> {
        let taken = self.next;
        self.next = taken.checked_add(1).filter(|next| *next <= NUMBERS_MAX).ok_or_else(|| {
            Error::invalid("number of a new file", format!("fewer than {NUMBERS_MAX}; a snapshot begins anew"), taken)
        })?;
        Ok(taken)
    }

    /// Parses the content of a manifest's file.
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

    /// The first contradiction in the manifest, if any.
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
        // Another process may have created a collection here before the lock was taken. From now on
        // none can.
        refuse_if_taken(path)?;
        folder.remove_strangers(&[])?;
        // Until the manifest is written, this marker distinguishes the folder from a collection
        // whose manifest was lost.
        open_file(&path.join(MANIFEST_NEW), Access::New)?;
        Ok(folder)
    }

    /// Opens the folder of a collection for writing, and reads its manifest. Nothing is changed;
    /// [`Folder::tidy`] deletes leftover files once everything was found intact.
    pub(crate) fn open(path: &Path, opener: Opener<'_>) -> Result<(Folder, Manifest)> {
        let path = &absolute(path);
        expect_collection(path)?;
        // The manifest is read before the lock file is made, so that a folder which is not a
        // collection gets none; and again under the lock, since another writer may have replaced it
        // in between.
        let (sealing, _) = unlock(path, opener)?;
        let folder = Folder::lock(path, sealing)?;
        let manifest = folder.read_manifest()?;
        Ok((folder, manifest))
    }

    /// Opens the folder of a collection read-only, even while another process writes to it, and
    /// reads its manifest.
    pub(crate) fn open_read_only(path: &Path, opener: Opener<'_>) -> Result<(Folder, Manifest)> {
        let path = absolute(path);
        expect_collection(&path)?;
        let (sealing, manifest) = unlock(&path, opener)?;
        Ok((Folder { path, lock: None, log: Mutex::default(), sealing }, manifest))
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

    /// Reads a file again; `None` if it was deleted and replaced by other files meanwhile.
    pub(crate) fn read_again(&self, path: &Path) -> Result<Option<Vec<u8>>> {
        match self.sealing.salvage_file(path) {
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    /// Keeps writers out until the returned lock is dropped, for a user without write permission.
    /// `None` if this user may not open the folder.
    pub(crate) fn keep_writers_out(path: &Path) -> Result<Option<Lock>> {
        match Lock::take(path, false, Duration::ZERO).map_err(Error::from) {
            Err(error @ Error::InUse { .. }) => Err(error),
            locked => Ok(locked.ok()),
        }
    }

    /// Whether a path lies in this folder. A path that does not exist yet is judged by its existing
    /// ancestors.
    pub(crate) fn holds(&self, path: &Path) -> bool {
        let Ok(folder) = fs::canonicalize(&self.path) else { return false };
        let path = absolute(path);
        let there = path.ancestors().find_map(|part| fs::canonicalize(part).ok());
        there.is_some_and(|there| there.starts_with(folder))
    }

    /// The current manifest.
    pub(crate) fn read_manifest(&self) -> Result<Manifest> {
        let (path, bytes) = (self.path.join(MANIFEST), read_manifest(&self.path)?);
        match self.sealing.vault() {
            Some(vault) => Manifest::parse(&path, &vault.open_again(&path, &bytes)?),
            None => Manifest::parse(&path, &bytes),
        }
    }

    /// Whether the collection is read-only.
    pub(crate) fn is_read_only(&self) -> bool {
        self.lock.is_none()
    }

    /// Deletes files that a crash has left over.
    pub(crate) fn tidy(&self, manifest: &Manifest) -> Result<()> {
        self.remove_strangers(&self.names(manifest))
    }

    fn lock(path: &Path, sealing: Sealing) -> Result<Folder> {
        let lock_path = path.join(LOCK);
        if lock_path.symlink_metadata().is_ok_and(|metadata| !metadata.is_file()) {
            return Err(Error::NotAFile { path: lock_path });
        }
        let lock = Lock::take(path, true, Duration::ZERO)?;
        Ok(Folder { path: path.to_owned(), lock: Some(lock), log: Mutex::default(), sealing })
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

    /// Fails if the path no longer leads to this folder.
    pub(crate) fn expect_in_place(&self) -> Result<()> {
        let Some(lock) = &self.lock else { return Ok(()) };
        // Without permission this user can no longer resolve the path.
        match fs::metadata(&self.path) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return Err(Error::io("look at", &self.path, error));
            }
            _ => lock.expect_held()?,
        }
        let held = self.held();
        match held.as_ref().and_then(|held| held.log.as_ref()).map(Alone::expect_in_place) {
            Some(Err(_)) => Err(Error::Moved { path: self.path.clone() }),
            Some(Ok(())) | None => Ok(()),
        }
    }

    /// Makes this the manifest. When it returns, the manifest and the files it names are durable.
    pub(crate) fn write_manifest(&self, manifest: &Manifest) -> Result<(), Failure> {
        self.expect_in_place()?;
        let body = serde_json::to_string(manifest).map_err(|error| Error::invalid("manifest", "JSON", error))?;
        let text = Manifest::text(&body).into_bytes();
        let bytes =
            self.sealing.vault().map_or(Ok(text.clone()), |vault| vault.seal_head(&text)).map_err(Error::from)?;
        write_manifest_to(&self.path, &bytes)
    }

    /// Deletes the files of segments and of an index. Memory maps of them stay valid while they are
    /// used.
    pub(crate) fn remove(&self, segments: impl IntoIterator<Item = u32>, centroids: Option<u32>) {
        if self.expect_in_place().is_err() {
            return;
        }
        let files = segments.into_iter().flat_map(|segment| self.segment_files(segment));
        for path in files.chain(centroids.map(|number| self.centroids_path(number))) {
            // Files that cannot be deleted now are deleted when the collection is opened next.
            let _ = fs::remove_file(path);
        }
    }

    /// Renames damaged files, so that they are not taken for parts of the collection.
    pub(crate) fn set_aside(&self, files: &[PathBuf]) {
        for path in files {
            let mut name = path.clone().into_os_string();
            name.push(format!(".{DAMAGED}"));
            // The manifest no longer names it; a file that cannot be renamed is deleted when the
            // collection is opened.
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

    /// Deletes the files that a repair has set aside.
    fn remove_damaged(&self) {
        let Ok(entries) = fs::read_dir(&self.path) else { return };
        for path in entries.filter_map(|entry| entry.ok().map(|entry| entry.path())) {
            if path.extension().is_some_and(|end| end == DAMAGED) && is_ours(&path.with_extension("")) {
                let _ = fs::remove_file(&path);
            }
        }
    }

    /// Deletes the files of a collection that could not be written completely. A folder whose
    /// manifest was written stays as it is.
    pub(crate) fn abandon(&self) {
        if self.expect_in_place().is_ok() && !self.path.join(MANIFEST).exists() {
            // Files that cannot be deleted now are deleted when a collection is created here.
            let _ = self.remove_strangers(&[]);
            let _ = fs::remove_file(self.path.join(LOCK));
        }
    }

    /// Deletes files that look like a collection's and are not among the names.
    fn remove_strangers(&self, names: &[PathBuf]) -> Result<()> {
        let entries = fs::read_dir(&self.path).map_err(|error| Error::io("list", &self.path, error))?;
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
        // The marker of a folder that is being made or deleted goes last, so that a crash leaves it
        // together with the other files.
        paths.sort_by_key(|path| path.ends_with(MANIFEST_NEW));
        for path in paths {
            if is_ours(&path) && !names.contains(&path) && !path.ends_with(LOCK) && !path.ends_with(MANIFEST) {
                fs::remove_file(&path).map_err(|error| Error::io("delete", &path, error))?;
            }
        }
        Ok(())
    }
}

/// Why the first line of a manifest is not accepted.
fn unread_version(head: &str) -> &'static str {
    let version = head.strip_prefix(MANIFEST_NAME).and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
    match version.is_some_and(|version| version > 2) {
        true => "a newer version of panoply wrote it, which this one cannot read",
        false => "it is no manifest of version 1 or 2",
    }
}

/// The absolute path, so that it stays valid when the program changes its current folder.
fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn has_segments(path: &Path) -> bool {
    let is_log = |path: PathBuf| is_ours(&path) && path.extension().is_some_and(|end| end == "log");
    fs::read_dir(path).is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(|entry| is_log(entry.path()))))
}

/// Refuses a path without a collection.
fn expect_collection(path: &Path) -> Result<()> {
    let manifest = path.join(MANIFEST);
    match manifest.symlink_metadata() {
        Ok(metadata) if !metadata.is_dir() => return Ok(()),
        // Without permission this user cannot know whether there is one.
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

/// Deletes a collection's folder. A folder that is not a collection, or is open for writing, is
/// refused.
pub(crate) fn destroy(path: &Path) -> Result<()> {
    expect_collection(path)?;
    let folder = Folder::lock(path, Sealing::default())?;
    folder.expect_logs_free()?;
    // A folder without a manifest cannot be opened, so a crash leaves no partial collection. Under
    // its new name the manifest marks the other files as left over.
    let (manifest, given_up) = (path.join(MANIFEST), path.join(MANIFEST_NEW));
    let _ = fs::remove_file(&given_up);
    fs::rename(&manifest, &given_up).map_err(|error| Error::io("delete", &manifest, error))?;
    folder.remove_strangers(&[])?;
    folder.remove_damaged();
    drop(folder);
    remove_leftovers(path);
    Ok(())
}

/// Deletes the remains of a folder that is not, or did not become, a collection. A folder with
/// other files stays.
pub(crate) fn remove_leftovers(path: &Path) {
    if path.join(MANIFEST).exists() {
        return;
    }
    if let Ok(folder) = Folder::lock(path, Sealing::default()) {
        folder.abandon();
        let _ = fs::remove_dir(path);
    }
}

/// Writes a manifest into a folder, durably and atomically. Once the file has its final name it may
/// count, whether or not the name is known to be durable: a failure after that is unclear.
fn write_manifest_to(folder: &Path, content: &[u8]) -> Result<(), Failure> {
    let (new, path) = (folder.join(MANIFEST_NEW), folder.join(MANIFEST));
    // A file left under this name by a crash or another program is deleted, never written to.
    let _ = fs::remove_file(&new);
    let mut file = open_file(&new, Access::New)?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    written.map_err(|error| Error::io("write", &new, error))?;
    // A system that reports a failed rename may have carried it out.
    fs::rename(&new, &path).map_err(|error| Failure::unclear(Error::io("write", &path, error)))?;
    sync_folder(folder).map_err(Failure::unclear)
}

/// The content of a manifest's file. A sealed one is a little longer.
fn read_manifest(folder: &Path) -> Result<Vec<u8>> {
    read_file(&folder.join(MANIFEST), MANIFEST_BYTES_MAX + (1 << 20))
}

/// Reads the manifest in a folder, and determines how the other files are written. A key for an
/// unencrypted collection is refused as well: the caller relies on the key to detect that another
/// collection was put there.
fn unlock(folder: &Path, opener: Opener<'_>) -> Result<(Sealing, Manifest)> {
    let (path, bytes) = (folder.join(MANIFEST), read_manifest(folder)?);
    match (Vault::is_head(&bytes), opener) {
        (false, None) => Ok((Sealing::default(), Manifest::parse(&path, &bytes)?)),
        (false, Some(_)) => Err(Error::NotEncrypted { path: folder.to_owned() }),
        (true, None) => Err(Error::Locked { path: folder.to_owned() }),
        (true, Some((runtime, key))) => {
            let (vault, text) =
                Vault::open(Arc::clone(runtime), folder, &path, &bytes, key, PassphraseCost::default())?;
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

/// Makes a folder and its missing parents. When it returns, their names are durable.
fn create_durably(path: &Path) -> Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|folder| !folder.exists()).collect();
    fs::create_dir_all(path).map_err(|error| Error::io("create", path, error))?;
    missing.iter().filter_map(|folder| folder.parent()).try_for_each(|above| {
        // The parent of a relative path of one name is the current folder.
        sync_folder(if above.as_os_str().is_empty() { Path::new(".") } else { above })
    })
}

/// Whether a folder holds only files that a crash can leave while a collection is created or
/// deleted. Segments without a manifest do not qualify: they are a collection whose manifest was
/// lost.
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
