//! The non-blocking forms. Each returns a [`Task`]: a future that needs no executor and also has a
//! blocking `wait`.
//!
//! The work begins when the method is called, not when the task is first polled.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::{Collection, StoredRecord, first_of};
use crate::compact::Compaction;
use crate::error::Result;
use crate::ivf::tune::RecallRow;
use crate::ivf::{IndexOptions, IndexReport};
use crate::search::resident::UploadExtent;
use crate::search::{SearchOptions, SearchResult, SearchResults, residency, run};
use crate::task::{Task, spawn};
use crate::writer::PutMode;

/// The non-blocking forms.
impl Collection {
    /// [`Collection::get`] as a task.
    pub fn get_async(&self, id: &str) -> Task<Option<StoredRecord>> {
        Task::done(self.get(id))
    }

    /// [`Collection::insert`] as a task.
    pub fn insert_async(&self, id: &str, vector: &[f32], metadata: Value) -> Task<()> {
        self.put_one(PutMode::Insert, id, vector, metadata, false)
    }

    /// [`Collection::insert_many`] as a task.
    pub fn insert_many_async<I: AsRef<str>>(&self, ids: &[I], vectors: &[f32], metadata: &[Value]) -> Task<()> {
        self.put(PutMode::Insert, ids, vectors, metadata, false)
    }

    /// [`Collection::upsert`] as a task.
    pub fn upsert_async(&self, id: &str, vector: &[f32], metadata: Value) -> Task<()> {
        self.put_one(PutMode::Upsert, id, vector, metadata, false)
    }

    /// [`Collection::upsert_many`] as a task.
    pub fn upsert_many_async<I: AsRef<str>>(&self, ids: &[I], vectors: &[f32], metadata: &[Value]) -> Task<()> {
        self.put(PutMode::Upsert, ids, vectors, metadata, false)
    }

    /// [`Collection::update`] as a task.
    pub fn update_async(&self, id: &str, vector: Option<&[f32]>, metadata: Option<Value>) -> Task<()> {
        self.change(id, vector, metadata, false)
    }

    /// [`Collection::set_fields`] as a task.
    pub fn set_fields_async(&self, id: &str, fields: Map<String, Value>) -> Task<()> {
        self.merge(id, fields, false)
    }

    /// [`Collection::remove_many`] as a task.
    pub fn remove_many_async<I: AsRef<str>>(&self, ids: &[I]) -> Task<usize> {
        self.remove_ids(ids, false)
    }

    /// [`Collection::clear`] as a task.
    pub fn clear_async(&self) -> Task<()> {
        self.inner.writer.try_run(|writer| writer.clear())
    }

    /// [`Collection::search`] as a task.
    pub fn search_async(&self, query: &[f32], options: &SearchOptions) -> Task<SearchResult> {
        if let Err(error) = self.check_one(query) {
            return Task::done(Err(error));
        }
        self.gathered(query, options, first_of)
    }

    /// [`Collection::search_many`] as a task.
    pub fn search_many_async(&self, queries: &[f32], options: &SearchOptions) -> Task<SearchResults> {
        self.gathered(queries, options, |found| found)
    }

    /// [`Collection::measure_recall`] as a task.
    pub fn measure_recall_async(
        &self,
        queries: &[f32],
        options: &SearchOptions,
        nprobes: &[usize],
    ) -> Task<Vec<RecallRow>> {
        let (queries, options, nprobes) = (queries.to_vec(), options.clone(), nprobes.to_vec());
        self.aside(move |collection| collection.measure_recall(&queries, &options, &nprobes))
    }

    /// [`Collection::flush`] as a task.
    pub fn flush_async(&self) -> Task<()> {
        self.inner.writer.try_run(|writer| writer.flush())
    }

    /// [`Collection::snapshot`] as a task.
    pub fn snapshot_async(&self, folder: impl AsRef<Path>) -> Task<()> {
        let folder = folder.as_ref().to_owned();
        self.aside(move |collection| collection.snapshot(&folder))
    }

    /// [`Collection::compact`] as a task.
    pub fn compact_async(&self) -> Task<Compaction> {
        self.aside(|collection| collection.compact())
    }

    /// [`Collection::build_index`] as a task.
    pub fn build_index_async(&self, options: &IndexOptions) -> Task<IndexReport> {
        let options = options.clone();
        self.aside(move |collection| collection.build_index(&options))
    }

    /// [`Collection::make_resident`] as a task.
    pub fn make_resident_async(&self) -> Task<()> {
        let shared = Arc::clone(&self.inner.shared);
        if let Err(forked) = shared.check_process() {
            return Task::done(Err(forked));
        }
        spawn(move || residency::upload(&shared, &shared.snapshot(), UploadExtent::Whole))
    }

    /// [`Collection::verify`] as a task.
    pub fn verify_async(&self) -> Task<()> {
        self.aside(|collection| collection.verify())
    }

    fn gathered<T: Send + 'static>(
        &self,
        queries: &[f32],
        options: &SearchOptions,
        convert: impl FnOnce(SearchResults) -> T + Send + 'static,
    ) -> Task<T> {
        match run::check(&self.inner.shared, queries, options) {
            Err(error) => Task::done(Err(error)),
            Ok(count) => self.inner.gather.search_async(queries.to_vec(), count, options.clone(), convert),
        }
    }

    /// Runs a long operation on its own thread.
    fn aside<T: Send + 'static>(&self, work: impl FnOnce(&Collection) -> Result<T> + Send + 'static) -> Task<T> {
        let collection = self.clone();
        spawn(move || work(&collection))
    }
}
