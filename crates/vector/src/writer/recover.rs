//! Reading a stored segment back.
//!
//! The log is read up to the last whole record. Of the rows, those up to the last `rows on disk` of a record had reached
//! the disk; the newest of them are checked against their checksums. Rows behind that are copied from the log where they
//! are inline, and checked where they are not: at the first that does not fit, the log ends. So a segment comes back with
//! every write that was acknowledged and no half one; damage to what had reached the disk is an error, not a loss.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;

use crate::encode::floats;
use crate::error::{Error, Result};
use crate::folder::Folder;
use crate::record::{Layout, Record, Slot, for_each_entry, later_group, read_log_head, read_record};
use crate::region::{Region, open_file};
use crate::schema::Schema;
use crate::segment::{FIRST_RECORD, Segment};

/// The newest rows that are checked whenever a segment is opened, in bytes.
const CHECKED_BYTES_MAX: usize = 16 << 20;

/// A segment that was read back.
pub(crate) struct Recovered {
    pub(crate) segment: Segment,
    /// Rows, of any segment, that its log says are dead.
    pub(crate) kills: Vec<Slot>,
    pub(crate) fields: Vec<String>,
}

/// The two files of a segment.
struct Files {
    rows_path: PathBuf,
    log_path: PathBuf,
    rows: File,
    rows_bytes: usize,
}

/// Reads a segment back.
pub(crate) fn recover(folder: &Folder, schema: &Arc<Schema>, id: u32, durable: bool) -> Result<Recovered> {
    let (rows_path, log_path) = (folder.rows_path(id), folder.log_path(id));
    let (rows, log) = (open_file(&rows_path, false)?, open_file(&log_path, false)?);
    let log_bytes = file_bytes(&log, &log_path)?;
    let mut files = Files { rows_bytes: file_bytes(&rows, &rows_path)?, rows_path, log_path, rows };
    if log_bytes < FIRST_RECORD {
        return Err(Error::corrupt(&files.log_path, 0, "the log has no head"));
    }
    let mut log = Region::in_file(log, &files.log_path, log_bytes)?;
    let whole = log.view();
    let nonce = read_log_head(&files.log_path, whole.bytes(), id)?;
    let layout = Segment::layout(schema);
    let mut records = read_records(&files.log_path, whole.bytes(), nonce, layout)?;
    let synced = records.iter().map(|record| record.rows_synced).max().unwrap_or(0);
    files.check_rows(&mut records, layout, synced, whole.bytes())?;
    let end = records.last().map_or(FIRST_RECORD, |record| record.end);
    log.truncate(end)?;
    let count = records.last().map_or(0, |record| record.first_row + record.rows) as usize;
    let rows_bytes = count.checked_mul(layout.row_bytes).ok_or(Error::Closed)?;
    let rows = Region::in_file(files.rows, &files.rows_path, rows_bytes)?;
    let mut segment = Segment::with_regions(schema, id, nonce, rows, log, false, durable)?;
    segment.records = records.len() as u64;
    segment.rows_synced = synced.min(count as u32);
    load_columns(&mut segment, &files.log_path, whole.bytes(), &records)?;
    let kills = records.iter().flat_map(|record| record.kills.iter().copied()).collect();
    let fields = records.iter().flat_map(|record| record.fields.iter().cloned()).collect();
    Ok(Recovered { segment, kills, fields })
}

/// Checks every row of a segment against its record.
pub(crate) fn verify(folder: &Folder, schema: &Schema, id: u32, log: &[u8], rows: &[u8]) -> Result<()> {
    let (log_path, rows_path) = (folder.log_path(id), folder.rows_path(id));
    let nonce = read_log_head(&log_path, log, id)?;
    let layout = Segment::layout(schema);
    let records = read_records(&log_path, log, nonce, layout)?;
    let end = records.last().map_or(FIRST_RECORD, |record| record.end);
    if end != log.len() {
        return Err(Error::corrupt(&log_path, end as u64, "no whole record where one was written"));
    }
    records.iter().try_for_each(|record| check_record(&rows_path, record, layout, rows))
}

fn file_bytes(file: &File, path: &Path) -> Result<usize> {
    let bytes = file.metadata().map_err(|error| Error::io("read", path, error))?.len();
    usize::try_from(bytes).map_err(|_| Error::corrupt(path, 0, "longer than the address space"))
}

fn read_records(path: &Path, log: &[u8], nonce: u64, layout: Layout) -> Result<Vec<Record>> {
    let (mut records, mut at, mut count) = (Vec::new(), FIRST_RECORD, 0_u32);
    while let Some(record) = read_record(path, log, at, nonce, records.len() as u64, layout)? {
        if record.first_row != count || record.rows_synced > count + record.rows {
            return Err(Error::corrupt(path, at as u64, "a record whose rows do not follow those before it"));
        }
        (at, count) = (record.end, count + record.rows);
        records.push(record);
    }
    if let Some(later) = later_group(log, at, nonce, records.len() as u64) {
        let reason = format!("a record is damaged that was followed by another at byte {later}");
        return Err(Error::corrupt(path, at as u64, reason));
    }
    Ok(records)
}

impl Files {
    /// Checks the rows that need it, copies inline rows that may not have reached the disk, and drops the records from
    /// the first one on whose rows were not promised and are not there.
    fn check_rows(&mut self, records: &mut Vec<Record>, layout: Layout, synced: u32, log: &[u8]) -> Result<()> {
        if synced as usize * layout.row_bytes > self.rows_bytes {
            let reason = format!("{synced} rows were written, and the file ends before them");
            return Err(Error::corrupt(&self.rows_path, self.rows_bytes as u64, reason));
        }
        let old_map = self.map()?;
        let old: &[u8] = old_map.as_ref().map_or(&[], |map| &map[..]);
        let mut unchecked = CHECKED_BYTES_MAX;
        for record in records.iter().rev().filter(|record| record.first_row + record.rows <= synced) {
            let bytes = record.rows as usize * layout.row_bytes;
            if bytes > unchecked {
                break;
            }
            unchecked -= bytes;
            check_record(&self.rows_path, record, layout, old)?;
        }
        let late = |record: &Record| record.first_row + record.rows > synced;
        let lost = records.iter().position(|record| {
            late(record) && record.inline_rows.is_none() && check_record(&self.rows_path, record, layout, old).is_err()
        });
        records.truncate(lost.unwrap_or(records.len()));
        for record in records.iter().filter(|record| late(record)) {
            if let Some(range) = &record.inline_rows {
                let at = SeekFrom::Start(u64::from(record.first_row) * layout.row_bytes as u64);
                let copied = self.rows.seek(at).and_then(|_| self.rows.write_all(&log[range.clone()]));
                copied.map_err(|error| Error::io("write", &self.rows_path, error))?;
            }
        }
        Ok(())
    }

    /// The rows file as it was found.
    fn map(&self) -> Result<Option<Mmap>> {
        if self.rows_bytes == 0 {
            return Ok(None);
        }
        // SAFETY: the folder is locked by this process, which does not shorten the file while the map is used; bytes that
        // inline rows overwrite are not read again through it.
        let map = unsafe { Mmap::map(&self.rows) };
        map.map(Some).map_err(|error| Error::io("map", &self.rows_path, error))
    }
}

fn check_record(path: &Path, record: &Record, layout: Layout, rows: &[u8]) -> Result<()> {
    let start = record.first_row as usize * layout.row_bytes;
    let stored = rows.get(start..).and_then(|rest| rest.get(..record.rows as usize * layout.row_bytes));
    match stored {
        Some(stored) if crc32fast::hash(stored) == record.rows_checksum => Ok(()),
        Some(_) => Err(Error::corrupt(path, start as u64, format!("{} rows do not fit their checksum", record.rows))),
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
        if segment.schema.shares_scale() {
            let scales = floats(&log[record.scales.clone()]);
            let shared = if segment.count == 0 { scales.first().copied().unwrap_or(0.0) } else { segment.scale };
            if scales.iter().any(|scale| *scale != shared) {
                let reason = "rows of one segment that do not share their scale";
                return Err(Error::corrupt(path, record.scales.start as u64, reason));
            }
            segment.scale = shared;
        }
        segment.count += record.rows;
    }
    segment.entries.append(bytemuck::cast_slice(&offsets))
}

/// Checks that lengths and scales are numbers that a search can divide by.
fn check_column(path: &Path, offset: u64, numbers: &[u8]) -> Result<()> {
    match floats(numbers).iter().find(|number| !(number.is_finite() && **number > 0.0)) {
        Some(number) => Err(Error::corrupt(path, offset, format!("a length or a scale of {number}"))),
        None => Ok(()),
    }
}
