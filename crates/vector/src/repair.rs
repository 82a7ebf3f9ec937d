//! Mending a damaged collection: whatever can be read is kept, and what is lost is said.
//!
//! 1. Every file is read and checked: all rows, all logs, the index.
//! 2. Of a segment that is damaged, the records are looked for one by one, also behind the damage. A record counts if its
//!    checksum fits; its rows, if theirs does, in their file or in the log. They go into a new segment.
//! 3. Removals that stood in a lost part of a log are unknown: such records come back. Where that leaves an id with two
//!    records, the newer one stays.
//! 4. An index that is damaged is given up. It can be built again.
//!
//! The new segments count once the manifest names them, so that a crash in between leaves everything as it was. Damaged files
//! are kept beside the others, with `.damaged` behind their names. A manifest that is damaged cannot be mended: it alone says
//! what the collection is made of.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::collection::open::{Stored, ending_of};
use crate::encode::{Encoded, floats};
use crate::error::{Error, Result};
use crate::folder::{Folder, ListedSegment, Manifest, Opener};
use crate::ivf::{Centroids, Lists};
use crate::record::{Behind, LOG_HEAD_BYTES, Record, Slot, any_record_behind, entry, for_each_entry, read_any_record};
use crate::schema::Schema;
use crate::segment::{Addition, Segment, SegmentView};
use crate::writer::recover::{Recovered, check_record, examine};

/// What a repair found, and what it did or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// What is damaged; empty where nothing is.
    pub findings: Vec<Finding>,
    /// Records that the collection has afterwards.
    pub records: u64,
    /// Rows that are lost for certain. Some of them may have been removed before.
    pub rows_lost: u64,
    /// Whether removals may be lost as well, so that removed records come back.
    pub removals_lost: bool,
    /// Whether the index is lost, and with it the age of rows that were sorted into its lists: of those, hits of equal score come
    /// in the order of the lists from then on.
    pub index_lost: bool,
    /// Whether it was done. Otherwise nothing was changed.
    pub applied: bool,
}

/// A damaged place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub path: PathBuf,
    /// Where in it the damage begins, in bytes.
    pub offset: u64,
    /// What is wrong there.
    pub reason: String,
}

/// A segment after it was looked at.
enum Examined {
    Sound(Box<Recovered>),
    Salvaged(Salvage),
}

/// What can be read of a damaged segment.
struct Salvage {
    rows: Vec<SalvagedRow>,
    kills: Vec<Slot>,
    fields: Vec<String>,
}

/// A row that is whole.
struct SalvagedRow {
    /// Its place in the damaged segment.
    row: u32,
    bytes: Vec<u8>,
    norm: Option<f32>,
    scale: Option<f32>,
    id: String,
    metadata: Vec<u8>,
}

/// A collection's folder being mended.
struct Patient<'a> {
    folder: &'a Folder,
    schema: Arc<Schema>,
    manifest: Manifest,
    repair: Repair,
    /// The files that will be set aside.
    damaged: Vec<PathBuf>,
}

/// Looks for damage, and mends it where `apply` says so.
pub(crate) fn repair(path: &Path, opener: Opener<'_>, apply: bool) -> Result<Repair> {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
    // Held until the end: nobody writes meanwhile.
    let mut _unwritten = None;
    let (folder, manifest) = match Folder::open(path, opener) {
        // Where nothing can be written, nobody writes: looking needs no lock.
        Err(Error::Io { source, .. }) if !apply && source.kind() == ReadOnlyFilesystem => {
            Folder::open_read_only(path, opener)?
        }
        // Another user may.
        Err(Error::Io { source, .. }) if !apply && source.kind() == PermissionDenied => {
            _unwritten = Folder::keep_writers_out(path)?;
            Folder::open_read_only(path, opener)?
        }
        other => other?,
    };
    let schema = Arc::new(manifest.schema()?);
    let mut patient = Patient { folder: &folder, schema, manifest, repair: Repair::default(), damaged: Vec::new() };
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

impl Patient<'_> {
    /// Notes damage. Other failures end the repair.
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

    fn examine_segment(&mut self, place: usize, centroids: Option<&Centroids>) -> Result<Examined> {
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
                Ok(Examined::Sound(Box::new(recovered)))
            }
            Err(error) => {
                self.note(error)?;
                let (rows, log) = (self.folder.rows_path(listed.id), self.folder.log_path(listed.id));
                self.damaged.extend([rows, log, self.folder.lists_path(listed.id)]);
                Ok(Examined::Salvaged(self.salvage(&listed)))
            }
        }
    }

    /// Reads what can be read of a damaged segment.
    fn salvage(&mut self, listed: &ListedSegment) -> Salvage {
        let (rows_path, log_path) = (self.folder.rows_path(listed.id), self.folder.log_path(listed.id));
        let rows = self.folder.sealing().salvage_file(&rows_path).unwrap_or_default();
        let log = self.folder.sealing().salvage_file(&log_path).unwrap_or_default();
        let layout = Segment::layout(&self.schema);
        let nonce = log.get(16..24).and_then(|nonce| nonce.try_into().ok()).map_or(0, u64::from_le_bytes);
        let mut salvage = Salvage { rows: Vec::new(), kills: Vec::new(), fields: Vec::new() };
        let (mut at, mut number, mut row, mut kept) = (LOG_HEAD_BYTES, 0_u64, 0_u32, 0_u32);
        while let Behind::Record(start) = any_record_behind(&log, at, nonce) {
            let record = read_any_record(&log_path, &log, start, nonce, layout).ok().flatten();
            // Records come in order; what does not is none of this log.
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
        // Where the manifest does not know, the rows themselves tell how many there were.
        let written = rows.iter().rposition(|byte| *byte != 0).map_or(0, |last| last / layout.row_bytes.max(1) + 1);
        let written = u32::try_from(written).unwrap_or(u32::MAX);
        let there = listed.extent.map_or(written, |extent| extent.rows).max(row);
        self.repair.removals_lost |= listed.extent.is_none_or(|extent| extent.records > number);
        self.repair.rows_lost += u64::from(there - kept);
        salvage
    }

    /// Which rows are dead once everything is put together; counts those that live.
    fn settle(&mut self, segments: &mut [Examined]) -> Result<HashSet<Slot>> {
        let mut dead: HashSet<Slot> = HashSet::new();
        for examined in segments.iter() {
            dead.extend(match examined {
                Examined::Sound(recovered) => recovered.kills.iter(),
                Examined::Salvaged(salvage) => salvage.kills.iter(),
            });
        }
        let mut owners: HashMap<String, Slot> = HashMap::new();
        let mut twice = Vec::new();
        for (listed, examined) in self.manifest.segments.iter().zip(segments) {
            let mut own = |id: &str, row: u32| {
                let slot = Slot { segment: listed.id, row };
                if !dead.contains(&slot)
                    && let Some(older) = owners.insert(id.to_owned(), slot)
                {
                    twice.push((listed.id, id.to_owned()));
                    dead.insert(older);
                }
            };
            match examined {
                Examined::Sound(recovered) => {
                    let view: Arc<SegmentView> = recovered.segment.view()?;
                    (0..view.count).for_each(|row| own(view.id_of(row), row));
                }
                Examined::Salvaged(salvage) => salvage.rows.iter().for_each(|row| own(&row.id, row.row)),
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

    /// Writes new segments for damaged ones, and a manifest that names them.
    fn apply(&mut self, segments: Vec<Examined>, dead: &HashSet<Slot>) -> Result<()> {
        // What a crash has left over would be in the way of new files.
        self.folder.tidy(&self.manifest)?;
        let mut fields: Vec<String> = Vec::new();
        let mut sound: HashSet<u32> = HashSet::new();
        for (listed, examined) in self.manifest.segments.iter().zip(&segments) {
            match examined {
                Examined::Sound(recovered) => {
                    sound.insert(listed.id);
                    fields.extend(recovered.fields.iter().cloned());
                }
                Examined::Salvaged(salvage) => fields.extend(salvage.fields.iter().cloned()),
            }
        }
        fields.sort();
        fields.dedup();
        // What the logs that are given up said about rows that stay is said again.
        let kills: Vec<Slot> = dead.iter().filter(|slot| sound.contains(&slot.segment)).copied().collect();
        let (old, mut all) = (std::mem::take(&mut self.manifest.segments), Vec::new());
        for (listed, examined) in old.into_iter().zip(segments) {
            all.push(match examined {
                Examined::Sound(recovered) => {
                    let Recovered { mut segment, takeover, .. } = *recovered;
                    if listed.extent.is_none() {
                        // It may have a torn end, and does not grow any more.
                        takeover.apply(&mut segment)?;
                        segment.flush().map_err(|failure| failure.error)?;
                        segment.trim();
                    }
                    ListedSegment { lists: segment.lists.is_some(), extent: Some(segment.extent()), ..listed }
                }
                Examined::Salvaged(salvage) => {
                    let lives = |row: &&SalvagedRow| !dead.contains(&Slot { segment: listed.id, row: row.row });
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
        Stored::read(self.folder, &self.manifest, &self.schema, false)?;
        self.folder.tidy(&self.manifest)
    }

    /// A new segment, complete.
    fn write_segment(&mut self, kills: &[Slot], fields: &[String], rows: &[&SalvagedRow]) -> Result<ListedSegment> {
        const RECORD_ROWS_MAX: usize = 1 << 10;
        let number = self.manifest.take_number()?;
        let mut segment = Segment::create(Some(self.folder), &self.schema, number, false)?;
        let mut add = |addition: Addition<'_>| segment.append(&[addition]).map_err(|failure| failure.error);
        add(Addition { kills, fields, batch: None })?;
        for rows in rows.chunks(RECORD_ROWS_MAX) {
            let mut batch = Encoded { count: rows.len(), ..Encoded::default() };
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
    /// Takes the rows of a record, where they are whole, and tells how many it took.
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
