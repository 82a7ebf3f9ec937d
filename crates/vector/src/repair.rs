//! Repair of a damaged collection: everything readable is kept, and losses are reported.
//!
//! 1. Every file is read and checked: all rows, all logs, the index.
//! 2. In a damaged segment every record is looked for individually, also after the damage. A record
//!    counts if its checksum is correct; its rows count if their checksum is correct, in the rows
//!    file or in the log. Sound rows go into a new segment.
//! 3. Removals in a lost part of a log are unknown, so such records come back. If an id then has
//!    two records, the newer one stays.
//! 4. A damaged index is dropped. It can be built again.
//!
//! The new segments take effect when the manifest names them, so a crash before that leaves
//! everything unchanged. Damaged files are kept in the folder, with `.damaged` appended to their
//! names. A damaged manifest cannot be repaired, because it alone lists the parts of the
//! collection.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::collection::open::{FolderContents, ending_of};
use crate::encode::{EncodedBatch, floats};
use crate::error::{Error, Result};
use crate::folder::{Folder, ListedSegment, Manifest, Opener};
use crate::ivf::{Centroids, Lists};
use crate::record::{
    LOG_HEAD_BYTES, Record, RecordSearch, RowAddress, any_record_behind, entry, for_each_entry, read_any_record,
};
use crate::schema::Schema;
use crate::segment::{Addition, Segment, SegmentView};
use crate::writer::recover::{RecoveredSegment, check_record, examine};

/// The findings of a repair, and its actual or planned effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// The damage; empty if there is none.
    pub findings: Vec<Finding>,
    /// Number of records after the repair.
    pub records: u64,
    /// Number of rows that are certainly lost. Some of them may have been removed before.
    pub rows_lost: u64,
    /// Whether removals may be lost too, so that removed records come back.
    pub removals_lost: bool,
    /// Whether the index is lost, and with it the age of the rows in its lists. Hits of equal score
    /// among those rows then come in the order of the lists.
    pub index_lost: bool,
    /// Whether the repair was carried out. If false, nothing was changed.
    pub applied: bool,
}

/// One place of damage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub path: PathBuf,
    /// Byte offset at which the damage begins.
    pub offset: u64,
    /// The fault.
    pub reason: String,
}

/// The result of examining a segment.
enum Examination {
    Sound(Box<RecoveredSegment>),
    Salvaged(Salvage),
}

/// The readable parts of a damaged segment.
struct Salvage {
    rows: Vec<SalvagedRow>,
    kills: Vec<RowAddress>,
    fields: Vec<String>,
}

/// An undamaged row.
struct SalvagedRow {
    /// Its index in the damaged segment.
    row: u32,
    bytes: Vec<u8>,
    norm: Option<f32>,
    scale: Option<f32>,
    id: String,
    metadata: Vec<u8>,
}

/// The folder under repair.
struct FolderUnderRepair<'a> {
    folder: &'a Folder,
    schema: Arc<Schema>,
    manifest: Manifest,
    repair: Repair,
    /// The files to be renamed as damaged.
    damaged: Vec<PathBuf>,
}

/// Looks for damage and, with `apply`, repairs it.
pub(crate) fn repair(path: &Path, opener: Opener<'_>, apply: bool) -> Result<Repair> {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    // Held until the end, so that no writer can open the collection meanwhile.
    let mut _unwritten = None;
    let (folder, manifest) = match Folder::open(path, opener) {
        // On a read-only file system no writer exists, so a dry run needs no lock.
        Err(Error::Io { source, .. }) if !apply && source.kind() == ReadOnlyFilesystem => {
            Folder::open_read_only(path, opener)?
        }
        // This user may not write, but another user may.
        Err(Error::Io { source, .. }) if !apply && source.kind() == PermissionDenied => {
            _unwritten = Folder::keep_writers_out(path)?;
            Folder::open_read_only(path, opener)?
        }
        other => other?,
    };
    // The logs are locked as well, for file systems on which the folder's lock has no effect (NFS).
    let _log = match manifest.segments.last().filter(|_| !folder.is_read_only()) {
        Some(newest) => folder.lock_log(newest.id)?,
        None => None,
    };
    let schema = Arc::new(manifest.schema()?);
    let mut patient =
        FolderUnderRepair { folder: &folder, schema, manifest, repair: Repair::default(), damaged: Vec::new() };
    let centroids = patient.examine_centroids();
    let mut segments = Vec::new();
    for place in 0..patient.manifest.segments.len() {
        segments.push(patient.examine_segment(place, centroids.as_ref())?);
    }
    let dead = patient.settle(&mut segments)?;
    if apply && !patient.repair.findings.is_empty() {
        patient.apply(segments, &dead)?;
        patient.repair.applied = true;
    }
    Ok(patient.repair)
}

impl FolderUnderRepair<'_> {
    /// Records damage. Other errors end the repair.
    fn note(&mut self, error: Error) -> Result<()> {
        let (path, offset, reason) = match error {
            Error::Corrupt { path, offset, reason } => (path, offset, reason),
            Error::NotAFile { path } => (path, 0, "it is not a regular file".to_owned()),
            Error::Io { path, source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                (path, 0, "it is missing".to_owned())
            }
            other => return Err(other),
        };
        self.repair.findings.push(Finding { path, offset, reason });
        Ok(())
    }

    fn examine_centroids(&mut self) -> Option<Centroids> {
        let number = self.manifest.centroids?;
        let path = self.folder.centroids_path(number);
        match Centroids::read(self.folder.sealing(), &path, number, self.schema.dimension) {
            Ok(centroids) => Some(centroids),
            Err(error) => {
                self.lose_index(error, path);
                None
            }
        }
    }

    fn lose_index(&mut self, error: Error, path: PathBuf) {
        let reason = error.to_string();
        if self.note(error).is_err() {
            self.repair.findings.push(Finding { path: path.clone(), offset: 0, reason });
        }
        self.repair.index_lost = true;
        self.damaged.push(path);
    }

    fn examine_segment(&mut self, place: usize, centroids: Option<&Centroids>) -> Result<Examination> {
        let listed = self.manifest.segments[place];
        let found = examine(self.folder, &self.schema, &listed, ending_of(&self.manifest, place));
        let sound = found.and_then(|found| {
            found.verify_rows(&self.schema)?;
            found.attach(&self.schema, false)
        });
        match sound {
            Ok(mut recovered) => {
                if let (true, Some(centroids)) = (listed.lists, centroids) {
                    let path = self.folder.lists_path(listed.id);
                    match Lists::read(self.folder.sealing(), &path, centroids.count(), recovered.segment.count) {
                        Ok(lists) => recovered.segment.lists = Some(Arc::new(lists)),
                        Err(error) => self.lose_index(error, path),
                    }
                }
                Ok(Examination::Sound(Box::new(recovered)))
            }
            Err(error) => {
                self.note(error)?;
                let (rows, log) = (self.folder.rows_path(listed.id), self.folder.log_path(listed.id));
                self.damaged.extend([rows, log, self.folder.lists_path(listed.id)]);
                Ok(Examination::Salvaged(self.salvage(&listed)))
            }
        }
    }

    /// Reads the readable parts of a damaged segment.
    fn salvage(&mut self, listed: &ListedSegment) -> Salvage {
        let (rows_path, log_path) = (self.folder.rows_path(listed.id), self.folder.log_path(listed.id));
        let rows = self.folder.sealing().salvage_file(&rows_path).unwrap_or_default();
        let log = self.folder.sealing().salvage_file(&log_path).unwrap_or_default();
        let layout = Segment::layout(&self.schema);
        let nonce = log.get(16..24).and_then(|nonce| nonce.try_into().ok()).map_or(0, u64::from_le_bytes);
        let mut salvage = Salvage { rows: Vec::new(), kills: Vec::new(), fields: Vec::new() };
        let (mut at, mut number, mut row, mut kept) = (LOG_HEAD_BYTES, 0_u64, 0_u32, 0_u32);
        while let RecordSearch::Record(start) = any_record_behind(&log, at, nonce) {
            let record = read_any_record(&log_path, &log, start, nonce, layout).ok().flatten();
            // Records come in order; a record out of order does not belong to this log.
            let Some(record) =
                record.filter(|record| record.number >= number && (record.is_mark || record.first_row >= row))
            else {
                at = start + 1;
                continue;
            };
            self.repair.removals_lost |= record.number > number;
            (at, number) = (record.end, record.number + 1);
            if !record.is_mark {
                row = record.first_row + record.rows;
                kept += salvage.take(&self.schema, &record, &log, &rows, &rows_path);
            }
            salvage.kills.extend(record.kills);
            salvage.fields.extend(record.fields);
        }
        // If the manifest does not give the number of rows, it is estimated from the last non-zero
        // byte of the rows file.
        let written = rows.iter().rposition(|byte| *byte != 0).map_or(0, |last| last / layout.row_bytes.max(1) + 1);
        let written = u32::try_from(written).unwrap_or(u32::MAX);
        let there = listed.extent.map_or(written, |extent| extent.rows).max(row);
        self.repair.removals_lost |= listed.extent.is_none_or(|extent| extent.records > number);
        self.repair.rows_lost += u64::from(there - kept);
        salvage
    }

    /// Determines the dead rows of the repaired collection, and counts the live ones.
    fn settle(&mut self, segments: &mut [Examination]) -> Result<HashSet<RowAddress>> {
        let mut dead: HashSet<RowAddress> = HashSet::new();
        for examined in segments.iter() {
            dead.extend(match examined {
                Examination::Sound(recovered) => recovered.kills.iter(),
                Examination::Salvaged(salvage) => salvage.kills.iter(),
            });
        }
        let mut owners: HashMap<String, RowAddress> = HashMap::new();
        let mut twice = Vec::new();
        for (listed, examined) in self.manifest.segments.iter().zip(segments) {
            let mut own = |id: &str, row: u32| {
                let slot = RowAddress { segment: listed.id, row };
                if !dead.contains(&slot)
                    && let Some(older) = owners.insert(id.to_owned(), slot)
                {
                    twice.push((listed.id, id.to_owned()));
                    dead.insert(older);
                }
            };
            match examined {
                Examination::Sound(recovered) => {
                    let view: Arc<SegmentView> = recovered.segment.view()?;
                    (0..view.count).for_each(|row| own(view.id_of(row), row));
                }
                Examination::Salvaged(salvage) => salvage.rows.iter().for_each(|row| own(&row.id, row.row)),
            }
        }
        if self.repair.findings.is_empty() {
            for (segment, id) in twice {
                let (path, reason) = (self.folder.log_path(segment), format!("the id `{id}` belongs to two rows"));
                self.repair.findings.push(Finding { path, offset: 0, reason });
            }
        }
        self.repair.records = owners.len() as u64;
        Ok(dead)
    }

    /// Writes new segments for the damaged ones, and a manifest that names them.
    fn apply(&mut self, segments: Vec<Examination>, dead: &HashSet<RowAddress>) -> Result<()> {
        // Remove leftovers of a crash, whose names the new files may need.
        self.folder.tidy(&self.manifest)?;
        let mut fields: Vec<String> = Vec::new();
        let mut sound: HashSet<u32> = HashSet::new();
        for (listed, examined) in self.manifest.segments.iter().zip(&segments) {
            match examined {
                Examination::Sound(recovered) => {
                    sound.insert(listed.id);
                    fields.extend(recovered.fields.iter().cloned());
                }
                Examination::Salvaged(salvage) => fields.extend(salvage.fields.iter().cloned()),
            }
        }
        fields.sort();
        fields.dedup();
        // Write the removals of dropped logs again if they concern rows that stay.
        let kills: Vec<RowAddress> = dead.iter().filter(|slot| sound.contains(&slot.segment)).copied().collect();
        let (old, mut all) = (std::mem::take(&mut self.manifest.segments), Vec::new());
        for (listed, examined) in old.into_iter().zip(segments) {
            all.push(match examined {
                Examination::Sound(recovered) => {
                    let RecoveredSegment { mut segment, takeover, .. } = *recovered;
                    if listed.extent.is_none() {
                        // The log may have a torn end; the segment does not grow any more.
                        takeover.apply(&mut segment)?;
                        segment.flush().map_err(|failure| failure.error)?;
                        segment.trim();
                    }
                    ListedSegment { lists: segment.lists.is_some(), extent: Some(segment.extent()), ..listed }
                }
                Examination::Salvaged(salvage) => {
                    let lives = |row: &&SalvagedRow| !dead.contains(&RowAddress { segment: listed.id, row: row.row });
                    self.write_segment(&[], &[], &salvage.rows.iter().filter(lives).collect::<Vec<_>>())?
                }
            });
        }
        all.push(self.write_segment(&kills, &fields, &[])?);
        self.manifest.segments = all;
        self.manifest.old = false;
        if self.repair.index_lost && self.manifest.segments.iter().all(|segment| !segment.lists) {
            self.manifest.centroids = None;
        }
        self.folder.write_manifest(&self.manifest).map_err(|failure| failure.error)?;
        self.folder.set_aside(&self.damaged);
        FolderContents::read(self.folder, &self.manifest, &self.schema, false)?;
        self.folder.tidy(&self.manifest)
    }

    /// Writes a complete new segment.
    fn write_segment(
        &mut self,
        kills: &[RowAddress],
        fields: &[String],
        rows: &[&SalvagedRow],
    ) -> Result<ListedSegment> {
        const RECORD_ROWS_MAX: usize = 1 << 10;
        let number = self.manifest.take_number()?;
        let mut segment = Segment::create(Some(self.folder), &self.schema, number, false)?;
        let mut add = |addition: Addition<'_>| segment.append(&[addition]).map_err(|failure| failure.error);
        add(Addition { kills, fields, batch: None })?;
        for rows in rows.chunks(RECORD_ROWS_MAX) {
            let mut batch = EncodedBatch { count: rows.len(), ..EncodedBatch::default() };
            for row in rows {
                batch.rows.extend_from_slice(&row.bytes);
                batch.norms.extend(row.norm);
                batch.scales.extend(row.scale);
                batch.push_entry(&row.id, |entries| entries.extend_from_slice(&row.metadata));
            }
            add(Addition { kills: &[], fields: &[], batch: Some(&batch) })?;
        }
        segment.flush().map_err(|failure| failure.error)?;
        segment.trim();
        Ok(ListedSegment { id: number, lists: false, extent: Some(segment.extent()) })
    }
}

impl Salvage {
    /// Takes the rows of a record if they are undamaged, and returns their number.
    fn take(&mut self, schema: &Schema, record: &Record, log: &[u8], rows: &[u8], rows_path: &Path) -> u32 {
        let layout = Segment::layout(schema);
        let start = record.first_row as usize * layout.row_bytes;
        let stored = start..start.saturating_add(record.rows as usize * layout.row_bytes);
        let inline = record.inline_rows.clone().map(|range| &log[range]);
        let inline = inline.filter(|bytes| crc32fast::hash(bytes) == record.rows_checksum);
        let sound = check_record(rows_path, record, layout, rows).is_ok();
        let Some(bytes) = rows.get(stored).filter(|_| sound).or(inline) else { return 0 };
        let (norms, scales) = (floats(&log[record.norms.clone()]), floats(&log[record.scales.clone()]));
        if norms.iter().chain(&scales).any(|number| !(number.is_finite() && *number > 0.0)) {
            return 0;
        }
        let mut places = Vec::new();
        if for_each_entry(log, record, |at, _| places.push(at)).is_none() {
            return 0;
        }
        for (index, bytes) in bytes.chunks_exact(layout.row_bytes).enumerate() {
            let Some((id, metadata)) = places.get(index).and_then(|at| entry(log, *at)) else { continue };
            self.rows.push(SalvagedRow {
                row: record.first_row + index as u32,
                bytes: bytes.to_vec(),
                norm: norms.get(index).copied(),
                scale: scales.get(index).copied(),
                id: id.to_owned(),
                metadata: metadata.to_vec(),
            });
        }
        record.rows
    }
}
