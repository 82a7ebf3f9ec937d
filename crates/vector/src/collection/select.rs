//! Records by their metadata and by their ids: counting, removing and listing them.

use std::collections::BinaryHeap;

use super::{Collection, StoredRecord};
use crate::error::Result;
use crate::filter::Filter;
use crate::search::{passes, passing};
use crate::state::Snapshot;
use crate::task::Task;

/// Part of the records, in the order of their ids.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    /// The records.
    pub entries: Vec<StoredRecord>,
    /// The last id of this page, after which the next page begins; `None` on the last page.
    pub next: Option<String>,
}

/// Selection by metadata and by ids.
impl Collection {
    /// Number of records that pass a filter.
    pub fn count_where(&self, filter: &Filter) -> Result<usize> {
        let shared = &self.inner.shared;
        shared.check_sound()?;
        shared.check_filter(filter)?;
        let count = |segment| passing(segment, Some(filter)).map_or(segment.count, |(_, count)| count) as usize;
        Ok(shared.snapshot().segments.iter().map(|segment| count(segment.as_ref())).sum())
    }

    /// Checks a filter as every search, count, listing and removal does: its fields exist, and each
    /// has values of the type that it is compared with in some record, or no number, text or truth
    /// value at all. A filter such as `size < abc` where sizes are numbers is a mistake.
    pub fn check_filter_types(&self, filter: &Filter) -> Result<()> {
        self.inner.shared.check_sound()?;
        self.inner.shared.check_filter(filter)
    }

    /// Removes the records that pass a filter, atomically, and returns their number.
    pub fn remove_where(&self, filter: &Filter) -> Result<usize> {
        self.inner.shared.check_process()?;
        self.inner.shared.check_filter(filter)?;
        let filter = filter.clone();
        self.inner.writer.run(move |writer| writer.remove_where(&filter)).wait()
    }

    /// [`Collection::remove_where`] as a task.
    pub fn remove_where_async(&self, filter: &Filter) -> Task<usize> {
        let shared = &self.inner.shared;
        if let Err(error) = shared.check_process().and_then(|()| shared.check_filter(filter)) {
            return Task::done(Err(error));
        }
        let filter = filter.clone();
        self.inner.writer.try_run(move |writer| writer.remove_where(&filter))
    }

    /// The first ids after `after`, in byte order, of the records that pass; at most `limit`.
    /// Insertions and removals between two calls do not shift any other id.
    pub fn ids(&self, after: Option<&str>, limit: usize, filter: Option<&Filter>) -> Result<Vec<String>> {
        let snapshot = self.listed_snapshot(filter)?;
        let found = first_ids(&snapshot, after, limit, filter);
        Ok(found.into_iter().map(|(id, _, _)| id.to_owned()).collect())
    }

    /// The records of [`Collection::ids`].
    pub fn page(&self, after: Option<&str>, limit: usize, filter: Option<&Filter>) -> Result<Page> {
        let snapshot = self.listed_snapshot(filter)?;
        let mut found = first_ids(&snapshot, after, limit.saturating_add(1), filter);
        let more = found.len() > limit;
        found.truncate(limit);
        let entry = |(id, place, row): &(&str, usize, u32)| {
            let segment = &snapshot.segments[*place];
            StoredRecord { id: (*id).to_owned(), vector: segment.vector(*row), metadata: segment.metadata(*row) }
        };
        let next = found.last().filter(|_| more).map(|(id, _, _)| (*id).to_owned());
        Ok(Page { entries: found.iter().map(entry).collect(), next })
    }

    /// Reserves memory for `records` more records, so that inserting them does not allocate. Fails
    /// and changes nothing if the memory is not available.
    pub fn reserve(&self, records: usize) -> Result<()> {
        self.inner.writer.run(move |writer| writer.reserve(records)).wait()
    }

    fn listed_snapshot(&self, filter: Option<&Filter>) -> Result<std::sync::Arc<Snapshot>> {
        let shared = &self.inner.shared;
        shared.check_sound()?;
        filter.map_or(Ok(()), |filter| shared.check_filter(filter))?;
        Ok(shared.snapshot())
    }
}

/// The smallest ids after `after`, each with its segment's index and its row.
fn first_ids<'a>(
    snapshot: &'a Snapshot,
    after: Option<&str>,
    limit: usize,
    filter: Option<&Filter>,
) -> Vec<(&'a str, usize, u32)> {
    // A max-heap: the largest id so far is on top and is replaced by a smaller one.
    let mut first: BinaryHeap<(&str, usize, u32)> = BinaryHeap::new();
    for (place, segment) in snapshot.segments.iter().enumerate() {
        let passing = passing(segment, filter);
        for row in (0..segment.count).filter(|row| passes(&passing, *row)) {
            let id = segment.id_of(row);
            let fits = first.len() < limit || first.peek().is_some_and(|(largest, _, _)| id < *largest);
            if limit > 0 && fits && after.is_none_or(|after| id > after) {
                if first.len() == limit {
                    first.pop();
                }
                first.push((id, place, row));
            }
        }
    }
    first.into_sorted_vec()
}
