//! The log of a segment: which rows were added under which ids, and which rows died. The log is a
//! sequence of records, each with a checksum, so that an incomplete record at the end is detected
//! and ignored.
//!
//! ```text
//! head    "PNPLVLOG" · version u32 · segment u32 · nonce u64 · checksum u32 · zero u32
//! record  length of the body u64 · checksum u32 · mark u32 · body
//! body    number u64 · before u32 · inline u32 · kills u32 · fields u32 · rows u32 · first row u32 · rows on disk u32 · checksum of the rows u32
//!         kills: (segment u32, row u32)…   fields: (length u32, text)…   norms f32…   scales f32…
//!         rows, where they are inline      entries: (length of id u32, length of metadata u32, id, metadata)…
//! mark    number u64 · on disk u32 · rows on disk u32
//! ```
//!
//! Numbers are little-endian. A record's checksum also covers the log's nonce, so that bytes left
//! over from an older file, or imitated by a caller's metadata, are never taken for a record.
//! Records are written in groups, and each group reaches the disk in one sync. `before` counts the
//! preceding records that were not known to be on disk when the record was written.
//!
//! After each acknowledged group comes a mark: a record with a short body, which has a number of
//! its own and changes nothing. The mark states whether everything before it had reached the disk;
//! writers do not wait for the mark itself. Marks serve two purposes. A damaged record that had
//! been acknowledged (a mark or a later group follows it) can be distinguished from the torn end of
//! a log. A reader knows which records it must settle before it counts them (`writer::recover`).
//!
//! Small batches have their rows inline, so that one file has to reach the disk, not two. The field
//! `rows on disk` is the number of rows of the segment that were known to be on disk in the rows
//! file at that time.
//!
//! Version 1 has no marks; nothing else differs.

use std::ops::Range;
use std::path::Path;

use crate::encode::ENTRY_HEAD_BYTES;
use crate::error::{Error, Result};

const MAGIC: [u8; 8] = *b"PNPLVLOG";
const VERSION: u32 = 2;
/// Supported versions.
const VERSIONS: [u32; 2] = [1, VERSION];
const RECORD_MARK: u32 = 0x5a56_4c47;
pub(crate) const LOG_HEAD_BYTES: usize = 32;
const RECORD_HEAD_BYTES: usize = 16;
const BODY_HEAD_BYTES: usize = 40;
const MARK_BODY_BYTES: usize = 16;
/// Minimum budget for checksums when candidate records are checked; the budget is four times the
/// log if that is more.
const CHECKSUM_BYTES_MIN: usize = 256 << 20;

/// A row: its segment, and its index there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RowAddress {
    pub(crate) segment: u32,
    pub(crate) row: u32,
}

/// The parts of a segment's records, which depend on the schema.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordLayout {
    pub(crate) row_bytes: usize,
    pub(crate) norms: bool,
    pub(crate) scales: bool,
}

/// A record to be written.
pub(crate) struct Draft<'a> {
    pub(crate) number: u64,
    /// Number of preceding records that are not known to be on disk.
    pub(crate) before: u32,
    pub(crate) kills: &'a [RowAddress],
    pub(crate) fields: &'a [String],
    pub(crate) rows: u32,
    pub(crate) first_row: u32,
    pub(crate) rows_synced: u32,
    pub(crate) rows_checksum: u32,
    pub(crate) norms: &'a [f32],
    pub(crate) scales: &'a [f32],
    pub(crate) inline_rows: Option<&'a [u8]>,
    pub(crate) entries: &'a [u8],
}

/// A record that was read, as ranges of the log.
pub(crate) struct Record {
    pub(crate) number: u64,
    /// Number of records, from the first on, that were acknowledged when this record was written.
    pub(crate) acknowledged: u64,
    /// Number of those records that had reached the disk.
    pub(crate) on_disk: u64,
    /// Whether the record is a mark. A mark has no rows, and no valid `first_row`.
    pub(crate) is_mark: bool,
    pub(crate) kills: Vec<RowAddress>,
    pub(crate) fields: Vec<String>,
    pub(crate) rows: u32,
    pub(crate) first_row: u32,
    pub(crate) rows_synced: u32,
    pub(crate) rows_checksum: u32,
    pub(crate) norms: Range<usize>,
    pub(crate) scales: Range<usize>,
    pub(crate) inline_rows: Option<Range<usize>>,
    pub(crate) entries: Range<usize>,
    pub(crate) end: usize,
}

/// The head of a log.
pub(crate) fn log_head(segment: u32, nonce: u64) -> [u8; LOG_HEAD_BYTES] {
    head_of(VERSION, segment, nonce)
}

fn head_of(version: u32, segment: u32, nonce: u64) -> [u8; LOG_HEAD_BYTES] {
    let mut head = [0; LOG_HEAD_BYTES];
    head[..8].copy_from_slice(&MAGIC);
    head[8..12].copy_from_slice(&version.to_le_bytes());
    head[12..16].copy_from_slice(&segment.to_le_bytes());
    head[16..24].copy_from_slice(&nonce.to_le_bytes());
    let checksum = crc32fast::hash(&head[..24]);
    head[24..28].copy_from_slice(&checksum.to_le_bytes());
    head
}

/// Checks that the log's head belongs to `segment`, and returns its nonce.
pub(crate) fn read_log_head(path: &Path, bytes: &[u8], segment: u32) -> Result<u64> {
    let head = bytes.get(..LOG_HEAD_BYTES).ok_or_else(|| Error::corrupt(path, 0, "the log has no head"))?;
    let nonce = u64::from_le_bytes([head[16], head[17], head[18], head[19], head[20], head[21], head[22], head[23]]);
    if !VERSIONS.iter().any(|version| head == head_of(*version, segment, nonce)) {
        let reason = format!("not the head of a log of segment {segment}, version 1 to {VERSION}");
        return Err(Error::corrupt(path, 0, reason));
    }
    Ok(nonce)
}

/// Appends a record to `out`.
pub(crate) fn write_record(out: &mut Vec<u8>, nonce: u64, draft: &Draft<'_>) {
    let start = out.len();
    out.extend_from_slice(&[0; RECORD_HEAD_BYTES]);
    out.extend_from_slice(&draft.number.to_le_bytes());
    let numbers = [
        draft.before,
        u32::from(draft.inline_rows.is_some()),
        draft.kills.len() as u32,
        draft.fields.len() as u32,
        draft.rows,
        draft.first_row,
        draft.rows_synced,
        draft.rows_checksum,
    ];
    numbers.iter().for_each(|number| out.extend_from_slice(&number.to_le_bytes()));
    for RowAddress { segment, row } in draft.kills {
        out.extend_from_slice(&segment.to_le_bytes());
        out.extend_from_slice(&row.to_le_bytes());
    }
    for field in draft.fields {
        out.extend_from_slice(&(field.len() as u32).to_le_bytes());
        out.extend_from_slice(field.as_bytes());
    }
    draft.norms.iter().chain(draft.scales).for_each(|value| out.extend_from_slice(&value.to_le_bytes()));
    out.extend_from_slice(draft.inline_rows.unwrap_or_default());
    out.extend_from_slice(draft.entries);
    let body = start + RECORD_HEAD_BYTES;
    let (length, checksum) = ((out.len() - body) as u64, checksum(nonce, &out[body..]));
    out[start..start + 8].copy_from_slice(&length.to_le_bytes());
    out[start + 8..start + 12].copy_from_slice(&checksum.to_le_bytes());
    out[start + 12..start + 16].copy_from_slice(&RECORD_MARK.to_le_bytes());
}

/// Appends the mark with this number. All records before the mark are acknowledged.
pub(crate) fn write_mark(out: &mut Vec<u8>, nonce: u64, number: u64, on_disk: bool, rows_synced: u32) {
    let mut body = number.to_le_bytes().to_vec();
    body.extend_from_slice(&u32::from(on_disk).to_le_bytes());
    body.extend_from_slice(&rows_synced.to_le_bytes());
    seal(out, nonce, &body);
}

/// Appends any bytes as the body of a record with a correct checksum.
pub(crate) fn seal(out: &mut Vec<u8>, nonce: u64, body: &[u8]) {
    out.extend_from_slice(&(body.len() as u64).to_le_bytes());
    out.extend_from_slice(&checksum(nonce, body).to_le_bytes());
    out.extend_from_slice(&RECORD_MARK.to_le_bytes());
    out.extend_from_slice(body);
}

/// The record with this number at `at`; `None` if there is no complete record with that number. A
/// complete record with inconsistent content is an error.
pub(crate) fn read_record(
    path: &Path,
    log: &[u8],
    at: usize,
    nonce: u64,
    number: u64,
    layout: RecordLayout,
) -> Result<Option<Record>> {
    Ok(read_any_record(path, log, at, nonce, layout)?.filter(|record| record.number == number))
}

/// The record at `at`, with any number.
pub(crate) fn read_any_record(
    path: &Path,
    log: &[u8],
    at: usize,
    nonce: u64,
    layout: RecordLayout,
) -> Result<Option<Record>> {
    let Some((expected, body)) = record_at(log, at) else { return Ok(None) };
    if checksum(nonce, &log[body.clone()]) != expected {
        return Ok(None);
    }
    let senseless = || Error::corrupt(path, at as u64, "a record whose parts do not fit its length");
    read_body(log, body, layout).map(Some).ok_or_else(senseless)
}

/// The result of looking for a record from a position in a log onward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordSearch {
    /// The offset of the record found.
    Record(usize),
    /// No matching record.
    Nothing,
    /// Too many bytes look like records: checking all of them would take too long.
    Unclear,
}

/// Looks at and after `at` for a record which proves that record `number`, expected at `at`, had
/// reached the disk.
pub(crate) fn proof_behind(log: &[u8], at: usize, nonce: u64, number: u64) -> RecordSearch {
    record_behind(log, at, nonce, |_, on_disk| on_disk > number)
}

/// The first record at or after `at`, with any number.
pub(crate) fn any_record_behind(log: &[u8], at: usize, nonce: u64) -> RecordSearch {
    record_behind(log, at, nonce, |_, _| true)
}

/// The first record at or after `at` that `wanted` accepts, given its number and the number of
/// records that had reached the disk.
fn record_behind(log: &[u8], at: usize, nonce: u64, wanted: impl Fn(u64, u64) -> bool) -> RecordSearch {
    let mark = RECORD_MARK.to_le_bytes();
    let at = at.min(log.len());
    let marks = log[at..].windows(4).enumerate().filter(|(_, four)| *four == mark).map(|(place, _)| at + place);
    let starts = marks.filter_map(|place| place.checked_sub(RECORD_HEAD_BYTES - 4)).filter(|start| *start >= at);
    // Metadata may be full of fake marks, each of which would cost a checksum of everything after
    // it.
    let mut unread = CHECKSUM_BYTES_MIN.max(log.len().saturating_mul(4));
    for start in starts {
        let Some((expected, body)) = record_at(log, start) else { continue };
        let Some((number, _, on_disk)) = read_order(log, &body) else { continue };
        // A number too large for this offset: not a record.
        if number > (log.len() / RECORD_HEAD_BYTES) as u64 || !wanted(number, on_disk) {
            continue;
        }
        match unread.checked_sub(body.len()) {
            Some(left) => unread = left,
            None => return RecordSearch::Unclear,
        }
        if checksum(nonce, &log[body]) == expected {
            return RecordSearch::Record(start);
        }
    }
    RecordSearch::Nothing
}

/// A record's number, and how many records were acknowledged and on disk when it was written.
fn read_order(log: &[u8], body: &Range<usize>) -> Option<(u64, u64, u64)> {
    let mut reader = FieldReader { bytes: &log[..body.end], at: body.start };
    let (number, second) = (reader.number_u64()?, reader.number()?);
    if body.len() == MARK_BODY_BYTES {
        return Some((number, number, if second == 1 { number } else { 0 }));
    }
    let before = number.saturating_sub(u64::from(second));
    (body.len() >= BODY_HEAD_BYTES).then_some((number, before, before))
}

/// The checksum and the body's range of the record that begins at `start`, if the record ends
/// within the log.
fn record_at(log: &[u8], start: usize) -> Option<(u32, Range<usize>)> {
    let mut reader = FieldReader { bytes: log, at: start };
    let (length, expected) = (reader.number_u64()?, reader.number()?);
    reader.number().filter(|mark| *mark == RECORD_MARK)?;
    Some((expected, reader.take(usize::try_from(length).ok()?)?))
}

fn read_body(log: &[u8], body: Range<usize>, layout: RecordLayout) -> Option<Record> {
    let (number, acknowledged, on_disk) = read_order(log, &body)?;
    let mut reader = FieldReader { bytes: &log[..body.end], at: body.start + 12 };
    if body.len() == MARK_BODY_BYTES {
        let rows_synced = reader.number()?;
        let nothing = || body.end..body.end;
        return Some(Record {
            number,
            acknowledged,
            on_disk,
            is_mark: true,
            kills: Vec::new(),
            fields: Vec::new(),
            rows: 0,
            first_row: 0,
            rows_synced,
            rows_checksum: 0,
            norms: nothing(),
            scales: nothing(),
            inline_rows: None,
            entries: nothing(),
            end: body.end,
        });
    }
    let (inline, kill_count, field_count) = (reader.number()?, reader.number()?, reader.number()?);
    let (rows, first_row) = (reader.number()?, reader.number()?);
    let (rows_synced, rows_checksum) = (reader.number()?, reader.number()?);
    first_row.checked_add(rows)?;
    let kills = reader.take((kill_count as usize).checked_mul(8)?)?;
    let kills =
        log[kills].chunks_exact(8).map(|pair| RowAddress { segment: number_at(pair), row: number_at(&pair[4..]) });
    let kills = kills.collect();
    let mut fields = Vec::new();
    for _ in 0..field_count {
        let length = reader.number()? as usize;
        fields.push(str::from_utf8(&log[reader.take(length)?]).ok()?.to_owned());
    }
    let column = |wanted: bool| if wanted { (rows as usize).checked_mul(4) } else { Some(0) };
    let (norms, scales) = (reader.take(column(layout.norms)?)?, reader.take(column(layout.scales)?)?);
    let inline_rows = match inline {
        0 => None,
        1 => Some(reader.take((rows as usize).checked_mul(layout.row_bytes)?)?),
        _ => return None,
    };
    let entries = reader.at..body.end;
    let end = body.end;
    Some(Record {
        number,
        acknowledged,
        on_disk,
        is_mark: false,
        kills,
        fields,
        rows,
        first_row,
        rows_synced,
        rows_checksum,
        norms,
        scales,
        inline_rows,
        entries,
        end,
    })
}

/// Calls `visit` with the offset and the id of each entry of a record. `None` if the entries do not
/// fill their range exactly.
pub(crate) fn for_each_entry(log: &[u8], record: &Record, mut visit: impl FnMut(usize, &[u8])) -> Option<()> {
    let mut reader = FieldReader { bytes: &log[..record.entries.end], at: record.entries.start };
    for _ in 0..record.rows {
        let start = reader.at;
        let (id_bytes, text_bytes) = (reader.number()? as usize, reader.number()? as usize);
        let id = reader.take(id_bytes)?;
        reader.take(text_bytes)?;
        str::from_utf8(&log[id.clone()]).ok()?;
        visit(start, &log[id]);
    }
    (reader.at == record.entries.end).then_some(())
}

/// The id and the metadata text of the entry that begins at `at`.
pub(crate) fn entry(log: &[u8], at: usize) -> Option<(&str, &[u8])> {
    let (head, rest) = log.get(at..)?.split_at_checked(ENTRY_HEAD_BYTES)?;
    let (id, rest) = rest.split_at_checked(number_at(head) as usize)?;
    Some((str::from_utf8(id).ok()?, rest.get(..number_at(&head[4..]) as usize)?))
}

struct FieldReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl FieldReader<'_> {
    fn take(&mut self, length: usize) -> Option<Range<usize>> {
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len())?;
        let range = self.at..end;
        self.at = end;
        Some(range)
    }

    fn number(&mut self) -> Option<u32> {
        let range = self.take(4)?;
        Some(number_at(&self.bytes[range]))
    }

    fn number_u64(&mut self) -> Option<u64> {
        let (low, high) = (self.number()?, self.number()?);
        Some(u64::from(low) | u64::from(high) << 32)
    }
}

fn number_at(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn checksum(nonce: u64, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&nonce.to_le_bytes());
    hasher.update(body);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LAYOUT: RecordLayout = RecordLayout { row_bytes: 3, norms: true, scales: false };

    fn sample() -> Vec<u8> {
        let mut log = log_head(7, 99).to_vec();
        let draft = Draft {
            number: 0,
            before: 0,
            kills: &[RowAddress { segment: 1, row: 2 }],
            fields: &["color".to_owned()],
            rows: 2,
            first_row: 5,
            rows_synced: 4,
            rows_checksum: 11,
            norms: &[1.0, 2.0],
            scales: &[],
            inline_rows: Some(&[1, 2, 3, 4, 5, 6]),
            entries: &[1, 0, 0, 0, 0, 0, 0, 0, b'a', 1, 0, 0, 0, 2, 0, 0, 0, b'b', b'{', b'}'],
        };
        write_record(&mut log, 99, &draft);
        log
    }

    fn empty_draft() -> Draft<'static> {
        Draft {
            number: 0,
            before: 0,
            kills: &[],
            fields: &[],
            rows: 0,
            first_row: 7,
            rows_synced: 7,
            rows_checksum: 0,
            norms: &[],
            scales: &[],
            inline_rows: None,
            entries: &[],
        }
    }

    #[test]
    fn records_come_back_and_leftovers_do_not() {
        let (log, path) = (sample(), Path::new("log"));
        assert_eq!(read_log_head(path, &log, 7).unwrap(), 99);
        assert!(matches!(read_log_head(path, &log, 8), Err(Error::Corrupt { .. })));
        let record = read_record(path, &log, LOG_HEAD_BYTES, 99, 0, LAYOUT).unwrap().unwrap();
        assert_eq!((record.rows, record.first_row, record.end), (2, 5, log.len()));
        let mut seen = Vec::new();
        for_each_entry(&log, &record, |at, id| seen.push((at, id.to_vec()))).unwrap();
        assert_eq!(seen.len(), 2);
        assert_eq!(entry(&log, seen[1].0), Some(("b", &b"{}"[..])));
        // A different number, a different nonce or one missing byte: no record.
        assert!(read_record(path, &log, LOG_HEAD_BYTES, 99, 1, LAYOUT).unwrap().is_none());
        assert!(read_record(path, &log, LOG_HEAD_BYTES, 98, 0, LAYOUT).unwrap().is_none());
        for end in LOG_HEAD_BYTES..log.len() {
            assert!(read_record(path, &log[..end], LOG_HEAD_BYTES, 99, 0, LAYOUT).unwrap().is_none());
        }
        // A later group after a damaged record proves that the record is not the torn end.
        let mut two = log.clone();
        write_record(&mut two, 99, &Draft { number: 1, before: 0, ..empty_draft() });
        two[LOG_HEAD_BYTES + 20] ^= 1;
        assert_eq!(proof_behind(&two, LOG_HEAD_BYTES, 99, 0), RecordSearch::Record(log.len()));
        assert_eq!(proof_behind(&two, LOG_HEAD_BYTES, 98, 0), RecordSearch::Nothing);
        let mut same = log.clone();
        write_record(&mut same, 99, &Draft { number: 1, before: 1, ..empty_draft() });
        assert_eq!(proof_behind(&same, LOG_HEAD_BYTES, 99, 0), RecordSearch::Nothing);
        // A mark proves the same, unless the group was not synced.
        for (on_disk, found) in [(true, RecordSearch::Record(log.len())), (false, RecordSearch::Nothing)] {
            let mut marked = log.clone();
            write_mark(&mut marked, 99, 1, on_disk, 7);
            marked[LOG_HEAD_BYTES + 20] ^= 1;
            assert_eq!(proof_behind(&marked, LOG_HEAD_BYTES, 99, 0), found);
            assert_eq!(any_record_behind(&marked, LOG_HEAD_BYTES, 99), RecordSearch::Record(log.len()));
            let mark = read_record(path, &marked, log.len(), 99, 1, LAYOUT).unwrap().unwrap();
            assert!(mark.is_mark && mark.acknowledged == 1 && mark.rows_synced == 7 && mark.end == marked.len());
        }
        let old = head_of(1, 7, 99);
        assert_eq!(read_log_head(path, &old, 7).unwrap(), 99);
        assert!(read_log_head(path, &head_of(3, 7, 99), 7).is_err());
        let wrong = RecordLayout { row_bytes: 1 << 40, ..LAYOUT };
        assert!(matches!(read_record(path, &log, LOG_HEAD_BYTES, 99, 0, wrong), Err(Error::Corrupt { .. })));
    }

    /// Regression: half a million fake heads, each of which claims all bytes after it. Computing a
    /// checksum for each took hours.
    #[test]
    fn imitated_records_do_not_take_for_ever() {
        let mut log = log_head(7, 99).to_vec();
        for left in (1..500_000_u64).rev() {
            log.extend_from_slice(&(left * 28).to_le_bytes());
            log.extend_from_slice(&[0; 4]);
            log.extend_from_slice(&RECORD_MARK.to_le_bytes());
            log.extend_from_slice(&(1_u64 << 10).to_le_bytes());
            log.extend_from_slice(&[0; 4]);
        }
        log.extend_from_slice(&[0; 64]);
        assert_eq!(proof_behind(&log, LOG_HEAD_BYTES, 99, 0), RecordSearch::Unclear);
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), at in 0..220_usize) {
            let _ = read_record(Path::new("log"), &bytes, at, 1, 0, LAYOUT);
            let whole = 0..bytes.len();
            if let Some(record) = read_body(&bytes, whole, LAYOUT) {
                let _ = for_each_entry(&bytes, &record, |_, _| ());
            }
            let _ = entry(&bytes, at);
        }
    }
}
