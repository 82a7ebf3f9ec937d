//! Creating and opening collections.

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
        Collection::begin(runtime.into(), schema, options, Some(folder))
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

/// Reads everything that the manifest names.
fn load(shared: &Arc<Shared>, writer: &mut Writer) -> Result<()> {
    let folder = shared.folder.as_ref().ok_or(Error::Closed)?;
    let mut kills: Vec<Slot> = Vec::new();
    if let Some(number) = writer.manifest.centroids {
        let path = folder.centroids_path(number);
        writer.centroids = Some(Arc::new(Centroids::read(&path, number, shared.schema.dimension)?));
    }
    for listed in writer.manifest.segments.clone() {
        let mut recovered = recover(folder, &shared.schema, listed.id, shared.options.durable)?;
        if let (true, Some(centroids)) = (listed.lists, &writer.centroids) {
            let path = folder.lists_path(listed.id);
            let lists = Lists::read(&path, centroids.count(), recovered.segment.count)?;
            recovered.segment.lists = Some(Arc::new(lists));
        }
        kills.append(&mut recovered.kills);
        shared.add_fields(recovered.fields);
        writer.segments.push(recovered.segment);
    }
    if writer.segments.is_empty() {
        return Err(Error::corrupt(folder.path(), 0, "the manifest names no segment"));
    }
    for slot in kills {
        if let Some(segment) = writer.segments.iter_mut().find(|segment| segment.id == slot.segment) {
            segment.kill(slot.row);
        }
    }
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
