//! Creating and opening collections.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use panoply_runtime::Runtime;

use super::background::Background;
use super::{Collection, Inner};
use crate::error::{Error, Result};
use crate::folder::{self, Folder, Manifest};
use crate::ivf::{Centroids, Lists};
use crate::record::Slot;
use crate::schema::{Options, Schema};
use crate::search::gather::Gather;
use crate::segment::Segment;
use crate::state::{Index, Shared};
use crate::writer::recover::recover;
use crate::writer::{Writer, WriterHandle};

/// Rows that the system is asked to read before the first search.
const READ_AHEAD_BYTES_MAX: usize = 2 << 30;

impl Collection {
    /// A new collection in memory.
    pub fn in_memory(runtime: impl Into<Arc<Runtime>>, schema: Schema, options: Options) -> Result<Collection> {
        schema.validate()?;
        Collection::begin(runtime.into(), schema, options, None)
    }

    /// A new collection in a folder, which must not exist, or be empty.
    pub fn create(
        runtime: impl Into<Arc<Runtime>>,
        path: impl AsRef<Path>,
        schema: Schema,
        options: Options,
    ) -> Result<Collection> {
        schema.validate()?;
        let folder = Folder::create(path.as_ref())?;
        let created = Collection::begin(runtime.into(), schema, options, Some(folder));
        created.inspect_err(|_| folder::remove_leftovers(path.as_ref()))
    }

    /// Opens the collection in a folder.
    pub fn open(runtime: impl Into<Arc<Runtime>>, path: impl AsRef<Path>, options: Options) -> Result<Collection> {
        let (folder, manifest) = Folder::open(path.as_ref())?;
        let wrong = |error: Error| Error::NotACollection { path: path.as_ref().to_owned(), reason: error.to_string() };
        let schema = Arc::new(manifest.schema().map_err(wrong)?);
        let shared = Arc::new(Shared::new(schema, options, runtime.into(), Some(Arc::new(folder))));
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
        let shared = Arc::new(Shared::new(Arc::new(schema), options, runtime, folder.map(Arc::new)));
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

/// What a folder holds.
pub(crate) struct Stored {
    pub(crate) segments: Vec<Segment>,
    pub(crate) centroids: Option<Arc<Centroids>>,
    pub(crate) fields: Vec<String>,
}

impl Stored {
    /// Reads everything that the manifest names.
    pub(crate) fn read(folder: &Folder, manifest: &Manifest, schema: &Arc<Schema>, durable: bool) -> Result<Stored> {
        let read = |number| Centroids::read(&folder.centroids_path(number), number, schema.dimension);
        let centroids = manifest.centroids.map(read).transpose()?.map(Arc::new);
        let mut stored = Stored { segments: Vec::new(), centroids, fields: Vec::new() };
        let mut kills: Vec<Slot> = Vec::new();
        for listed in &manifest.segments {
            let mut recovered = recover(folder, schema, listed.id, durable)?;
            if let (true, Some(centroids)) = (listed.lists, &stored.centroids) {
                let path = folder.lists_path(listed.id);
                let lists = Lists::read(&path, centroids.count(), recovered.segment.count)?;
                recovered.segment.lists = Some(Arc::new(lists));
            }
            kills.append(&mut recovered.kills);
            stored.fields.append(&mut recovered.fields);
            stored.segments.push(recovered.segment);
        }
        let places: HashMap<u32, usize> = (0..).zip(&stored.segments).map(|(place, of)| (of.id, place)).collect();
        for slot in kills {
            if let Some(place) = places.get(&slot.segment) {
                stored.segments[*place].kill(slot.row);
            }
        }
        Ok(stored)
    }
}

fn load(shared: &Arc<Shared>, writer: &mut Writer) -> Result<()> {
    let folder = shared.folder.as_ref().ok_or(Error::Closed)?;
    let stored = Stored::read(folder, &writer.manifest, &shared.schema, shared.options.durable)?;
    (writer.segments, writer.centroids) = (stored.segments, stored.centroids);
    shared.add_fields(stored.fields);
    build_index_of_ids(shared, writer)
}

fn build_index_of_ids(shared: &Arc<Shared>, writer: &mut Writer) -> Result<()> {
    let snapshot = writer.snapshot()?;
    let mut ids = Index::with_capacity(snapshot.len());
    for segment in &snapshot.segments {
        for row in segment.live_rows() {
            let id = segment.id_of(row);
            let hash = shared.hash(id);
            if ids.find(&snapshot, hash, id).is_some() {
                let path = shared.folder.as_ref().map(|folder| folder.log_path(segment.id)).unwrap_or_default();
                return Err(Error::corrupt(&path, 0, format!("the id `{id}` belongs to two rows")));
            }
            ids.insert(hash, Slot { segment: segment.id, row });
        }
    }
    let mut ahead = READ_AHEAD_BYTES_MAX;
    for segment in snapshot.segments.iter().rev() {
        if let Some(left) = ahead.checked_sub(segment.rows.len_bytes()) {
            segment.stored.read_ahead();
            ahead = left;
        }
    }
    *shared.index.write().unwrap_or_else(PoisonError::into_inner) = ids;
    shared.publish(snapshot);
    Ok(())
}
