//! Validates, records and applies a group of changes.

use std::collections::HashSet;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, PoisonError};

use serde_json::{Map, Value};

use super::{Command, OnDone, Writer};
use crate::encode::{EncodedBatch, encode, encode_without_rows};
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::folder::Folder;
use crate::record::{RowAddress, entry};
use crate::region::out_of_memory;
use crate::search::{passes, passing};
use crate::segment::Addition;
use crate::state::{Index, Snapshot};

/// Maximal number of changes in one group.
const GROUP_CHANGES_MAX: usize = 1024;
/// Bytes of rows in one group, beyond which it takes no more changes.
const GROUP_BYTES_MAX: usize = 64 << 20;

/// A change requested by a caller.
pub(crate) enum Change {
    Put(PutMode, EncodedBatch),
    Remove { ids: Vec<String>, hashes: Vec<u64> },
    Update { id: String, hash: u64, vector: Option<Vec<f32>>, metadata: MetadataChange },
}

/// A change of a record's metadata.
pub(crate) enum MetadataChange {
    Keep,
    Replace(Value),
    /// Sets these fields, and removes those whose new value is null.
    Merge(Map<String, Value>),
}

/// The action of a put if the id exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutMode {
    Insert,
    Upsert,
}

/// A validated change.
struct PlannedChange {
    kills: Vec<RowAddress>,
    kill_hashes: Vec<u64>,
    fields: Vec<String>,
    batch: Option<EncodedBatch>,
    concerned: usize,
    done: OnDone,
}

impl Writer {
    /// Commits a change together with those that wait, and returns the command that ended the
    /// group.
    pub(super) fn commit_group(
        &mut self,
        first: (Box<Change>, OnDone),
        receiver: &Receiver<Command>,
    ) -> Option<Command> {
        let (mut group, mut touched, mut bytes) = (Vec::new(), HashSet::new(), 0);
        let (mut next, mut ended_by) = (Some(first), None);
        while let Some((change, done)) = next.take() {
            if !group.is_empty() && change.hashes().iter().any(|hash| touched.contains(hash)) {
                ended_by = Some(Command::Write(change, done));
                break;
            }
            touched.extend(change.hashes().iter().copied());
            match self.plan(*change) {
                Ok((kills, kill_hashes, batch, concerned)) => {
                    bytes += batch.as_ref().map_or(0, |batch| batch.rows.len());
                    let fields = batch.as_ref().map_or(Vec::new(), |batch| self.shared.new_fields(&batch.fields));
                    group.push(PlannedChange { kills, kill_hashes, fields, batch, concerned, done });
                }
                Err(error) => done(Err(error)),
            }
            if group.len() >= GROUP_CHANGES_MAX || bytes >= GROUP_BYTES_MAX {
                break;
            }
            match receiver.try_recv() {
                Ok(Command::Write(change, done)) => next = Some((change, done)),
                Ok(other) => ended_by = Some(other),
                Err(_) => {}
            }
        }
        self.commit(group);
        ended_by
    }

    /// The effect of a change: rows to remove, rows to add, and the number of records concerned.
    #[allow(clippy::type_complexity)] // Destructured at once by the only caller.
    fn plan(&mut self, change: Change) -> Result<(Vec<RowAddress>, Vec<u64>, Option<EncodedBatch>, usize)> {
        self.check_running()?;
        let snapshot = self.shared.snapshot();
        let index = self.shared.index.read().unwrap_or_else(PoisonError::into_inner);
        match change {
            Change::Put(mode, batch) => {
                let (mut kills, mut hashes) = (Vec::new(), Vec::new());
                for (offset, hash) in batch.offsets.iter().zip(&batch.hashes) {
                    let id = entry(&batch.entries, *offset as usize).map_or("", |(id, _)| id);
                    if let Some(slot) = index.find(&snapshot, *hash, id) {
                        if mode == PutMode::Insert {
                            return Err(Error::IdExists { id: id.to_owned() });
                        }
                        kills.push(slot);
                        hashes.push(*hash);
                    }
                }
                let concerned = batch.count;
                Ok((kills, hashes, (concerned > 0).then_some(batch), concerned))
            }
            Change::Remove { ids, hashes } => {
                let found = ids
                    .iter()
                    .zip(hashes)
                    .filter_map(|(id, hash)| index.find(&snapshot, hash, id).map(|slot| (slot, hash)));
                // An id that occurs twice in one call is removed once.
                let mut seen = HashSet::new();
                let (kills, kill_hashes): (Vec<_>, Vec<_>) = found.filter(|(slot, _)| seen.insert(*slot)).unzip();
                let concerned = kills.len();
                Ok((kills, kill_hashes, None, concerned))
            }
            Change::Update { id, hash, vector, metadata } => {
                let slot = index.find(&snapshot, hash, &id).ok_or_else(|| Error::NoSuchId { id: id.clone() })?;
                let segment = snapshot.segment(slot.segment).ok_or_else(|| Error::NoSuchId { id: id.clone() })?;
                let metadata = metadata.apply(|| segment.metadata(slot.row))?;
                let (schema, hasher) = (&self.shared.schema, &self.shared.hasher);
                let batch = match vector {
                    Some(vector) => encode(schema, hasher, &[id], &vector, &[metadata])?,
                    None => {
                        // The row's vector stays the same, to the bit.
                        let mut batch = encode_without_rows(hasher, &[id], &[metadata])?;
                        segment.copy_row(slot.row, &mut batch);
                        batch
                    }
                };
                Ok((vec![slot], vec![hash], Some(batch), 1))
            }
        }
    }

    fn commit(&mut self, mut group: Vec<PlannedChange>) {
        let (idle, group): (Vec<PlannedChange>, Vec<PlannedChange>) =
            group.drain(..).partition(|planned| planned.kills.is_empty() && planned.batch.is_none());
        idle.into_iter().for_each(|planned| (planned.done)(Ok(0)));
        if group.is_empty() {
            return;
        }
        match self.record(&group).and_then(|first_row| self.apply(&group, first_row)) {
            Ok(()) => group.into_iter().for_each(|planned| (planned.done)(Ok(planned.concerned))),
            Err(error) => group.into_iter().for_each(|planned| (planned.done)(Err(error.clone()))),
        }
        self.shared.nudge();
    }

    /// Records the group in the newest segment, and returns the index of its first row.
    fn record(&mut self, group: &[PlannedChange]) -> Result<u32> {
        let batches = || group.iter().filter_map(|planned| planned.batch.as_ref());
        let rows: usize = batches().map(|batch| batch.count).sum();
        // Data written to deleted files is lost, and must not be acknowledged.
        self.folder().map_or(Ok(()), Folder::expect_in_place)?;
        self.begin_writing()?;
        self.make_room(rows)?;
        let additions: Vec<_> = group
            .iter()
            .map(|planned| Addition { kills: &planned.kills, fields: &planned.fields, batch: planned.batch.as_ref() })
            .collect();
        let newest = self.segments.last_mut().ok_or(Error::Closed)?;
        let first_row = newest.count;
        let recorded = newest.append(&additions);
        self.judge(recorded)?;
        Ok(first_row)
    }

    /// Removes the records that pass a filter, as one change, and returns their number.
    pub(crate) fn remove_where(&mut self, filter: &Filter) -> Result<usize> {
        self.check_running()?;
        let snapshot = self.shared.snapshot();
        let (mut kills, mut kill_hashes) = (Vec::new(), Vec::new());
        for segment in &snapshot.segments {
            let passing = passing(segment, Some(filter));
            for row in (0..segment.count).filter(|row| passes(&passing, *row)) {
                kills.push(RowAddress { segment: segment.id, row });
                kill_hashes.push(self.shared.hash(segment.id_of(row)));
            }
        }
        let concerned = kills.len();
        if concerned > 0 {
            let done: OnDone = Box::new(|_| ());
            let group = [PlannedChange { kills, kill_hashes, fields: Vec::new(), batch: None, concerned, done }];
            self.record(&group).and_then(|first_row| self.apply(&group, first_row))?;
            self.shared.nudge();
        }
        Ok(concerned)
    }

    /// Reserves space for this many more records.
    pub(crate) fn reserve(&mut self, records: usize) -> Result<()> {
        self.check_running()?;
        let mut index = self.shared.index.write().unwrap_or_else(PoisonError::into_inner);
        index.try_reserve(records).ok_or_else(|| out_of_memory(records.saturating_mul(size_of::<RowAddress>())))?;
        drop(index);
        // Rows of later segments are reserved there.
        let (row_bytes, bytes_max) = (self.shared.schema.row_bytes(), self.shared.options.segment_bytes_max);
        match self.segments.last_mut().filter(|newest| newest.lists.is_none()) {
            Some(newest) => newest.reserve(records.min(bytes_max / row_bytes.max(1))),
            None => Ok(()),
        }
    }

    /// Ensures that the newest segment can take this many rows.
    fn make_room(&mut self, rows: usize) -> Result<()> {
        let newest = self.segments.last().ok_or(Error::Closed)?;
        let bytes = (newest.count as usize + rows).saturating_mul(self.shared.schema.row_bytes());
        let fits = newest.lists.is_none() && bytes <= self.shared.options.segment_bytes_max;
        if newest.count == 0 && newest.lists.is_none() || fits || rows == 0 {
            return Ok(());
        }
        self.seal()
    }

    /// Applies the recorded group to the index and the snapshot.
    fn apply(&mut self, group: &[PlannedChange], first_row: u32) -> Result<()> {
        let shared = Arc::clone(&self.shared);
        let mut index = shared.index.write().unwrap_or_else(PoisonError::into_inner);
        let newest = self.segments.last().map_or(0, |segment| segment.id);
        let mut row = first_row;
        for planned in group {
            for (slot, hash) in planned.kills.iter().zip(&planned.kill_hashes) {
                if let Some(segment) = self.segments.iter_mut().find(|segment| segment.id == slot.segment) {
                    segment.kill(slot.row);
                }
                index.remove(*hash, *slot);
            }
            if let Some(batch) = &planned.batch {
                index.reserve(batch.count);
                for hash in &batch.hashes {
                    index.insert(*hash, RowAddress { segment: newest, row });
                    row += 1;
                }
            }
        }
        shared.add_fields(group.iter().flat_map(|planned| planned.fields.iter().cloned()));
        shared.publish(self.snapshot()?);
        Ok(())
    }

    /// Publishes the current segments, together with a change of the index.
    pub(crate) fn publish_with(&mut self, change: impl FnOnce(&mut Index)) -> Result<Arc<Snapshot>> {
        let shared = Arc::clone(&self.shared);
        let mut index = shared.index.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut index);
        shared.publish(self.snapshot()?);
        Ok(shared.snapshot())
    }
}

impl MetadataChange {
    /// The metadata after the change. Fields can be set where the metadata are an object, or null.
    fn apply(self, before: impl FnOnce() -> Value) -> Result<Value> {
        let fields = match self {
            MetadataChange::Keep => return Ok(before()),
            MetadataChange::Replace(metadata) => return Ok(metadata),
            MetadataChange::Merge(fields) => fields,
        };
        let mut all = match before() {
            Value::Object(all) => all,
            Value::Null => Map::new(),
            other => return Err(Error::invalid("metadata whose fields are set", "a JSON object", &other)),
        };
        for (field, value) in fields {
            if value.is_null() {
                all.remove(&field);
            } else {
                all.insert(field, value);
            }
        }
        Ok(Value::Object(all))
    }
}

impl Change {
    /// Approximate memory of the change while it waits.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Change::Put(_, batch) => batch.rows.len() + batch.entries.len() + batch.count * 24,
            Change::Remove { ids, .. } => ids.iter().map(|id| id.len() + 32).sum(),
            Change::Update { id, vector, .. } => id.len() + vector.as_ref().map_or(0, |vector| vector.len() * 4),
        }
    }

    fn hashes(&self) -> &[u64] {
        match self {
            Change::Put(_, batch) => &batch.hashes,
            Change::Remove { hashes, .. } => hashes,
            Change::Update { hash, .. } => std::slice::from_ref(hash),
        }
    }
}
