//! Compaction copies the live rows of some segments into new segments, without the dead rows. With
//! an index, the rows are sorted into its lists. Compaction runs beside searches and writes; only
//! swapping the new segments in is done by the writer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;

use crate::encode::EncodedBatch;
use crate::error::{Error, Result};
use crate::ivf::{Centroids, Lists, kmeans};
use crate::record::RowAddress;
use crate::segment::{Addition, Segment, SegmentView};
use crate::state::{CollectionState, Snapshot};
use crate::writer::{Command, NOWHERE, Replacement, recover, run_on};

/// Rows copied in one batch.
const COPY_ROWS_MAX: usize = 1 << 14;
/// Rows that share one record and one checksum. Later damage loses the whole record.
const RECORD_ROWS_MAX: usize = 1 << 10;
/// The background leaves segments with fewer dead rows alone.
const DEAD_ROWS_MIN: u32 = 1024;
/// A segment smaller than 1/`SMALL_SHARE` of the largest size (`segment_bytes_max`) is joined with
/// others.
const SMALL_SHARE: usize = 4;
/// Small segments that the background tolerates.
const SMALL_SEGMENTS_MAX: usize = 4;

/// The result of a compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compaction {
    /// Segments that were replaced.
    pub segments: usize,
    /// Rows whose space was reclaimed.
    pub rows_reclaimed: u64,
}

/// A row to be copied: the index of its segment among the sources, and its row there.
type SourceRow = (u32, u32);

/// Copies segments.
pub(crate) struct Compactor<'a> {
    pub(crate) shared: &'a Arc<CollectionState>,
    pub(crate) writer: SyncSender<Command>,
    /// Set when the collection is being closed.
    pub(crate) closing: &'a AtomicBool,
}

/// Whether the background should compact.
pub(crate) fn wants_compaction(shared: &CollectionState, snapshot: &Snapshot) -> bool {
    let worn = snapshot.segments.iter().any(|segment| is_worn(shared, segment));
    let sealed = &snapshot.segments[..snapshot.segments.len().saturating_sub(1)];
    let small = (0..sealed.len()).filter(|place| can_join(shared, sealed, *place));
    worn || small.count() > SMALL_SEGMENTS_MAX
}

/// Whether a segment can be joined with a direct neighbour. Only neighbours are joined, so that
/// rows stay ordered by age.
fn can_join(shared: &CollectionState, sealed: &[Arc<SegmentView>], place: usize) -> bool {
    let small = |place: usize| sealed.get(place).is_some_and(|segment| is_small(shared, segment));
    small(place) && (small(place + 1) || place > 0 && small(place - 1))
}

fn is_worn(shared: &CollectionState, segment: &SegmentView) -> bool {
    let percent = u64::from(segment.dead) * 100 / u64::from(segment.count.max(1));
    segment.dead >= DEAD_ROWS_MIN && percent >= u64::from(shared.options.compact_dead_percent)
}

fn is_small(shared: &CollectionState, segment: &SegmentView) -> bool {
    segment.count as usize * segment.row_bytes < shared.options.segment_bytes_max / SMALL_SHARE
}

impl Compactor<'_> {
    /// Compacts the segments that need it; with `all`, every segment that can be compacted.
    pub(crate) fn compact(&self, all: bool) -> Result<Compaction> {
        let shared = Arc::clone(self.shared);
        let snapshot = run_on(&self.writer, move |writer| {
            writer.check_running()?;
            let worn = |segment: &Segment| segment.dead > 0 && (all || segment.dead >= DEAD_ROWS_MIN);
            let several = all && writer.segments.len() > 1;
            if writer.segments.last().is_some_and(|newest| newest.count > 0 && (worn(newest) || several)) {
                writer.seal()?;
            }
            writer.publish_with(|_| ())
        })
        .wait()?;
        let sealed = &snapshot.segments[..snapshot.segments.len().saturating_sub(1)];
        let wanted = |place: &usize| {
            let segment = &sealed[*place];
            let partial = segment.dead > 0 || segment.lists.is_none() && snapshot.centroids.is_some();
            can_join(&shared, sealed, *place) || if all { partial } else { is_worn(&shared, segment) }
        };
        let chosen: Vec<_> = (0..sealed.len()).filter(wanted).map(|place| Arc::clone(&sealed[place])).collect();
        if chosen.is_empty() || (chosen.len() == 1 && chosen[0].dead == 0 && !(all && snapshot.centroids.is_some())) {
            return Ok(Compaction::default());
        }
        let done =
            Compaction { segments: chosen.len(), rows_reclaimed: chosen.iter().map(|view| u64::from(view.dead)).sum() };
        self.rebuild(&snapshot, chosen, snapshot.centroids.as_deref(), None)?;
        Ok(done)
    }

    /// Copies segments of a snapshot into new ones and swaps those in. With `centroids`, rows are
    /// sorted into lists.
    pub(crate) fn rebuild(
        &self,
        snapshot: &Snapshot,
        old: Vec<Arc<SegmentView>>,
        centroids: Option<&Centroids>,
        new_centroids: Option<Arc<Centroids>>,
    ) -> Result<()> {
        let (mut new, mut places) = (Vec::new(), Vec::new());
        let mut moved: Vec<Vec<RowAddress>> = old.iter().map(|view| vec![NOWHERE; view.count as usize]).collect();
        let built = self.check_sources(&old).and_then(|()| {
            self.groups(snapshot, &old).into_iter().try_for_each(|group| {
                places.extend(group.first().map(|place| old[*place as usize].id));
                let mut segment = self.build(&old, group, centroids, &mut moved)?;
                if !new.is_empty() {
                    // The writer appends only to the first new segment.
                    segment.close_files();
                }
                new.push(segment);
                Ok(())
            })
        });
        if let Err(error) = built {
            self.remove_files(&new, new_centroids.as_deref());
            return Err(error);
        }
        let replacement = Replacement { old, new, places, moved, centroids: new_centroids };
        run_on(&self.writer, move |writer| writer.replace(replacement)).wait()
    }

    /// Checks the rows that will be copied: their new checksums would hide any damage.
    fn check_sources(&self, old: &[Arc<SegmentView>]) -> Result<()> {
        let Some(folder) = &self.shared.folder else { return Ok(()) };
        for view in old {
            let stored = (view.log.bytes(), view.stored.bytes());
            let checked = recover::verify(folder, &self.shared.schema, view.id, stored, |_| !self.is_closing());
            checked.inspect_err(|error| self.shared.note_damage(error))?;
        }
        if self.is_closing() { Err(Error::Closed) } else { Ok(()) }
    }

    fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Relaxed)
    }

    /// Groups the sources: neighbouring segments, as many as fit into one new segment.
    fn groups(&self, snapshot: &Snapshot, old: &[Arc<SegmentView>]) -> Vec<Vec<u32>> {
        let place_of = |view: &SegmentView| snapshot.segments.iter().position(|other| other.id == view.id);
        let (mut groups, mut bytes, mut last) = (Vec::<Vec<u32>>::new(), 0, None);
        for (place, view) in (0..).zip(old) {
            let own = place_of(view);
            let follows = last.map(|last: usize| last + 1) == own;
            last = own;
            let more = view.len() as usize * view.row_bytes;
            match groups.last_mut() {
                _ if more == 0 => {}
                Some(group) if follows && bytes + more <= self.shared.options.segment_bytes_max => {
                    group.push(place);
                    bytes += more;
                }
                _ => {
                    groups.push(vec![place]);
                    bytes = more;
                }
            }
        }
        groups
    }

    fn build(
        &self,
        old: &[Arc<SegmentView>],
        group: Vec<u32>,
        centroids: Option<&Centroids>,
        moved: &mut [Vec<RowAddress>],
    ) -> Result<Segment> {
        let (rows, lists) = self.ordered_rows(old, group, centroids)?;
        let number = run_on(&self.writer, |writer| writer.manifest.take_number()).wait()?;
        let folder = self.shared.folder.as_deref();
        let created = Segment::create(folder, &self.shared.schema, number, false);
        let mut segment = created.inspect_err(|_| folder.iter().for_each(|folder| folder.remove([number], None)))?;
        let filled = self.fill(&mut segment, old, &rows, moved).and_then(|()| {
            if let (Some(lists), Some(folder)) = (&lists, folder) {
                lists.write(folder.sealing(), &folder.lists_path(number))?;
            }
            Ok(())
        });
        if let Err(error) = filled {
            self.remove_files(std::slice::from_ref(&segment), None);
            return Err(error);
        }
        segment.lists = lists.map(Arc::new);
        segment.durable = folder.is_some() && self.shared.options.durable;
        Ok(segment)
    }

    fn fill(
        &self,
        segment: &mut Segment,
        old: &[Arc<SegmentView>],
        rows: &[SourceRow],
        moved: &mut [Vec<RowAddress>],
    ) -> Result<()> {
        let mut next = 0;
        for part in rows.chunks(COPY_ROWS_MAX) {
            if self.is_closing() {
                return Err(Error::Closed);
            }
            let batches: Vec<EncodedBatch> =
                part.chunks(RECORD_ROWS_MAX).map(|part| self.copy_rows(old, part)).collect();
            let addition = |batch| Addition { kills: &[], fields: &[], batch: Some(batch) };
            let added = segment.append(&batches.iter().map(addition).collect::<Vec<_>>());
            added.map_err(|failure| failure.error)?;
            for (place, row) in part {
                moved[*place as usize][*row as usize] = RowAddress { segment: segment.id, row: next };
                next += 1;
            }
        }
        segment.flush().map_err(|failure| failure.error)
    }

    /// The live rows of a group, in the order in which they will be stored, and where each list
    /// begins.
    fn ordered_rows(
        &self,
        old: &[Arc<SegmentView>],
        group: Vec<u32>,
        centroids: Option<&Centroids>,
    ) -> Result<(Vec<SourceRow>, Option<Lists>)> {
        let (mut sources, mut lists): (Vec<SourceRow>, Vec<u32>) = (Vec::new(), Vec::new());
        for place in group {
            let view = &old[place as usize];
            let rows: Vec<u32> = view.rows_by_age().into_iter().filter(|row| view.is_live(*row)).collect();
            if let Some(centroids) = centroids {
                lists.extend(kmeans::assign(self.shared, &centroids.points, view, &rows)?);
            }
            sources.extend(rows.into_iter().map(|row| (place, row)));
        }
        let Some(centroids) = centroids else { return Ok((sources, None)) };
        let mut offsets = vec![0_u32; centroids.count() + 1];
        lists.iter().for_each(|list| offsets[*list as usize + 1] += 1);
        (1..offsets.len()).for_each(|list| offsets[list] += offsets[list - 1]);
        let (mut next, mut ordered) = (offsets.clone(), vec![(0, 0); sources.len()]);
        let mut ages = vec![0; sources.len()];
        for ((age, source), list) in (0..).zip(sources).zip(lists) {
            let place = &mut next[list as usize];
            (ordered[*place as usize], ages[*place as usize]) = (source, age);
            *place += 1;
        }
        Ok((ordered, Some(Lists { offsets, ages })))
    }

    /// Stored rows as a batch, copied as they are: re-encoding would round them twice.
    fn copy_rows(&self, old: &[Arc<SegmentView>], part: &[SourceRow]) -> EncodedBatch {
        let mut batch = EncodedBatch { count: part.len(), ..EncodedBatch::default() };
        for (place, row) in part {
            let view = &old[*place as usize];
            view.copy_row(*row, &mut batch);
            let (id, text) = view.entry(*row).unwrap_or_default();
            batch.push_entry(id, |entries| entries.extend_from_slice(text));
        }
        batch
    }

    fn remove_files(&self, segments: &[Segment], centroids: Option<&Centroids>) {
        if let Some(folder) = &self.shared.folder {
            folder.remove(segments.iter().map(|segment| segment.id), centroids.map(|centroids| centroids.number));
        }
    }
}
