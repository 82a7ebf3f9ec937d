//! Reads a stored segment in two steps. [`examine`] reads and checks, and changes nothing.
//! [`SoundFiles::attach`] makes a segment that can be read. A writer then takes the files over
//! ([`Takeover`]) after everything in the folder was found sound: nothing is cut, copied or deleted
//! before that.
//!
//! The checks:
//!
//! 1. The log is read completely, record by record, each with its checksum. If the manifest gives
//!    its length, the log must have exactly those records. Only the newest log of a collection that
//!    was not closed properly may have a torn end. The torn end is cut off, unless later data
//!    proves that it was acknowledged.
//! 2. The rows up to the last `rows on disk` of a record had reached the disk; the newest of them
//!    ([`CHECKED_BYTES_MAX`] of each segment) are checked against their checksums. The others are
//!    checked in the background once the collection is open, and by [`verify`]. In an encrypted
//!    collection all rows are checked, since they were decrypted already.
//! 3. Later rows are copied from the log if they are inline, and checked otherwise. The log ends at
//!    the first rows that do not match, unless it is proved that they had been acknowledged.
//!
//! A recovered segment therefore has every acknowledged write and no incomplete write. Anything
//! else is an error that names the file and the offset, and leaves the files unchanged.
//!
//! Complete records that no mark follows are *unsettled*: their write was under way when a writer
//! died, or is under way now. Readers and writers count the same ones, and settle them first, so
//! that no later crash takes back what was shown:
//!
//! * A reader waits until both files have reached the disk and reads the log again. It counts the
//!   unsettled records that it found the first time and that are still there: a write that fails is
//!   cut off at once, and not one that is found twice.
//! * A writer waits for the disk as well, and then marks them as acknowledged.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::encode::floats;
use crate::error::{Error, Result};
use crate::folder::{Folder, ListedSegment};
use crate::record::{
    Record, RecordLayout, RecordSearch, RowAddress, for_each_entry, proof_behind, read_log_head, read_record,
};
use crate::region::{Access, CAPACITY_BYTES_MIN, Region};
use crate::schema::Schema;
use crate::segment::{FIRST_RECORD, Segment};
use crate::source::SourceFile;

/// Bytes of the newest rows that are always checked when a segment is opened.
pub(crate) const CHECKED_BYTES_MAX: usize = 16 << 20;

/// A segment that was read back. It is read-only until its files are taken over.
pub(crate) struct RecoveredSegment {
    pub(crate) segment: Segment,
    /// Rows of any segment that are dead according to this log.
    pub(crate) kills: Vec<RowAddress>,
    pub(crate) fields: Vec<String>,
    pub(crate) takeover: Takeover,
}

/// The work that remains before a segment can be written to.
pub(crate) struct Takeover {
    files: Files,
    log_bytes: usize,
    rows_bytes: usize,
    /// Rows that may not be in the rows file: their offset there, and their range in the log.
    patches: Vec<(u64, Range<usize>)>,
    /// Whether the log ends with records that no mark follows.
    is_unsettled: bool,
}

/// How much is known about the end of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The manifest gives the end.
    Known,
    /// The newest log of a collection that was not closed properly.
    Open,
    /// The newest log of version 1, for which the manifest gives no length.
    Unknown,
    /// An older log of version 1. Only zeroes follow its last record.
    Sealed,
}

/// A segment's files, after they were read and found sound.
pub(crate) struct SoundFiles {
    id: u32,
    nonce: u64,
    files: Files,
    records: Vec<Record>,
    synced: u32,
    ending: Ending,
}

/// The two files of a segment.
pub(crate) struct Files {
    rows: SourceFile,
    log: SourceFile,
}

/// Reads and checks a segment. Every complete record counts. A reader settles the last ones first:
/// see the module.
pub(crate) fn examine(folder: &Folder, schema: &Schema, listed: &ListedSegment, ending: Ending) -> Result<SoundFiles> {
    let mut found = examine_once(folder, schema, listed, ending)?;
    if folder.is_read_only() && found.is_unsettled() {
        found.files.sync();
        let seen = found.records.len() as u64;
        found = examine_once(folder, schema, listed, ending)?;
        let settled = found.records.iter().map(|record| record.acknowledged).max().unwrap_or(0).max(seen);
        found.records.retain(|record| record.number < settled);
    }
    Ok(found)
}

fn examine_once(folder: &Folder, schema: &Schema, listed: &ListedSegment, ending: Ending) -> Result<SoundFiles> {
    let reads = folder.is_read_only();
    let files = Files::open(folder, listed.id, if reads { Access::Read } else { Access::Write })?;
    let layout = Segment::layout(schema);
    let nonce = read_log_head(&files.log.path, files.log(), listed.id)?;
    let log = match listed.extent {
        Some(extent) => files.first_of_log(extent.log_bytes)?,
        None => files.log(),
    };
    let (mut records, end) = read_records(&files.log.path, log, nonce, layout)?;
    files.check_end(listed, ending, nonce, &records, end, layout)?;
    let synced = records.iter().map(|record| record.rows_synced).max().unwrap_or(0);
    files.check_rows(&mut records, layout, synced, ending)?;
    Ok(SoundFiles { id: listed.id, nonce, files, records, synced, ending })
}

impl SoundFiles {
    /// Number of rows.
    pub(crate) fn rows(&self) -> u32 {
        self.records.iter().map(|record| record.rows).sum()
    }

    /// Checks every row that had reached the disk against its record.
    pub(crate) fn verify_rows(&self, schema: &Schema) -> Result<()> {
        let layout = Segment::layout(schema);
        self.late(false).try_for_each(|record| check_record(&self.files.rows.path, record, layout, self.files.rows()))
    }

    /// Makes a segment over the files, unchanged. Inline rows that did not reach the rows file are
    /// patched in memory.
    pub(crate) fn attach(self, schema: &Arc<Schema>, durable: bool) -> Result<RecoveredSegment> {
        let layout = Segment::layout(schema);
        let (log_bytes, rows_bytes) = (self.end(), self.rows() as usize * layout.row_bytes);
        let (rows, log) = (self.attach_rows(layout, rows_bytes)?, self.files.log.region(log_bytes)?);
        let patch = |record: &Record| {
            let at = u64::from(record.first_row) * layout.row_bytes as u64;
            record.inline_rows.clone().map(|range| (at, range))
        };
        let (patches, is_unsettled) = (self.late(true).filter_map(patch).collect(), self.is_unsettled());
        let mut segment = Segment::with_regions(schema, self.id, self.nonce, rows, log, false, durable)?;
        let view = segment.log.view();
        segment.records = self.records.len() as u64;
        load_columns(&mut segment, &self.files.log.path, view.bytes(), &self.records)?;
        segment.rows_synced = self.synced.min(segment.count);
        let SoundFiles { records, files, .. } = self;
        let kills = records.iter().flat_map(|record| record.kills.iter().copied()).collect();
        let fields = records.into_iter().flat_map(|record| record.fields).collect();
        let takeover = Takeover { files, log_bytes, rows_bytes, patches, is_unsettled };
        Ok(RecoveredSegment { segment, kills, fields, takeover })
    }

    fn attach_rows(&self, layout: RecordLayout, rows_bytes: usize) -> Result<Region> {
        let files = &self.files;
        let fits = |record: &Record| check_record(&files.rows.path, record, layout, files.rows()).is_ok();
        if files.rows().len() >= rows_bytes && self.late(true).all(fits) {
            return files.rows.region(rows_bytes);
        }
        let mut patched = Region::in_memory()?;
        for record in &self.records {
            let start = record.first_row as usize * layout.row_bytes;
            let stored = start..start + record.rows as usize * layout.row_bytes;
            let inline = record.inline_rows.as_ref().map(|range| &files.log()[range.clone()]);
            patched.append(inline.or(files.rows().get(stored)).unwrap_or_default())?;
        }
        Ok(patched)
    }

    /// Whether the log ends with records that no mark follows. Version 1 has no marks.
    fn is_unsettled(&self) -> bool {
        self.ending == Ending::Open && self.records.last().is_some_and(|last| !last.is_mark)
    }

    fn end(&self) -> usize {
        self.records.last().map_or(FIRST_RECORD, |record| record.end)
    }

    /// With `late`, the records whose rows may not be on disk; without, the records whose rows are.
    fn late(&self, late: bool) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(move |record| (record.first_row + record.rows > self.synced) == late)
    }
}

impl Takeover {
    /// Whether rows must be copied from the log into the rows file.
    pub(crate) fn has_patches(&self) -> bool {
        !self.patches.is_empty()
    }

    /// Makes the segment writable: copies inline rows that may not be on disk, cuts off everything
    /// that does not count, and settles the last records.
    pub(crate) fn apply(self, segment: &mut Segment) -> Result<()> {
        let Takeover { files, log_bytes, rows_bytes, patches, is_unsettled } = self;
        let Files { rows, log } = files;
        let patched = patches.into_iter().map(|(at, range)| (at, &log.bytes()[range]));
        let rows = rows.take_over(rows_bytes, &segment.rows.view(), patched)?;
        let log = log.take_over(log_bytes, &segment.log.view(), std::iter::empty())?;
        segment.replace_regions(rows, log);
        if is_unsettled { segment.settle() } else { Ok(()) }
    }
}

/// Checks every row of a segment against its record. `go_on` receives the number of bytes read, and
/// stops the check by returning false.
pub(crate) fn verify(
    folder: &Folder,
    schema: &Schema,
    id: u32,
    (log, rows): (&[u8], &[u8]),
    mut go_on: impl FnMut(usize) -> bool,
) -> Result<()> {
    let (log_path, rows_path) = (folder.log_path(id), folder.rows_path(id));
    // Decrypted bytes are a copy in memory, so the files are read again.
    let now = match folder.is_sealed() {
        true => folder.read_again(&log_path)?.zip(folder.read_again(&rows_path)?),
        false => None,
    };
    let is_same = now.as_ref().is_none_or(|(now, _)| now.get(..log.len()) == Some(log));
    if !is_same {
        return Err(Error::corrupt(&log_path, 0, "it is not what it was when it was opened"));
    }
    let nonce = read_log_head(&log_path, log, id)?;
    let layout = Segment::layout(schema);
    let (records, end) = read_records(&log_path, log, nonce, layout)?;
    if end != log.len() {
        return Err(Error::corrupt(&log_path, end as u64, "no whole record where one was written"));
    }
    for record in &records {
        if !go_on(record.rows as usize * layout.row_bytes) {
            return Ok(());
        }
        check_record(&rows_path, record, layout, rows)?;
        // Rows that are also inline in the log may not have reached the rows file.
        if let Some((_, now)) = now.as_ref().filter(|_| record.inline_rows.is_none()) {
            check_record(&rows_path, record, layout, now)?;
        }
    }
    Ok(())
}

/// The records of a log up to the first incomplete one, and the offset where that one should be.
fn read_records(path: &Path, log: &[u8], nonce: u64, layout: RecordLayout) -> Result<(Vec<Record>, usize)> {
    let (mut records, mut at, mut count) = (Vec::new(), FIRST_RECORD, 0_u32);
    while let Some(mut record) = read_record(path, log, at, nonce, records.len() as u64, layout)? {
        if record.is_mark {
            record.first_row = count;
        }
        if record.first_row != count || record.rows_synced > count.saturating_add(record.rows) {
            return Err(Error::corrupt(path, at as u64, "a record whose rows do not follow those before it"));
        }
        (at, count) = (record.end, count + record.rows);
        records.push(record);
    }
    Ok((records, at))
}

impl Files {
    /// Opens and maps the files of a segment.
    pub(crate) fn open(folder: &Folder, id: u32, access: Access) -> Result<Files> {
        let rows = SourceFile::open(folder, folder.rows_path(id), access, true)?;
        let log = SourceFile::open(folder, folder.log_path(id), access, false)?;
        Ok(Files { rows, log })
    }

    pub(crate) fn log(&self) -> &[u8] {
        self.log.bytes()
    }

    pub(crate) fn rows(&self) -> &[u8] {
        self.rows.bytes()
    }

    /// Waits until both files have reached the disk. Media that a reader cannot sync, such as
    /// read-only ones, hold already what they hold.
    fn sync(&self) {
        self.rows.sync();
        self.log.sync();
    }

    fn first_of_log(&self, bytes: u64) -> Result<&[u8]> {
        let first = usize::try_from(bytes).ok().and_then(|bytes| self.log().get(..bytes));
        let end = self.log.file_bytes;
        first.ok_or_else(|| Error::corrupt(&self.log.path, end, format!("it was cut; it had {bytes} bytes")))
    }

    /// Checks that a log ends at the expected offset.
    fn check_end(
        &self,
        listed: &ListedSegment,
        ending: Ending,
        nonce: u64,
        records: &[Record],
        end: usize,
        layout: RecordLayout,
    ) -> Result<()> {
        let damaged = |reason: String| Err(Error::corrupt(&self.log.path, end as u64, reason));
        let (log, number) = (self.log(), records.len() as u64);
        if let Some(extent) = listed.extent {
            let rows: u32 = records.iter().map(|record| record.rows).sum();
            if end as u64 != extent.log_bytes || number != extent.records || rows != extent.rows {
                return damaged(format!("record {number} of {} is damaged", extent.records));
            }
            let next = read_record(&self.log.path, log, end, nonce, number, layout)?;
            return match next.is_some_and(|record| !record.is_mark) {
                true => {
                    damaged("records follow of which the manifest knows nothing; it is older than the log".to_owned())
                }
                false => Ok(()),
            };
        }
        if ending == Ending::Open && !self.log.file_bytes.is_multiple_of(CAPACITY_BYTES_MIN as u64) {
            return damaged(format!("the log was cut at byte {}", self.log.file_bytes));
        }
        if ending == Ending::Sealed && log[end..].iter().any(|byte| *byte != 0) {
            return damaged(format!("record {number} is damaged"));
        }
        match proof_behind(log, end, nonce, number) {
            RecordSearch::Nothing => Ok(()),
            RecordSearch::Record(later) => {
                damaged(format!("record {number} is damaged, and was followed by another at byte {later}"))
            }
            RecordSearch::Unclear => {
                damaged(format!("record {number} is damaged, and too much that follows looks like records"))
            }
        }
    }

    /// Checks the rows that need it. If rows that were not acknowledged are missing, drops their
    /// record and all later ones.
    fn check_rows(&self, records: &mut Vec<Record>, layout: RecordLayout, synced: u32, ending: Ending) -> Result<()> {
        let rows = self.rows();
        if (synced as usize).saturating_mul(layout.row_bytes) > rows.len() {
            let reason = format!("{synced} rows were written, and the file ends before them");
            return Err(Error::corrupt(&self.rows.path, rows.len() as u64, reason));
        }
        let mut unchecked = if self.rows.is_sealed() { usize::MAX } else { CHECKED_BYTES_MAX };
        for record in records.iter().rev().filter(|record| record.first_row + record.rows <= synced) {
            let bytes = record.rows as usize * layout.row_bytes;
            if bytes > unchecked {
                break;
            }
            unchecked -= bytes;
            check_record(&self.rows.path, record, layout, rows)?;
        }
        let promised = match ending {
            Ending::Known | Ending::Sealed => u64::MAX,
            Ending::Open | Ending::Unknown => records.iter().map(|record| record.on_disk).max().unwrap_or(0),
        };
        let mut lost = None;
        for (place, record) in records.iter().enumerate() {
            if record.first_row + record.rows <= synced || record.inline_rows.is_some() {
                continue;
            }
            let checked = check_record(&self.rows.path, record, layout, rows);
            if record.number < promised {
                checked?;
            } else if checked.is_err() {
                lost = Some(place);
                break;
            }
        }
        records.truncate(lost.unwrap_or(records.len()));
        Ok(())
    }
}

/// Checks the rows of a record.
pub(crate) fn check_record(path: &Path, record: &Record, layout: RecordLayout, rows: &[u8]) -> Result<()> {
    let start = record.first_row as usize * layout.row_bytes;
    let stored = rows.get(start..).and_then(|rest| rest.get(..record.rows as usize * layout.row_bytes));
    match stored {
        Some(stored) if record.is_mark || crc32fast::hash(stored) == record.rows_checksum => Ok(()),
        Some(_) => Err(Error::corrupt(path, start as u64, format!("{} rows do not fit their checksum", record.rows))),
        None if record.rows == 0 => Ok(()),
        None => Err(Error::corrupt(path, start as u64, format!("{} rows are missing", record.rows))),
    }
}

fn load_columns(segment: &mut Segment, path: &Path, log: &[u8], records: &[Record]) -> Result<()> {
    let mut offsets = Vec::new();
    for record in records {
        let whole = for_each_entry(log, record, |at, _| offsets.push(at as u64));
        let place = record.entries.start as u64;
        whole.ok_or_else(|| Error::corrupt(path, place, "entries that do not fill their record"))?;
        for (column, range) in [(&mut segment.norms, &record.norms), (&mut segment.scales, &record.scales)] {
            if let Some(column) = column {
                let numbers = &log[range.clone()];
                check_column(path, range.start as u64, numbers)?;
                column.append(numbers)?;
            }
        }
        segment.count += record.rows;
    }
    segment.entries.append(bytemuck::cast_slice(&offsets))
}

/// Checks that lengths and scales are finite and positive, so that a search can divide by them.
fn check_column(path: &Path, offset: u64, numbers: &[u8]) -> Result<()> {
    match floats(numbers).iter().find(|number| !(number.is_finite() && **number > 0.0)) {
        Some(number) => Err(Error::corrupt(path, offset, format!("a length or a scale of {number}"))),
        None => Ok(()),
    }
}
