//! New segments for old ones: sealing the newest, clearing, and putting compacted segments in the place of others.

use std::sync::Arc;

use super::{Writer, listed};
use crate::error::{Error, Result};
use crate::folder::ListedSegment;
use crate::ivf::Centroids;
use crate::record::Slot;
use crate::segment::{Addition, Segment, SegmentView};

/// Segments that take the place of others.
pub(crate) struct Replacement {
    /// The segments to be replaced, as they were when their rows were copied.
    pub(crate) old: Vec<Arc<SegmentView>>,
    pub(crate) new: Vec<Segment>,
    /// For each old segment, where each of its rows is now; rows that were dead have [`NOWHERE`].
    pub(crate) moved: Vec<Vec<Slot>>,
    /// A new index, with the number of its file.
    pub(crate) centroids: Option<Arc<Centroids>>,
}

/// Where a row is that is not anywhere any more.
pub(crate) const NOWHERE: Slot = Slot { segment: u32::MAX, row: u32::MAX };

impl Writer {
    /// Ends the newest segment and begins another one.
    pub(crate) fn seal(&mut self) -> Result<()> {
        self.check_running()?;
        self.flush()?;
        let segment = self.new_segment()?;
        let all = self.segments.iter().map(listed).chain([listed(&segment)]).collect();
        self.write_manifest(all, self.manifest.centroids)?;
        self.segments.push(segment);
        Ok(())
    }

    /// Removes every record.
    pub(crate) fn clear(&mut self) -> Result<()> {
        self.check_running()?;
        let mut segment = self.new_segment()?;
        // The fields stay known, as after any removal.
        self.record_fields(&mut segment)?;
        self.write_manifest(vec![listed(&segment)], None)?;
        let old: Vec<u32> = self.segments.iter().map(|segment| segment.id).collect();
        let old_centroids = self.centroids.take();
        self.segments = vec![segment];
        self.publish_with(|index| index.clear())?;
        self.remove_files(&old, old_centroids.as_deref());
        Ok(())
    }

    /// Puts new segments in the place of old ones. Rows that died since they were copied die in their new place too.
    pub(crate) fn replace(&mut self, replacement: Replacement) -> Result<()> {
        self.check_running()?;
        let Replacement { old, mut new, moved, centroids } = replacement;
        let old_ids: Vec<u32> = old.iter().map(|view| view.id).collect();
        if old_ids.iter().any(|id| !self.segments.iter().any(|segment| segment.id == *id)) {
            // Cleared meanwhile: there is nothing left to replace.
            self.remove_files(&new.iter().map(|segment| segment.id).collect::<Vec<_>>(), None);
            return Ok(());
        }
        let mut kills = self.late_deaths(&old, &moved);
        for segment in &mut new {
            let id = segment.id;
            for slot in kills.iter().filter(|slot| slot.segment == id) {
                segment.kill(slot.row);
            }
        }
        // What the old logs said about rows of segments that stay is said again.
        for stays in self.segments.iter().filter(|segment| !old_ids.contains(&segment.id)) {
            kills.extend(stays.dead_rows().map(|row| Slot { segment: stays.id, row }));
        }
        let fields: Vec<String> = self.shared.fields().iter().cloned().collect();
        let keeper = match new.first_mut() {
            Some(segment) => segment,
            None => self.segments.last_mut().ok_or(Error::Closed)?,
        };
        let noted = keeper.append(&[Addition { kills: &kills, fields: &fields, batch: None }]);
        noted.map_err(|failure| failure.error)?;
        let stay = self.segments.iter().filter(|segment| !old_ids.contains(&segment.id));
        let all: Vec<ListedSegment> = new.iter().chain(stay).map(listed).collect();
        let number = centroids.as_ref().map(|centroids| centroids.number).or(self.manifest.centroids);
        self.write_manifest(all, number)?;
        self.segments.retain(|segment| !old_ids.contains(&segment.id));
        self.segments.splice(0..0, new);
        let old_centroids = centroids.map(|centroids| self.centroids.replace(centroids));
        let shared = Arc::clone(&self.shared);
        self.publish_with(|index| {
            for (view, moved) in old.iter().zip(&moved) {
                for (row, to) in (0..).zip(moved).filter(|(_, to)| **to != NOWHERE) {
                    index.relocate(shared.hash(view.id_of(row)), Slot { segment: view.id, row }, *to);
                }
            }
        })?;
        self.remove_files(&old_ids, old_centroids.flatten().as_deref());
        Ok(())
    }

    /// A new segment without rows, which counts once the manifest names it.
    fn new_segment(&mut self) -> Result<Segment> {
        let number = self.manifest.take_number();
        let durable = self.shared.options.durable;
        Segment::create(self.folder(), &self.shared.schema, number, durable)
    }

    /// The first segment of a collection that has none.
    pub(crate) fn begin(&mut self) -> Result<()> {
        let segment = self.new_segment()?;
        self.write_manifest(vec![listed(&segment)], None)?;
        self.segments = vec![segment];
        self.publish_with(|_| ()).map(drop)
    }

    fn record_fields(&self, segment: &mut Segment) -> Result<()> {
        let fields: Vec<String> = self.shared.fields().iter().cloned().collect();
        let noted = segment.append(&[Addition { kills: &[], fields: &fields, batch: None }]);
        noted.map_err(|failure| failure.error)
    }

    /// Where the rows are now that have died since they were copied.
    fn late_deaths(&self, old: &[Arc<SegmentView>], moved: &[Vec<Slot>]) -> Vec<Slot> {
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
            segments.iter().for_each(|id| folder.remove_segment(*id));
            if let Some(centroids) = centroids {
                let _ = std::fs::remove_file(folder.centroids_path(centroids.number));
            }
        }
    }
}
