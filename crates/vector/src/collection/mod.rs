//! The handle that a program holds.
//!
//! ```
//! # use std::sync::Arc;
//! use panoply_vector::{Collection, Metric, Options, Schema, SearchOptions};
//! use serde_json::json;
//! # let runtime = panoply_runtime::Runtime::builder().backend(Arc::new(panoply_cpu::CpuBackend::new())).build()?;
//!
//! let colours = Collection::in_memory(runtime, Schema::new("colours", 3, Metric::Euclidean), Options::default())?;
//! colours.insert("red", &[1.0, 0.0, 0.0], json!({ "warm": true }))?;
//! colours.insert("blue", &[0.0, 0.0, 1.0], json!({ "warm": false }))?;
//! let found = colours.search(&[0.9, 0.1, 0.0], &SearchOptions::new(1))?;
//! assert_eq!(found.hits[0].id, "red");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Every change is atomic. Every search that begins after the change returned sees its effect. In a
//! durable collection the change has reached the disk before it returns. Inserting never blocks a
//! search.
//!
//! * `open`: creating and opening.
//! * `select`: counting, removing and listing records by filter and by id.
//! * `asynchronous`: the non-blocking forms.
//! * `background`: compaction and uploads.

mod asynchronous;
mod background;
#[cfg(test)]
mod bad_disk_tests;
#[cfg(test)]
mod busy_tests;
pub(crate) mod open;
mod select;

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use panoply_core::DeviceId;
use serde_json::{Map, Value};

use crate::compact::{Compaction, Compactor};
use crate::embedding_model::EmbeddingModel;
use crate::encode::{encode, expect_shallow};
use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::ivf::{Centroids, IndexOptions, IndexReport, kmeans, tune};
use crate::schema::{Residency, Schema};
use crate::sealed::Sealing;
use crate::search::gather::Gather;
use crate::search::hits::BatchCandidates;
use crate::search::placement::DevicePlacement;
use crate::search::resident::UploadExtent;
use crate::search::{SearchOptions, SearchResult, SearchResults, placement, residency, run};
use crate::state::{CollectionState, Snapshot};
use crate::task::Task;
use crate::writer::{Change, MetadataChange, PutMode, WriterHandle, recover};
use background::Background;

pub use crate::ivf::tune::RecallRow;
pub use select::Page;

/// A collection of vectors under string ids, each with metadata. Cloning gives another handle to
/// the same collection; it is closed when the last handle is dropped.
///
/// A fork of the process has none of the collection's threads. Calls that can fail return an error
/// there. Calls that cannot ([`Collection::len`], [`Collection::fields`], [`Collection::iter`] and
/// [`Collection::stats`]) describe the collection at the time of the fork, or an empty one if it
/// was being changed at that moment.
#[derive(Clone)]
pub struct Collection {
    inner: Arc<Inner>,
}

struct Inner {
    // Drop order: first the background, then the writer, which the background uses.
    #[allow(dead_code)] // Held for its destructor.
    background: Background,
    writer: WriterHandle,
    gather: Arc<Gather>,
    shared: Arc<CollectionState>,
    /// Held while segments are replaced.
    rebuilding: Arc<Mutex<()>>,
    closing: Arc<AtomicBool>,
}

impl Drop for Collection {
    fn drop(&mut self) {
        if !self.inner.shared.is_here() {
            // Everything belongs to the parent process: its threads cannot be joined here, its
            // files must not be closed or unlocked, and its device memory must not be released. The
            // handle is leaked until the fork ends.
            std::mem::forget(Arc::clone(&self.inner));
        }
    }
}

/// A record as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRecord {
    /// The id.
    pub id: String,
    /// The vector, as the storage type rounded it.
    pub vector: Vec<f32>,
    /// The metadata: an object, or null if the record has none.
    pub metadata: Value,
}

/// Figures about a collection.
#[derive(Clone, Debug, PartialEq)]
pub struct Stats {
    /// Number of records.
    pub records: u64,
    /// Rows of removed and replaced records, whose space compaction will reclaim.
    pub dead_rows: u64,
    /// Number of segments.
    pub segments: usize,
    /// Bytes of rows, including dead rows.
    pub row_bytes: u64,
    /// Bytes of rows, ids, metadata and log.
    pub stored_bytes: u64,
    /// Number of rows on each device.
    pub resident_rows: Vec<(DeviceId, u64)>,
    /// Rows that did not fit into their device's memory.
    pub spilled_rows: u64,
    /// The devices that were considered for rows, and the choice. Empty while rows are on the host
    /// without a choice.
    pub devices: Vec<DevicePlacement>,
    /// The index, if it has been built.
    pub index: Option<IndexReport>,
    /// Whether every row that existed on opening has been compared with its checksum.
    pub checked: bool,
}

/// Reading.
impl Collection {
    /// The schema.
    pub fn schema(&self) -> &Schema {
        &self.inner.shared.schema
    }

    /// The folder; `None` for a collection in memory.
    pub fn path(&self) -> Option<&Path> {
        self.inner.shared.folder.as_ref().map(|folder| folder.path())
    }

    /// The model that computed the vectors, if [`Collection::set_embedding_model`] has stored one.
    pub fn embedding_model(&self) -> Result<Option<EmbeddingModel>> {
        self.inner.writer.run(|writer| Ok(writer.manifest.model.clone())).wait()
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.inner.shared.snapshot().len()
    }

    /// Whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every metadata field that a record has ever had.
    pub fn fields(&self) -> Vec<String> {
        self.inner.shared.fields().iter().cloned().collect()
    }

    /// The record with this id.
    pub fn get(&self, id: &str) -> Result<Option<StoredRecord>> {
        self.inner.shared.check_sound()?;
        let (slot, snapshot) = self.inner.shared.find(id);
        Ok(slot.and_then(|slot| {
            let segment = snapshot.segment(slot.segment)?;
            let (vector, metadata) = (segment.vector(slot.row), segment.metadata(slot.row));
            Some(StoredRecord { id: id.to_owned(), vector, metadata })
        }))
    }

    /// Every record at this moment, oldest first. Later changes are not seen.
    pub fn iter(&self) -> Entries {
        Entries { snapshot: self.inner.shared.snapshot(), next: 0, rows: Vec::new().into_iter() }
    }

    /// Current figures.
    pub fn stats(&self) -> Stats {
        let snapshot = self.inner.shared.snapshot();
        let mut resident_rows: Vec<(DeviceId, u64)> = Vec::new();
        let mut stats = Stats {
            records: snapshot.len() as u64,
            dead_rows: 0,
            segments: snapshot.segments.len(),
            row_bytes: 0,
            stored_bytes: 0,
            resident_rows: Vec::new(),
            spilled_rows: 0,
            devices: self.inner.shared.placement.last(&self.inner.shared),
            index: index_report(&snapshot),
            checked: self.inner.shared.is_checked(),
        };
        for segment in &snapshot.segments {
            let row_bytes = segment.rows.len_bytes() as u64;
            stats.dead_rows += u64::from(segment.dead);
            stats.row_bytes += row_bytes;
            stats.stored_bytes += row_bytes + segment.log.bytes().len() as u64;
            let resident = residency::blocks(&self.inner.shared, segment);
            stats.spilled_rows += u64::from(resident.spilled());
            for block in &resident.blocks {
                match resident_rows.iter_mut().find(|(device, _)| *device == block.device) {
                    Some((_, rows)) => *rows += u64::from(block.count),
                    None => resident_rows.push((block.device, u64::from(block.count))),
                }
            }
        }
        Stats { resident_rows, ..stats }
    }
}

/// Changing.
impl Collection {
    /// Adds a record. Its id must be new; its metadata is an object, or null for none.
    pub fn insert(&self, id: &str, vector: &[f32], metadata: Value) -> Result<()> {
        self.put_one(PutMode::Insert, id, vector, metadata, true).wait()
    }

    /// Adds records, all or none. The vectors are concatenated; `metadata` is empty or has one
    /// entry per record.
    pub fn insert_many<I: AsRef<str>>(&self, ids: &[I], vectors: &[f32], metadata: &[Value]) -> Result<()> {
        self.put(PutMode::Insert, ids, vectors, metadata, true).wait()
    }

    /// Adds a record, or replaces the one with the same id.
    pub fn upsert(&self, id: &str, vector: &[f32], metadata: Value) -> Result<()> {
        self.put_one(PutMode::Upsert, id, vector, metadata, true).wait()
    }

    /// Adds or replaces records, all or none; the arguments are those of
    /// [`Collection::insert_many`].
    pub fn upsert_many<I: AsRef<str>>(&self, ids: &[I], vectors: &[f32], metadata: &[Value]) -> Result<()> {
        self.put(PutMode::Upsert, ids, vectors, metadata, true).wait()
    }

    /// Replaces the vector or the metadata of a record, or both; `None` leaves the old value.
    pub fn update(&self, id: &str, vector: Option<&[f32]>, metadata: Option<Value>) -> Result<()> {
        self.change(id, vector, metadata, true).wait()
    }

    /// Sets fields of a record's metadata, and removes those whose value is null. The record keeps
    /// its vector and its other fields, also those that other callers set at the same time.
    pub fn set_fields(&self, id: &str, fields: Map<String, Value>) -> Result<()> {
        self.merge(id, fields, true).wait()
    }

    /// Removes a record and returns whether it existed.
    pub fn remove(&self, id: &str) -> Result<bool> {
        self.remove_ids(&[id], true).wait().map(|removed| removed > 0)
    }

    /// Removes records atomically and returns how many existed.
    pub fn remove_many<I: AsRef<str>>(&self, ids: &[I]) -> Result<usize> {
        self.remove_ids(ids, true).wait()
    }

    /// Stores the model that computes the vectors. The model of a collection with records cannot be
    /// changed: another one is refused with [`Error::OtherModel`]. A newer path of the same file
    /// replaces the older one.
    pub fn set_embedding_model(&self, model: EmbeddingModel) -> Result<()> {
        self.inner.writer.run(move |writer| writer.set_model(model)).wait()
    }

    /// Removes every record.
    pub fn clear(&self) -> Result<()> {
        self.inner.writer.run(|writer| writer.clear()).wait()
    }

    fn put_one(&self, mode: PutMode, id: &str, vector: &[f32], metadata: Value, may_wait: bool) -> Task<()> {
        match expect_shallow(id, metadata) {
            Ok(metadata) => self.put(mode, &[id], vector, &[metadata], may_wait),
            Err(error) => Task::done(Err(error)),
        }
    }

    fn put<I: AsRef<str>>(
        &self,
        mode: PutMode,
        ids: &[I],
        vectors: &[f32],
        metadata: &[Value],
        may_wait: bool,
    ) -> Task<()> {
        let shared = &self.inner.shared;
        match encode(&shared.schema, &shared.hasher, ids, vectors, metadata) {
            Ok(batch) => self.inner.writer.write(Change::Put(mode, batch), may_wait, |_| ()),
            Err(error) => Task::done(Err(error)),
        }
    }

    fn change(&self, id: &str, vector: Option<&[f32]>, metadata: Option<Value>, may_wait: bool) -> Task<()> {
        let shared = &self.inner.shared;
        let metadata = match metadata.map(|metadata| expect_shallow(id, metadata)).transpose() {
            Ok(metadata) => metadata,
            Err(error) => return Task::done(Err(error)),
        };
        let metadata = metadata.map_or(MetadataChange::Keep, MetadataChange::Replace);
        let (hash, id, vector) = (shared.hash(id), id.to_owned(), vector.map(<[f32]>::to_vec));
        self.inner.writer.write(Change::Update { id, hash, vector, metadata }, may_wait, |_| ())
    }

    fn merge(&self, id: &str, fields: Map<String, Value>, may_wait: bool) -> Task<()> {
        let fields = match expect_shallow(id, Value::Object(fields)) {
            Ok(Value::Object(fields)) => fields,
            Ok(_) => Map::new(),
            Err(error) => return Task::done(Err(error)),
        };
        let (hash, id) = (self.inner.shared.hash(id), id.to_owned());
        let change = Change::Update { id, hash, vector: None, metadata: MetadataChange::Merge(fields) };
        self.inner.writer.write(change, may_wait, |_| ())
    }

    fn remove_ids<I: AsRef<str>>(&self, ids: &[I], may_wait: bool) -> Task<usize> {
        let hashes = ids.iter().map(|id| self.inner.shared.hash(id.as_ref())).collect();
        let ids = ids.iter().map(|id| id.as_ref().to_owned()).collect();
        self.inner.writer.write(Change::Remove { ids, hashes }, may_wait, |removed| removed)
    }
}

/// Searching.
impl Collection {
    /// The records nearest to a query. Concurrent callers are batched together.
    pub fn search(&self, query: &[f32], options: &SearchOptions) -> Result<SearchResult> {
        let shared = &self.inner.shared;
        self.check_one(query)?;
        run::check(shared, query, options)?;
        self.inner.gather.search(query, 1, options).map(first_of)
    }

    /// The records nearest to each of several queries, which are concatenated.
    pub fn search_many(&self, queries: &[f32], options: &SearchOptions) -> Result<SearchResults> {
        let shared = &self.inner.shared;
        let count = run::check(shared, queries, options)?;
        run::search(shared, queries, count, options).map(BatchCandidates::into_hits)
    }

    /// Recall of searches with `nprobe` lists against the true `options.k` nearest, for each
    /// `nprobe`.
    pub fn measure_recall(
        &self,
        queries: &[f32],
        options: &SearchOptions,
        nprobes: &[usize],
    ) -> Result<Vec<RecallRow>> {
        tune::measure(&self.inner.shared, queries, options, nprobes)
    }

    fn check_one(&self, query: &[f32]) -> Result<()> {
        let expected = self.inner.shared.schema.dimension;
        if query.len() == expected { Ok(()) } else { Err(Error::DimensionMismatch { expected, got: query.len() }) }
    }
}

/// Durability and maintenance.
impl Collection {
    /// Waits until everything has reached the disk. In a durable collection every write has when it
    /// returns.
    pub fn flush(&self) -> Result<()> {
        self.inner.writer.run(|writer| writer.flush()).wait()
    }

    /// Writes a copy of the collection at this moment into a new folder, where it can be opened.
    /// Searches and writes go on meanwhile. This also saves a collection in memory. The copy of an
    /// encrypted collection is encrypted with the same key.
    pub fn snapshot(&self, folder: impl AsRef<Path>) -> Result<()> {
        self.inner.snapshot_to(folder.as_ref())
    }

    /// Reclaims the space of removed records and joins small segments, now rather than in the
    /// background.
    pub fn compact(&self) -> Result<Compaction> {
        self.inner.compact(true)
    }

    /// Builds or rebuilds the index for approximate searches.
    pub fn build_index(&self, options: &IndexOptions) -> Result<IndexReport> {
        self.inner.build_index(options)
    }

    /// The devices that would hold rows with this residency, and the reasons. Nothing is uploaded;
    /// devices whose speed decides are measured, if that was not done before.
    pub fn preview_residency(&self, residency: &Residency) -> Result<Vec<DevicePlacement>> {
        self.inner.shared.check_sound()?;
        Ok(placement::preview(&self.inner.shared, &self.inner.shared.snapshot(), residency))
    }

    /// Uploads rows to the devices that the options allow, now rather than in the background. Rows
    /// that do not fit stay on the host; [`Collection::stats`] reports their number.
    pub fn make_resident(&self) -> Result<()> {
        self.inner.shared.check_process()?;
        residency::upload(&self.inner.shared, &self.inner.shared.snapshot(), UploadExtent::Whole)
    }

    /// Checks every stored row against its checksum. If damage is found, every later search returns
    /// an error.
    pub fn verify(&self) -> Result<()> {
        self.inner.verify()
    }
}

impl Inner {
    fn compactor(&self) -> Compactor<'_> {
        Compactor { shared: &self.shared, writer: self.writer.sender(), closing: &self.closing }
    }

    fn compact(&self, all: bool) -> Result<Compaction> {
        self.shared.check_process()?;
        let _turn = self.rebuilding.lock().unwrap_or_else(PoisonError::into_inner);
        self.compactor().compact(all)
    }

    fn build_index(&self, options: &IndexOptions) -> Result<IndexReport> {
        self.shared.check_process()?;
        let _turn = self.rebuilding.lock().unwrap_or_else(PoisonError::into_inner);
        let sealed = self.writer.run(|writer| {
            writer.check_running()?;
            if writer.segments.last().is_some_and(|newest| newest.count > 0) {
                writer.seal()?;
            }
            Ok((writer.publish_with(|_| ())?, writer.manifest.take_number()?))
        });
        let (snapshot, number) = sealed.wait()?;
        let records = snapshot.len();
        if records == 0 {
            return Err(Error::invalid("records to index", "at least 1", 0));
        }
        let segments = &snapshot.segments[..snapshot.segments.len() - 1];
        let lists = kmeans::list_count(options, records)?;
        let points = kmeans::train(&self.shared, segments, lists, options)?;
        let centroids = Arc::new(Centroids { number, points });
        if let Some(folder) = &self.shared.folder {
            folder.expect_in_place()?;
            centroids.write(folder.sealing(), &folder.centroids_path(number))?;
        }
        self.compactor().rebuild(&snapshot, segments.to_vec(), Some(&centroids), Some(Arc::clone(&centroids)))?;
        self.shared.nudge();
        let report = index_report(&self.shared.snapshot());
        Ok(report.unwrap_or(IndexReport { lists, indexed_rows: 0 }))
    }

    fn snapshot_to(&self, path: &Path) -> Result<()> {
        self.shared.check_process()?;
        if let Some(folder) = &self.shared.folder
            && folder.holds(path)
        {
            return Err(Error::invalid("the snapshot's folder", "one outside the collection's own", path.display()));
        }
        let sealing = self.shared.folder.as_ref().map_or_else(Sealing::default, |folder| folder.sealing().clone());
        let existed = path.exists();
        let target = Folder::create(path, sealing)?;
        self.write_snapshot(&target).inspect_err(|_| {
            target.abandon();
            if !existed {
                // Fails if the folder holds anything, such as a complete snapshot.
                let _ = std::fs::remove_dir(target.path());
            }
        })
    }

    /// Copies the collection's current state into an empty folder.
    fn write_snapshot(&self, target: &Folder) -> Result<()> {
        let sealing = target.sealing();
        let taken = self.writer.run(|writer| {
            writer.flush()?;
            Ok((writer.snapshot()?, writer.closed_manifest()))
        });
        let (snapshot, manifest) = taken.wait()?;
        for segment in &snapshot.segments {
            let rows = &segment.stored.bytes()[..segment.count as usize * segment.row_bytes];
            sealing.write_file(&target.rows_path(segment.id), &[rows])?;
            sealing.write_file(&target.log_path(segment.id), &[segment.log.bytes()])?;
            if let Some(lists) = &segment.lists {
                lists.write(sealing, &target.lists_path(segment.id))?;
            }
        }
        if let Some(centroids) = &snapshot.centroids {
            centroids.write(sealing, &target.centroids_path(centroids.number))?;
        }
        target.write_manifest(&manifest).map_err(|failure| failure.error)
    }

    fn verify(&self) -> Result<()> {
        self.shared.check_process()?;
        let Some(folder) = &self.shared.folder else { return Ok(()) };
        let snapshot = self.shared.snapshot();
        let checked = snapshot.segments.iter().try_for_each(|segment| {
            let stored = (segment.log.bytes(), segment.stored.bytes());
            recover::verify(folder, &self.shared.schema, segment.id, stored, |_| true)
        });
        checked.inspect_err(|error| self.shared.note_damage(error))?;
        self.shared.note_checked();
        Ok(())
    }
}

/// Iterates over every record of the snapshot taken when the iterator was made.
pub struct Entries {
    snapshot: Arc<Snapshot>,
    /// Index of the next segment.
    next: usize,
    /// The remaining rows of the segment before `next`.
    rows: std::vec::IntoIter<u32>,
}

impl Iterator for Entries {
    type Item = StoredRecord;

    fn next(&mut self) -> Option<StoredRecord> {
        loop {
            let Some(row) = self.rows.next() else {
                self.rows = self.snapshot.segments.get(self.next)?.rows_by_age().into_iter();
                self.next += 1;
                continue;
            };
            let segment = self.snapshot.segments.get(self.next.checked_sub(1)?)?;
            if segment.is_live(row) {
                let (id, vector) = (segment.id_of(row).to_owned(), segment.vector(row));
                return Some(StoredRecord { id, vector, metadata: segment.metadata(row) });
            }
        }
    }
}

fn first_of(found: SearchResults) -> SearchResult {
    SearchResult { hits: found.hits.into_iter().next().unwrap_or_default(), report: found.report }
}

fn index_report(snapshot: &Snapshot) -> Option<IndexReport> {
    let centroids = snapshot.centroids.as_ref()?;
    let indexed = snapshot.segments.iter().filter(|segment| segment.lists.is_some());
    Some(IndexReport { lists: centroids.count(), indexed_rows: indexed.map(|segment| u64::from(segment.len())).sum() })
}
