//! Creating and opening collections.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use panoply_runtime::Runtime;
use panoply_store::{MasterKey, PassphraseCost, Vault};

use super::background::Background;
use super::{Collection, Inner};
use crate::error::{Error, Result};
use crate::folder::{self, Folder, Manifest, Opener};
use crate::ivf::{Centroids, Lists};
use crate::record::RowAddress;
use crate::repair::{self, Repair};
use crate::schema::{Options, Schema};
use crate::sealed::Sealing;
use crate::search::gather::Gather;
use crate::segment::Segment;
use crate::state::{CollectionState, Index, Snapshot};
use crate::writer::recover::{Ending, Takeover, examine};
use crate::writer::{Writer, WriterHandle};

/// Bytes of rows that the system is asked to read ahead before the first search.
const READ_AHEAD_BYTES_MAX: usize = 2 << 30;
/// Attempts of a reader to open files that a writer changes meanwhile.
const READ_ATTEMPTS_MAX: u32 = 8;
/// Attempts of a reader when the files look damaged.
const CORRUPT_ATTEMPTS_MAX: u32 = 3;
/// Pause before the second attempt. Each later pause is longer by this amount.
const READ_PAUSE: Duration = Duration::from_millis(2);

impl Collection {
    /// Creates a collection in memory.
    pub fn in_memory(runtime: impl Into<Arc<Runtime>>, schema: Schema, options: Options) -> Result<Collection> {
        schema.validate()?;
        Collection::begin(runtime.into(), schema, options, None)
    }

    /// Creates a collection in a folder, which must be empty or not exist. With a key
    /// ([`Options::key`]) the collection is encrypted: everything written is sealed, and it opens
    /// with that key alone. An encrypted collection is held in memory entirely while it is open.
    pub fn create(
        runtime: impl Into<Arc<Runtime>>,
        path: impl AsRef<Path>,
        schema: Schema,
        options: Options,
    ) -> Result<Collection> {
        schema.validate()?;
        let runtime: Arc<Runtime> = runtime.into();
        let vault = |key| Vault::create(Arc::clone(&runtime), key, PassphraseCost::default());
        let sealing = options.key.as_ref().map(vault).transpose()?.map_or_else(Sealing::default, Sealing::with);
        let folder = Folder::create(path.as_ref(), sealing)?;
        let created = Collection::begin(runtime, schema, options, Some(folder));
        created.inspect_err(|_| folder::remove_leftovers(path.as_ref()))
    }

    /// Opens the collection in a folder for writing. A collection has one writer at a time;
    /// [`Collection::open_read_only`] opens it beside a writer.
    ///
    /// Everything is checked before anything is changed: if the collection cannot be opened, its
    /// folder is left unchanged. The files are mapped into memory. No other process may shorten
    /// them while the collection is open: reading beyond the new end kills this process (SIGBUS).
    pub fn open(runtime: impl Into<Arc<Runtime>>, path: impl AsRef<Path>, options: Options) -> Result<Collection> {
        let runtime: Arc<Runtime> = runtime.into();
        let (folder, manifest) = Folder::open(path.as_ref(), opener(&runtime, &options))?;
        Collection::open_folder(runtime, folder, manifest, options)
    }

    /// Opens the collection in a folder read-only, in its present state: without a lock, beside a
    /// writer and any number of readers, also on write-protected media. It contains every write
    /// that was acknowledged before; [`Collection::refresh`] takes in later ones. Changes are
    /// refused with [`Error::ReadOnly`].
    pub fn open_read_only(
        runtime: impl Into<Arc<Runtime>>,
        path: impl AsRef<Path>,
        options: Options,
    ) -> Result<Collection> {
        let runtime: Arc<Runtime> = runtime.into();
        beside_a_writer(|| {
            let (folder, manifest) = Folder::open_read_only(path.as_ref(), opener(&runtime, &options))?;
            Collection::open_folder(Arc::clone(&runtime), folder, manifest, options.clone())
        })
    }

    /// Takes in what was written since a read-only collection was opened. Does nothing on a
    /// collection opened for writing, which is always current.
    pub fn refresh(&self) -> Result<()> {
        if !self.inner.shared.is_read_only() {
            return Ok(());
        }
        let reload = |writer: &mut Writer| {
            let shared = Arc::clone(&writer.shared);
            beside_a_writer(|| {
                let folder = shared.folder.as_ref().ok_or(Error::Closed)?;
                let manifest = folder.read_manifest()?;
                if manifest.schema()? != *shared.schema {
                    let (path, reason) = (folder.path().to_owned(), "another was made in its place".to_owned());
                    return Err(Error::NotACollection { path, reason });
                }
                writer.manifest = manifest;
                load(&shared, writer)
            })
        };
        self.inner.writer.run(reload).wait()?;
        self.inner.shared.nudge();
        Ok(())
    }

    /// Looks for damage in the folder of a collection that is not open for writing, and repairs
    /// what can be repaired: see [`crate::repair`]. Without `apply` nothing is changed.
    pub fn repair(path: impl AsRef<Path>, apply: bool) -> Result<Repair> {
        repair::repair(path.as_ref(), None, apply)
    }

    /// `Collection::repair` for an encrypted collection.
    pub fn repair_encrypted(
        runtime: impl Into<Arc<Runtime>>,
        path: impl AsRef<Path>,
        key: &MasterKey,
        apply: bool,
    ) -> Result<Repair> {
        repair::repair(path.as_ref(), Some((&runtime.into(), key)), apply)
    }

    /// Whether the collection in a folder is encrypted and needs a key to be opened.
    pub fn is_encrypted(path: impl AsRef<Path>) -> Result<bool> {
        Folder::is_encrypted(path.as_ref())
    }

    fn open_folder(runtime: Arc<Runtime>, folder: Folder, manifest: Manifest, options: Options) -> Result<Collection> {
        let wrong = |error: Error| {
            let path = folder.path().to_owned();
            Error::NotACollection { path, reason: error.to_string() }
        };
        let schema = Arc::new(manifest.schema().map_err(wrong)?);
        if let Some(newest) = manifest.segments.last().filter(|_| !folder.is_read_only()) {
            // The lock of the next log keeps other writers out even where the folder's lock has no
            // effect (NFS), and the check below finds changes made since the manifest was read.
            folder.keep(folder.lock_next(newest.id)?);
            if folder.read_manifest()? != manifest {
                return Err(Error::InUse { path: folder.path().to_owned() });
            }
        }
        let shared = Arc::new(CollectionState::new(schema, without_key(options), runtime, Some(Arc::new(folder))));
        let mut writer = Writer::new(Arc::clone(&shared), manifest);
        load(&shared, &mut writer)?;
        Collection::start(shared, writer)
    }

    /// Deletes the collection in a folder. Refuses a collection that is open and a folder that is
    /// not a collection.
    pub fn destroy(path: impl AsRef<Path>) -> Result<()> {
        folder::destroy(path.as_ref())
    }

    fn begin(runtime: Arc<Runtime>, schema: Schema, options: Options, folder: Option<Folder>) -> Result<Collection> {
        let manifest = Manifest::new(&schema);
        let shared =
            Arc::new(CollectionState::new(Arc::new(schema), without_key(options), runtime, folder.map(Arc::new)));
        let mut writer = Writer::new(Arc::clone(&shared), manifest);
        writer.begin()?;
        Collection::start(shared, writer)
    }

    fn start(shared: Arc<CollectionState>, writer: Writer) -> Result<Collection> {
        let writer = WriterHandle::start(writer)?;
        let (rebuilding, closing) = (Arc::new(Mutex::new(())), Arc::new(AtomicBool::new(false)));
        let background = Background::start(&shared, writer.sender(), &rebuilding, &closing);
        let gather = Gather::new(Arc::clone(&shared));
        shared.nudge();
        Ok(Collection { inner: Arc::new(Inner { background, writer, gather, shared, rebuilding, closing }) })
    }
}

/// Drops the key, which is no longer needed once the collection is open.
fn without_key(options: Options) -> Options {
    Options { key: None, ..options }
}

fn opener<'a>(runtime: &'a Arc<Runtime>, options: &'a Options) -> Opener<'a> {
    options.key.as_ref().map(|key| (runtime, key))
}

/// Repeats a read that a writer can disturb: the writer may delete files that the manifest has just
/// named, and a read may see an unfinished write.
fn beside_a_writer<T>(mut read: impl FnMut() -> Result<T>) -> Result<T> {
    for attempt in 1.. {
        match read() {
            Err(Error::Corrupt { .. }) if attempt < CORRUPT_ATTEMPTS_MAX => {}
            Err(Error::Io { source, .. })
                if attempt < READ_ATTEMPTS_MAX && source.kind() == std::io::ErrorKind::NotFound => {}
            done => return done,
        }
        std::thread::sleep(READ_PAUSE * attempt);
    }
    Err(Error::Closed)
}

/// The contents of a folder.
pub(crate) struct FolderContents {
    pub(crate) segments: Vec<Segment>,
    pub(crate) centroids: Option<Arc<Centroids>>,
    pub(crate) fields: Vec<String>,
    /// For each segment, the work that remains before it can be written to. `None` for a segment
    /// that no longer grows and for a read-only folder; the segment's files are then closed.
    takeovers: Vec<Option<Takeover>>,
}

impl FolderContents {
    /// Reads everything that the manifest names. Changes nothing.
    pub(crate) fn read(
        folder: &Folder,
        manifest: &Manifest,
        schema: &Arc<Schema>,
        durable: bool,
    ) -> Result<FolderContents> {
        let read = |number| Centroids::read(folder.sealing(), &folder.centroids_path(number), number, schema.dimension);
        let centroids = manifest.centroids.map(read).transpose()?.map(Arc::new);
        let mut stored = FolderContents { segments: Vec::new(), centroids, fields: Vec::new(), takeovers: Vec::new() };
        let mut kills: Vec<RowAddress> = Vec::new();
        for (place, listed) in manifest.segments.iter().enumerate() {
            let found = examine(folder, schema, listed, ending_of(manifest, place))?;
            let mut recovered = found.attach(schema, durable)?;
            if let (true, Some(centroids)) = (listed.lists, &stored.centroids) {
                let path = folder.lists_path(listed.id);
                let lists = Lists::read(folder.sealing(), &path, centroids.count(), recovered.segment.count)?;
                recovered.segment.lists = Some(Arc::new(lists));
            }
            kills.append(&mut recovered.kills);
            stored.fields.append(&mut recovered.fields);
            stored.segments.push(recovered.segment);
            let grows = place + 1 == manifest.segments.len() || listed.extent.is_none();
            let needed = !folder.is_read_only() && (grows || recovered.takeover.has_patches());
            stored.takeovers.push(needed.then_some(recovered.takeover));
        }
        let places: HashMap<u32, usize> = (0..).zip(&stored.segments).map(|(place, of)| (of.id, place)).collect();
        for slot in kills {
            if let Some(place) = places.get(&slot.segment) {
                stored.segments[*place].kill(slot.row);
            }
        }
        Ok(stored)
    }

    /// Makes the segments writable. Everything else must have been checked before.
    pub(crate) fn take_over(&mut self) -> Result<()> {
        let takeovers = std::mem::take(&mut self.takeovers);
        for (takeover, segment) in takeovers.into_iter().zip(&mut self.segments) {
            takeover.map_or(Ok(()), |takeover| takeover.apply(segment))?;
        }
        Ok(())
    }

    fn snapshot(&mut self) -> Result<Snapshot> {
        let segments = self.segments.iter_mut().map(Segment::view).collect::<Result<_>>()?;
        Ok(Snapshot { segments, centroids: self.centroids.clone() })
    }
}

/// How much is known about the end of a segment's log.
pub(crate) fn ending_of(manifest: &Manifest, place: usize) -> Ending {
    let newest = place + 1 == manifest.segments.len();
    match (manifest.segments[place].extent, manifest.old, newest) {
        (Some(_), _, _) => Ending::Known,
        (None, true, true) => Ending::Unknown,
        (None, true, false) => Ending::Sealed,
        (None, false, _) => Ending::Open,
    }
}

/// Reads the folder and, unless it is read-only, takes it over for writing.
fn load(shared: &Arc<CollectionState>, writer: &mut Writer) -> Result<()> {
    let folder = shared.folder.as_ref().ok_or(Error::Closed)?;
    let mut stored = FolderContents::read(folder, &writer.manifest, &shared.schema, shared.options.durable)?;
    let ids = index_of_ids(shared, &stored.snapshot()?)?;
    if !folder.is_read_only() {
        stored.take_over()?;
        folder.tidy(&writer.manifest)?;
    }
    let newest = writer.manifest.segments.last();
    writer.closed = writer.manifest.old || newest.is_some_and(|newest| newest.extent.is_some());
    (writer.segments, writer.centroids) = (stored.segments, stored.centroids);
    shared.add_fields(stored.fields);
    let snapshot = writer.snapshot()?;
    read_ahead(&snapshot);
    let mut index = shared.index.write().unwrap_or_else(PoisonError::into_inner);
    *index = ids;
    shared.publish(snapshot);
    Ok(())
}

fn index_of_ids(shared: &CollectionState, snapshot: &Snapshot) -> Result<Index> {
    let mut ids = Index::with_capacity(snapshot.len());
    for segment in &snapshot.segments {
        for row in segment.live_rows() {
            let id = segment.id_of(row);
            let hash = shared.hash(id);
            if ids.find(snapshot, hash, id).is_some() {
                let path = shared.folder.as_ref().map(|folder| folder.log_path(segment.id)).unwrap_or_default();
                return Err(Error::corrupt(&path, 0, format!("the id `{id}` belongs to two rows")));
            }
            ids.insert(hash, RowAddress { segment: segment.id, row });
        }
    }
    Ok(ids)
}

/// Asks the system to read the newest rows before the first search.
fn read_ahead(snapshot: &Snapshot) {
    let mut ahead = READ_AHEAD_BYTES_MAX;
    for segment in snapshot.segments.iter().rev() {
        if let Some(left) = ahead.checked_sub(segment.rows.len_bytes()) {
            segment.stored.read_ahead();
            ahead = left;
        }
    }
}
