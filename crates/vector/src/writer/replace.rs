//! Replacement of segments: sealing the newest, clearing, and swapping in compacted segments.

use std::sync::Arc;

use super::{Writer, listed};
use crate::error::{Error, Failure, Result};
use crate::folder::ListedSegment;
use crate::ivf::Centroids;
use crate::record::RowAddress;
use crate::segment::{Addition, Segment, SegmentView};

/// New segments that replace old ones.
pub(crate) struct Replacement {
    /// The segments to be replaced, in the state in which their rows were copied.
    pub(crate) old: Vec<Arc<SegmentView>>,
    pub(crate) new: Vec<Segment>,
    /// For each new segment, the old segment whose position it takes.
    pub(crate) places: Vec<u32>,
    /// For each old segment, the new slot of each row; dead rows have [`NOWHERE`].
    pub(crate) moved: Vec<Vec<RowAddress>>,
    /// A new index, with the number of its file.
    pub(crate) centroids: Option<Arc<Centroids>>,
}

/// The slot of a row that no longer exists.
pub(crate) const NOWHERE: RowAddress = RowAddress { segment: u32::MAX, row: u32::MAX };

impl Writer {
    /// Ends the newest segment and begins another.
    pub(crate) fn seal(&mut self) -> Result<()> {
        self.check_running()?;
        self.flush()?;
        let segment = self.new_segment()?;
        let all = self.segments.iter().map(listed).chain([listed(&segment)]).collect();
        let written = self.write_manifest(all, self.manifest.centroids);
        self.or_remove(&[segment.id], None, written)?;
        self.segments.last_mut().into_iter().for_each(Segment::close_files);
        self.segments.push(segment);
        Ok(())
    }

    /// Removes every record.
    pub(crate) fn clear(&mut self) -> Result<()> {
        self.check_running()?;
        let mut segment = self.new_segment()?;
        // The fields stay known, as after any removal.
        let noted = self.note(&mut segment, &[]).map_err(|failure| failure.error);
        let written = noted.and_then(|()| self.write_manifest(vec![listed(&segment)], None));
        self.or_remove(&[segment.id], None, written)?;
        let old: Vec<u32> = self.segments.iter().map(|segment| segment.id).collect();
        let old_centroids = self.centroids.take();
        self.segments = vec![segment];
        self.publish_with(|index| index.clear())?;
        self.remove_files(&old, old_centroids.as_deref());
        Ok(())
    }

    /// Replaces old segments by new ones. Rows that died since they were copied are killed in the
    /// new segments too.
    pub(crate) fn replace(&mut self, replacement: Replacement) -> Result<()> {
        self.check_running()?;
        let new_ids: Vec<u32> = replacement.new.iter().map(|segment| segment.id).collect();
        let centroids = replacement.centroids.clone();
        let is_there = |view: &Arc<SegmentView>| self.segments.iter().any(|segment| segment.id == view.id);
        if !replacement.old.iter().all(is_there) {
            // The collection was cleared meanwhile, so nothing is left to replace.
            self.remove_files(&new_ids, centroids.as_deref());
            return Ok(());
        }
        let replaced = self.try_replace(replacement);
        self.or_remove(&new_ids, centroids.as_deref(), replaced)
    }

    fn try_replace(&mut self, replacement: Replacement) -> Result<()> {
        let Replacement { old, mut new, places, moved, centroids } = replacement;
        let old_ids: Vec<u32> = old.iter().map(|view| view.id).collect();
        let mut kills = self.late_deaths(&old, &moved);
        for segment in &mut new {
            let id = segment.id;
            for slot in kills.iter().filter(|slot| slot.segment == id) {
                segment.kill(slot.row);
            }
        }
        // Record the removals in the old logs again if they concern segments that stay.
        for stays in self.segments.iter().filter(|segment| !old_ids.contains(&segment.id)) {
            kills.extend(stays.dead_rows().map(|row| RowAddress { segment: stays.id, row }));
        }
        match new.first_mut() {
            // The segment is not visible yet and is deleted if this fails.
            Some(segment) => self.note(segment, &kills).map_err(|failure| failure.error)?,
            None => {
                self.begin_writing()?;
                let mut newest = self.segments.pop().ok_or(Error::Closed)?;
                let noted = self.note(&mut newest, &kills);
                self.segments.push(newest);
                self.judge(noted)?;
            }
        }
        let listed_new: Vec<(u32, ListedSegment)> = places.iter().copied().zip(new.iter().map(listed)).collect();
        let mut all: Vec<ListedSegment> = Vec::new();
        for segment in &self.segments {
            all.extend(listed_new.iter().filter(|(place, _)| *place == segment.id).map(|(_, listed)| *listed));
            all.extend((!old_ids.contains(&segment.id)).then(|| listed(segment)));
        }
        let order: Vec<u32> = all.iter().map(|listed| listed.id).collect();
        let number = centroids.as_ref().map(|centroids| centroids.number).or(self.manifest.centroids);
        self.write_manifest(all, number)?;
        self.segments.retain(|segment| !old_ids.contains(&segment.id));
        self.segments.append(&mut new);
        self.segments.sort_by_key(|segment| order.iter().position(|id| *id == segment.id));
        self.segments.iter_mut().rev().skip(1).for_each(Segment::close_files);
        let old_centroids = centroids.map(|centroids| self.centroids.replace(centroids));
        let shared = Arc::clone(&self.shared);
        self.publish_with(|index| {
            for (view, moved) in old.iter().zip(&moved) {
                for (row, to) in (0..).zip(moved).filter(|(_, to)| **to != NOWHERE) {
                    index.relocate(shared.hash(view.id_of(row)), RowAddress { segment: view.id, row }, *to);
                }
            }
        })?;
        self.remove_files(&old_ids, old_centroids.flatten().as_deref());
        Ok(())
    }

    /// Creates a segment without rows. It takes effect when the manifest names it.
    fn new_segment(&mut self) -> Result<Segment> {
        let number = self.manifest.take_number()?;
        let durable = self.shared.options.durable;
        let created = Segment::create(self.folder(), &self.shared.schema, number, durable);
        self.or_remove(&[number], None, created)
    }

    /// Creates the first segment of a collection.
    pub(crate) fn begin(&mut self) -> Result<()> {
        let segment = self.new_segment()?;
        self.write_manifest(vec![listed(&segment)], None)?;
        self.segments = vec![segment];
        self.publish_with(|_| ()).map(drop)
    }

    /// Records the dead rows and every field in a segment's log. On return this has reached the
    /// disk, also in non-durable mode, since the logs that held this information are deleted next.
    fn note(&self, segment: &mut Segment, kills: &[RowAddress]) -> Result<(), Failure> {
        let fields: Vec<String> = self.shared.fields().iter().cloned().collect();
        segment.append(&[Addition { kills, fields: &fields, batch: None }])?;
        segment.flush()
    }

    /// After an error, deletes the new files, unless the manifest on disk may name them.
    fn or_remove<T>(&self, segments: &[u32], centroids: Option<&Centroids>, outcome: Result<T>) -> Result<T> {
        if outcome.is_err() && self.stopped.is_none() {
            self.remove_files(segments, centroids);
        }
        outcome
    }

    /// The new slots of the rows that have died since they were copied.
    fn late_deaths(&self, old: &[Arc<SegmentView>], moved: &[Vec<RowAddress>]) -> Vec<RowAddress> {
        let mut deaths = Vec::new();
        for (view, moved) in old.iter().zip(moved) {
            let Some(now) = self.segments.iter().find(|segment| segment.id == view.id) else { continue };
            let died = now.dead_rows().filter(|row| view.is_live(*row));
            deaths.extend(died.filter_map(|row| moved.get(row as usize).copied()).filter(|to| *to != NOWHERE));
        }
        deaths
    }

    fn remove_files(&self, segments: &[u32], centroids: Option<&Centroids>) {
        if let Some(folder) = self.folder() {
            folder.remove(segments.iter().copied(), centroids.map(|centroids| centroids.number));
        }
    }
}
