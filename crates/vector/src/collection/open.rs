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
use crate::record::Slot;
use crate::repair::{self, Repair};
use crate::schema::{Options, Schema};
use crate::sealed::Sealing;
use crate::search::gather::Gather;
use crate::segment::Segment;
use crate::state::{Index, Shared, Snapshot};
use crate::writer::recover::{Ending, Takeover, examine};
use crate::writer::{Writer, WriterHandle};

/// Rows that the system is asked to read before the first search.
const READ_AHEAD_BYTES_MAX: usize = 2 << 30;
/// How often a reader tries to open what a writer changes meanwhile.
const READ_ATTEMPTS_MAX: u32 = 8;
/// The same where it looked as if something was damaged.
const CORRUPT_ATTEMPTS_MAX: u32 = 3;
/// How long it waits before the second time; each time longer by as much.
const READ_PAUSE: Duration = Duration::from_millis(2);

impl Collection {
    /// A new collection in memory.
    pub fn in_memory(runtime: impl Into<Arc<Runtime>>, schema: Schema, options: Options) -> Result<Collection> {
        schema.validate()?;
        Collection::begin(runtime.into(), schema, options, None)
    }

    /// A new collection in a folder, which must not exist, or be empty. With a key ([`Options::key`]) it is encrypted: everything that it
    /// writes is sealed, and it opens with that key alone. All of it is then in memory while it is open.
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

    /// Opens the collection in a folder. It has one writer at a time; [`Collection::open_read_only`] opens it beside one.
    ///
    /// Everything is checked before anything is changed: the folder of a collection that cannot be opened is left as it is.
    /// Its files are mapped into memory. Nobody else may shorten them while it is open: reading what is not there any more
    /// ends the process (SIGBUS).
    pub fn open(runtime: impl Into<Arc<Runtime>>, path: impl AsRef<Path>, options: Options) -> Result<Collection> {
        let runtime: Arc<Runtime> = runtime.into();
        let (folder, manifest) = Folder::open(path.as_ref(), opener(&runtime, &options))?;
        Collection::open_folder(runtime, folder, manifest, options)
    }

    /// Opens the collection in a folder to be read alone, as it is now: without a lock, beside a writer and any number of
    /// readers, and on media that cannot be written to. It has every write that was acknowledged before;
    /// [`Collection::refresh`] takes in later ones. Changes are refused with [`Error::ReadOnly`].
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

    /// Takes in what was written since the collection was opened read-only. Others are always as they are.
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

    /// Looks for damage in the folder of a collection that is not open for writing, and mends what can be mended: see
    /// [`crate::repair`]. Unless `apply`, nothing is changed.
    pub fn repair(path: impl AsRef<Path>, apply: bool) -> Result<Repair> {
        repair::repair(path.as_ref(), None, apply)
    }

    /// The same for one that is encrypted.
    pub fn repair_encrypted(
        runtime: impl Into<Arc<Runtime>>,
        path: impl AsRef<Path>,
        key: &MasterKey,
        apply: bool,
    ) -> Result<Repair> {
        repair::repair(path.as_ref(), Some((&runtime.into(), key)), apply)
    }

    /// Whether the collection in a folder is encrypted, and needs a key to be opened.
    pub fn is_encrypted(path: impl AsRef<Path>) -> Result<bool> {
        Folder::is_encrypted(path.as_ref())
    }

    fn open_folder(runtime: Arc<Runtime>, folder: Folder, manifest: Manifest, options: Options) -> Result<Collection> {
        let wrong = |error: Error| {
            let path = folder.path().to_owned();
            Error::NotACollection { path, reason: error.to_string() }
        };
        let schema = Arc::new(manifest.schema().map_err(wrong)?);
        let shared = Arc::new(Shared::new(schema, without_key(options), runtime, Some(Arc::new(folder))));
        let mut writer = Writer::new(Arc::clone(&shared), manifest);
        load(&shared, &mut writer)?;
        Collection::start(shared, writer)
    }

    /// Deletes the collection in a folder. One that is open, and what is not a collection, is refused.
    pub fn destroy(path: impl AsRef<Path>) -> Result<()> {
        folder::destroy(path.as_ref())
    }

    fn begin(runtime: Arc<Runtime>, schema: Schema, options: Options, folder: Option<Folder>) -> Result<Collection> {
        let manifest = Manifest::new(&schema);
        let shared = Arc::new(Shared::new(Arc::new(schema), without_key(options), runtime, folder.map(Arc::new)));
        let mut writer = Writer::new(Arc::clone(&shared), manifest);
        writer.begin()?;
        Collection::start(shared, writer)
    }

    fn start(shared: Arc<Shared>, writer: Writer) -> Result<Collection> {
        let writer = WriterHandle::start(writer)?;
        let (rebuilding, closing) = (Arc::new(Mutex::new(())), Arc::new(AtomicBool::new(false)));
        let background = Background::start(&shared, writer.sender(), &rebuilding, &closing);
        let gather = Gather::new(Arc::clone(&shared));
        shared.nudge();
        Ok(Collection { inner: Arc::new(Inner { background, writer, gather, shared, rebuilding, closing }) })
    }
}

/// The key is needed no more once a collection is open.
fn without_key(options: Options) -> Options {
    Options { key: None, ..options }
}

fn opener<'a>(runtime: &'a Arc<Runtime>, options: &'a Options) -> Opener<'a> {
    options.key.as_ref().map(|key| (runtime, key))
}

/// Does what a writer may disturb: it deletes files that the manifest has just named, and is seen in the middle of a write.
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

/// What a folder holds.
pub(crate) struct Stored {
    pub(crate) segments: Vec<Segment>,
    pub(crate) centroids: Option<Arc<Centroids>>,
    pub(crate) fields: Vec<String>,
    /// For each segment what is left to do before it can be written to. Nothing is where it does not grow any more, nor where
    /// the folder is only read; its files are closed then.
    takeovers: Vec<Option<Takeover>>,
}

impl Stored {
    /// Reads everything that the manifest names, and changes nothing.
    pub(crate) fn read(folder: &Folder, manifest: &Manifest, schema: &Arc<Schema>, durable: bool) -> Result<Stored> {
        let read = |number| Centroids::read(folder.sealing(), &folder.centroids_path(number), number, schema.dimension);
        let centroids = manifest.centroids.map(read).transpose()?.map(Arc::new);
        let mut stored = Stored { segments: Vec::new(), centroids, fields: Vec::new(), takeovers: Vec::new() };
        let mut kills: Vec<Slot> = Vec::new();
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

    /// Makes the segments ones that can be written to. Everything else must have been found in order before.
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

/// What is known of the end of a segment's log.
pub(crate) fn ending_of(manifest: &Manifest, place: usize) -> Ending {
    let newest = place + 1 == manifest.segments.len();
    match (manifest.segments[place].extent, manifest.old, newest) {
        (Some(_), _, _) => Ending::Known,
        (None, true, true) => Ending::Unknown,
        (None, true, false) => Ending::Sealed,
        (None, false, _) => Ending::Open,
    }
}

/// Reads the folder, and takes it over where it may be written to.
fn load(shared: &Arc<Shared>, writer: &mut Writer) -> Result<()> {
    let folder = shared.folder.as_ref().ok_or(Error::Closed)?;
    let mut stored = Stored::read(folder, &writer.manifest, &shared.schema, shared.options.durable)?;
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

fn index_of_ids(shared: &Shared, snapshot: &Snapshot) -> Result<Index> {
    let mut ids = Index::with_capacity(snapshot.len());
    for segment in &snapshot.segments {
        for row in segment.live_rows() {
            let id = segment.id_of(row);
            let hash = shared.hash(id);
            if ids.find(snapshot, hash, id).is_some() {
                let path = shared.folder.as_ref().map(|folder| folder.log_path(segment.id)).unwrap_or_default();
                return Err(Error::corrupt(&path, 0, format!("the id `{id}` belongs to two rows")));
            }
            ids.insert(hash, Slot { segment: segment.id, row });
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
