//! Reading a stored segment back, in two steps: [`examine`] reads and checks and changes nothing, and [`Found::attach`] makes
//! a segment of it that can be looked at. A writer then takes the files over ([`Takeover`]), once everything in the folder was
//! found in order: nothing is cut, copied or deleted before that.
//!
//! What is checked, and when:
//!
//! 1. The log is read whole, record by record, each with its checksum. Where the manifest says how long it is, it must have
//!    exactly those records. Only the newest log of a collection that was not closed in order may have a torn end, which is
//!    cut off; and only where nothing that follows proves that it was acknowledged.
//! 2. Of the rows, those up to the last `rows on disk` of a record had reached the disk; the newest of them
//!    ([`CHECKED_BYTES_MAX`] of each segment) are checked against their checksums. All others are checked in the background
//!    once the collection is open, and by [`verify`]. Of an encrypted collection all are checked, since they were unsealed already.
//! 3. Rows behind that are copied from the log where they are inline, and checked where they are not: at the first that does
//!    not fit, the log ends, unless it is proved that they had been acknowledged.
//!
//! So a segment comes back with every write that was acknowledged and no half one; everything else is an error that names the
//! file and the place, and leaves the files as they are.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::encode::floats;
use crate::error::{Error, Result};
use crate::folder::{Folder, ListedSegment};
use crate::record::{Behind, Layout, Record, Slot, for_each_entry, proof_behind, read_log_head, read_record};
use crate::region::{Access, CAPACITY_BYTES_MIN, Region};
use crate::schema::Schema;
use crate::segment::{FIRST_RECORD, Segment};
use crate::source::Source;

/// The newest rows that are checked whenever a segment is opened, in bytes.
pub(crate) const CHECKED_BYTES_MAX: usize = 16 << 20;

/// A segment that was read back, and can only be read until its files are taken over.
pub(crate) struct Recovered {
    pub(crate) segment: Segment,
    /// Rows, of any segment, that its log says are dead.
    pub(crate) kills: Vec<Slot>,
    pub(crate) fields: Vec<String>,
    pub(crate) takeover: Takeover,
}

/// What is left to do before a segment can be written to.
pub(crate) struct Takeover {
    files: Files,
    log_bytes: usize,
    rows_bytes: usize,
    /// Rows that may not have reached their file: where they belong, and where they lie in the log.
    patches: Vec<(u64, Range<usize>)>,
}

/// What is known of the end of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It is where the manifest says.
    Known,
    /// The newest log of a collection that was not closed in order.
    Open,
    /// The newest log of version 1, of which the manifest says nothing.
    Unknown,
    /// Another log of version 1. Nothing but zeroes follows its last record.
    Sealed,
}

/// A segment's files, read and found in order.
pub(crate) struct Found {
    id: u32,
    nonce: u64,
    files: Files,
    records: Vec<Record>,
    synced: u32,
}

/// The two files of a segment.
pub(crate) struct Files {
    rows: Source,
    log: Source,
}

/// Reads a segment and checks it. For a writer, everything that is whole counts; for a reader beside one, what was
/// acknowledged.
pub(crate) fn examine(folder: &Folder, schema: &Schema, listed: &ListedSegment, ending: Ending) -> Result<Found> {
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
    if reads && ending != Ending::Known {
        let acknowledged = records.iter().map(|record| record.acknowledged).max().unwrap_or(0);
        // Version 1 has no marks, so that whatever is whole counts.
        if records.iter().any(|record| record.is_mark) {
            records.retain(|record| record.number < acknowledged);
        }
    }
    Ok(Found { id: listed.id, nonce, files, records, synced })
}

impl Found {
    /// How many rows it has.
    pub(crate) fn rows(&self) -> u32 {
        self.records.iter().map(|record| record.rows).sum()
    }

    /// Checks every row that had reached the disk against its record.
    pub(crate) fn verify_rows(&self, schema: &Schema) -> Result<()> {
        let layout = Segment::layout(schema);
        self.late(false).try_for_each(|record| check_record(&self.files.rows.path, record, layout, self.files.rows()))
    }

    /// A segment over the files as they are. Inline rows that did not reach their file are patched in memory.
    pub(crate) fn attach(self, schema: &Arc<Schema>, durable: bool) -> Result<Recovered> {
        let layout = Segment::layout(schema);
        let (log_bytes, rows_bytes) = (self.end(), self.rows() as usize * layout.row_bytes);
        let (rows, log) = (self.attach_rows(layout, rows_bytes)?, self.files.log.region(log_bytes)?);
        let patch = |record: &Record| {
            let at = u64::from(record.first_row) * layout.row_bytes as u64;
            record.inline_rows.clone().map(|range| (at, range))
        };
        let patches = self.late(true).filter_map(patch).collect();
        let mut segment = Segment::with_regions(schema, self.id, self.nonce, rows, log, false, durable)?;
        let view = segment.log.view();
        segment.records = self.records.len() as u64;
        load_columns(&mut segment, &self.files.log.path, view.bytes(), &self.records)?;
        segment.rows_synced = self.synced.min(segment.count);
        let Found { records, files, .. } = self;
        let kills = records.iter().flat_map(|record| record.kills.iter().copied()).collect();
        let fields = records.into_iter().flat_map(|record| record.fields).collect();
        Ok(Recovered { segment, kills, fields, takeover: Takeover { files, log_bytes, rows_bytes, patches } })
    }

    fn attach_rows(&self, layout: Layout, rows_bytes: usize) -> Result<Region> {
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

    fn end(&self) -> usize {
        self.records.last().map_or(FIRST_RECORD, |record| record.end)
    }

    /// The records whose rows may not have reached the disk, or those whose rows have.
    fn late(&self, late: bool) -> impl Iterator<Item = &Record> {
        self.records.iter().filter(move |record| (record.first_row + record.rows > self.synced) == late)
    }
}

impl Takeover {
    /// Whether rows are to be copied from the log into their file.
    pub(crate) fn has_patches(&self) -> bool {
        !self.patches.is_empty()
    }

    /// Makes the segment one that can be written to: copies inline rows that may not have reached the disk, and cuts off what
    /// does not count.
    pub(crate) fn apply(self, segment: &mut Segment) -> Result<()> {
        let Takeover { files, log_bytes, rows_bytes, patches } = self;
        let Files { rows, log } = files;
        let patched = patches.into_iter().map(|(at, range)| (at, &log.bytes()[range]));
        let rows = rows.take_over(rows_bytes, &segment.rows.view(), patched)?;
        let log = log.take_over(log_bytes, &segment.log.view(), std::iter::empty())?;
        segment.replace_regions(rows, log);
        Ok(())
    }
}

/// Checks every row of a segment against its record. `go_on` is told how many bytes were read, and may end it.
pub(crate) fn verify(
    folder: &Folder,
    schema: &Schema,
    id: u32,
    (log, rows): (&[u8], &[u8]),
    mut go_on: impl FnMut(usize) -> bool,
) -> Result<()> {
    let (log_path, rows_path) = (folder.log_path(id), folder.rows_path(id));
    // What was unsealed is a copy: the files are read again.
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
        // Those that the log has as well may not have reached their file.
        if let Some((_, now)) = now.as_ref().filter(|_| record.inline_rows.is_none()) {
            check_record(&rows_path, record, layout, now)?;
        }
    }
    Ok(())
}

/// The records of a log up to the first that is not whole, and where that should have been.
fn read_records(path: &Path, log: &[u8], nonce: u64, layout: Layout) -> Result<(Vec<Record>, usize)> {
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
        let rows = Source::open(folder, folder.rows_path(id), access, true)?;
        let log = Source::open(folder, folder.log_path(id), access, false)?;
        Ok(Files { rows, log })
    }

    pub(crate) fn log(&self) -> &[u8] {
        self.log.bytes()
    }

    pub(crate) fn rows(&self) -> &[u8] {
        self.rows.bytes()
    }

    fn first_of_log(&self, bytes: u64) -> Result<&[u8]> {
        let first = usize::try_from(bytes).ok().and_then(|bytes| self.log().get(..bytes));
        let end = self.log.file_bytes;
        first.ok_or_else(|| Error::corrupt(&self.log.path, end, format!("it was cut; it had {bytes} bytes")))
    }

    /// Checks that a log ends where it should.
    fn check_end(
        &self,
        listed: &ListedSegment,
        ending: Ending,
        nonce: u64,
        records: &[Record],
        end: usize,
        layout: Layout,
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
            Behind::Nothing => Ok(()),
            Behind::Record(later) => {
                damaged(format!("record {number} is damaged, and was followed by another at byte {later}"))
            }
            Behind::Unclear => {
                damaged(format!("record {number} is damaged, and too much that follows looks like records"))
            }
        }
    }

    /// Checks the rows that need it, and drops the records from the first one on whose rows were not promised and are not
    /// there.
    fn check_rows(&self, records: &mut Vec<Record>, layout: Layout, synced: u32, ending: Ending) -> Result<()> {
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
pub(crate) fn check_record(path: &Path, record: &Record, layout: Layout, rows: &[u8]) -> Result<()> {
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

/// Checks that lengths and scales are numbers that a search can divide by.
fn check_column(path: &Path, offset: u64, numbers: &[u8]) -> Result<()> {
    match floats(numbers).iter().find(|number| !(number.is_finite() && **number > 0.0)) {
        Some(number) => Err(Error::corrupt(path, offset, format!("a length or a scale of {number}"))),
        None => Ok(()),
    }
}
