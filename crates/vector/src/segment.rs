//! Segments: blocks of rows with their log. Only the newest segment grows; all others only lose
//! rows.
//!
//! A segment has one region for its rows and one for its log. The log is also the storage of ids
//! and metadata: for each row, memory holds the offset of its log entry, and nothing is stored
//! twice.

use std::ops::Range;
use std::sync::Arc;

use panoply_core::{DType, Tensor, bf16, f16};
use serde_json::Value;

use crate::encode::{EncodedBatch, decode};
use crate::error::{Error, Failure, Result};
use crate::folder::{Extent, Folder};
use crate::ivf::Lists;
use crate::record::{Draft, LOG_HEAD_BYTES, RecordLayout, RowAddress, entry, log_head, write_mark, write_record};
use crate::region::{Elements, Region, View};
use crate::schema::{Schema, Storage};
use crate::search::resident::Resident;
use crate::search::{CodesCache, FilterCache, ScalesCache, TypesCache};

/// Maximum size of a group of rows that is also copied into the log, and so reaches the disk with
/// it.
const INLINE_BYTES_MAX: usize = 256 << 10;

/// A segment in the form that its writer uses.
pub(crate) struct Segment {
    pub(crate) id: u32,
    pub(crate) schema: Arc<Schema>,
    pub(crate) rows: Region,
    pub(crate) log: Region,
    /// The log offset of each row's entry, as `u64`.
    pub(crate) entries: Region,
    pub(crate) norms: Option<Region>,
    pub(crate) scales: Option<Region>,
    pub(crate) count: u32,
    pub(crate) nonce: u64,
    /// Number of records in the log.
    pub(crate) records: u64,
    /// Number of those records that are known to be on disk.
    records_synced: u64,
    /// Number of rows that are known to be on disk in the rows file.
    pub(crate) rows_synced: u32,
    pub(crate) durable: bool,
    in_memory: bool,
    /// One bit per row, set while the row is live; empty while all rows are.
    live: Vec<u32>,
    pub(crate) dead: u32,
    pub(crate) lists: Option<Arc<Lists>>,
    shared: Arc<SegmentShared>,
    view: Option<Arc<SegmentView>>,
}

/// The state shared by all views of a segment.
#[derive(Default)]
pub(crate) struct SegmentShared {
    pub(crate) filters: FilterCache,
    pub(crate) codes: CodesCache,
    pub(crate) scales: ScalesCache,
    pub(crate) types: TypesCache,
    pub(crate) resident: Resident,
}

/// A segment at some point in time.
pub(crate) struct SegmentView {
    pub(crate) id: u32,
    pub(crate) count: u32,
    pub(crate) dead: u32,
    pub(crate) storage: Storage,
    pub(crate) row_bytes: usize,
    pub(crate) rows: Tensor,
    pub(crate) norms: Option<Tensor>,
    /// The bits of the live rows; `None` while all rows are.
    pub(crate) live: Option<Arc<[u32]>>,
    pub(crate) lists: Option<Arc<Lists>>,
    pub(crate) shared: Arc<SegmentShared>,
    pub(crate) stored: View,
    pub(crate) log: View,
    entries: View,
    scales: Option<View>,
}

/// One change to be recorded.
pub(crate) struct Addition<'a> {
    pub(crate) kills: &'a [RowAddress],
    pub(crate) fields: &'a [String],
    pub(crate) batch: Option<&'a EncodedBatch>,
}

impl Segment {
    /// Creates a segment without rows: in a folder, or in memory.
    pub(crate) fn create(folder: Option<&Folder>, schema: &Arc<Schema>, id: u32, durable: bool) -> Result<Segment> {
        let nonce = crate::folder::nonce();
        let (rows, mut log) = match folder {
            None => (Region::in_memory()?, Region::in_memory()?),
            Some(folder) => {
                folder.expect_in_place()?;
                (folder.new_region(&folder.rows_path(id))?, folder.new_region(&folder.log_path(id))?)
            }
        };
        log.append(&log_head(id, nonce))?;
        // Also in non-durable mode: a manifest must never name a log without a head.
        log.sync()?;
        Segment::with_regions(schema, id, nonce, rows, log, folder.is_none(), durable)
    }

    /// A segment over regions without rows, or with rows that the caller will count.
    pub(crate) fn with_regions(
        schema: &Arc<Schema>,
        id: u32,
        nonce: u64,
        rows: Region,
        log: Region,
        in_memory: bool,
        durable: bool,
    ) -> Result<Segment> {
        let column = |wanted: bool| if wanted { Region::in_memory().map(Some) } else { Ok(None) };
        Ok(Segment {
            id,
            rows,
            log,
            entries: Region::in_memory()?,
            norms: column(schema.has_norms())?,
            scales: column(schema.has_scales())?,
            schema: Arc::clone(schema),
            count: 0,
            nonce,
            records: 0,
            records_synced: 0,
            rows_synced: 0,
            durable: durable && !in_memory,
            in_memory,
            live: Vec::new(),
            dead: 0,
            lists: None,
            shared: Arc::default(),
            view: None,
        })
    }

    /// Records changes, all or none. In durable mode the changes have reached the disk on return.
    pub(crate) fn append(&mut self, additions: &[Addition<'_>]) -> Result<(), Failure> {
        let (rows, log, synced) = (self.rows.len(), self.log.len(), self.rows_synced);
        self.try_append(additions).map_err(|failure| {
            self.rows_synced = synced;
            let restored = self.rows.truncate(rows).and_then(|()| self.log.truncate(log));
            Failure { unclear: failure.unclear || restored.is_err(), ..failure }
        })?;
        self.mark();
        Ok(())
    }

    /// Marks everything in the log as acknowledged. No operation waits for the mark to reach the
    /// disk, or depends on it.
    fn mark(&mut self) {
        if self.in_memory {
            return;
        }
        let mut mark = Vec::new();
        write_mark(&mut mark, self.nonce, self.records, self.records_synced == self.records, self.rows_synced);
        if self.log.append(&mark).is_ok() {
            self.records += 1;
            self.view = None;
        }
    }

    fn try_append(&mut self, additions: &[Addition<'_>]) -> Result<(), Failure> {
        let batches = || additions.iter().filter_map(|addition| addition.batch);
        let more: usize = batches().map(|batch| batch.count).sum();
        let row_bytes = self.schema.row_bytes();
        if more >= (u32::MAX - self.count) as usize {
            return Err(Error::invalid("rows of a segment", format!("fewer than {}", u32::MAX), more).into());
        }
        self.entries.reserve(more * 8)?;
        [&mut self.norms, &mut self.scales].into_iter().flatten().try_for_each(|column| column.reserve(more * 4))?;
        let inline = !self.in_memory && more * row_bytes <= INLINE_BYTES_MAX;
        batches().try_for_each(|batch| self.rows.append(&batch.rows))?;
        let mut records = Vec::with_capacity(self.records_bytes(additions, inline));
        let mut first_row = self.count;
        let mut starts = Vec::with_capacity(additions.len());
        for (number, addition) in (self.records..).zip(additions) {
            let bytes = addition.batch.map_or(&[][..], |batch| &batch.rows);
            let draft = Draft {
                number,
                before: u32::try_from(number - self.records_synced).unwrap_or(u32::MAX),
                kills: addition.kills,
                fields: addition.fields,
                rows: addition.batch.map_or(0, |batch| batch.count as u32),
                first_row,
                rows_synced: self.rows_synced,
                rows_checksum: crc32fast::hash(bytes),
                norms: addition.batch.map_or(&[], |batch| &batch.norms),
                scales: addition.batch.map_or(&[], |batch| &batch.scales),
                inline_rows: inline.then_some(bytes),
                entries: addition.batch.map_or(&[], |batch| &batch.entries),
            };
            write_record(&mut records, self.nonce, &draft);
            starts.push(self.log.len() + records.len() - draft.entries.len());
            first_row += draft.rows;
        }
        self.log.append(&records)?;
        if self.durable {
            self.sync_group(inline || more == 0)?;
        }
        if self.durable && !inline {
            self.rows_synced = self.count + more as u32;
        }
        self.records += additions.len() as u64;
        if self.durable {
            self.records_synced = self.records;
        }
        self.view = None;
        for (addition, start) in additions.iter().zip(starts) {
            if let Some(batch) = addition.batch {
                self.note_rows(batch, start as u64)?;
            }
        }
        Ok(())
    }

    /// Reserves room for `rows` more rows.
    pub(crate) fn reserve(&mut self, rows: usize) -> Result<()> {
        self.entries.reserve(rows * 8)?;
        [&mut self.norms, &mut self.scales].into_iter().flatten().try_for_each(|column| column.reserve(rows * 4))?;
        self.rows.reserve(rows.saturating_mul(self.schema.row_bytes()))
    }

    /// Waits until the log, and rows that are not inline, have reached the disk. Both syncs run
    /// concurrently, since the checksum of a record detects rows that did not arrive. A system that
    /// failed to write pages may report the failure once and then drop the pages, so after any
    /// failure the state of the disk is uncertain.
    fn sync_group(&self, log_alone: bool) -> Result<(), Failure> {
        if log_alone {
            return self.log.sync().map_err(Failure::unclear);
        }
        let (rows, log) = std::thread::scope(|scope| {
            let rows = std::thread::Builder::new().spawn_scoped(scope, || self.rows.sync());
            let log = self.log.sync();
            // Without a thread, the syncs run one after the other.
            (rows.map_or_else(|_| self.rows.sync(), |rows| rows.join().unwrap_or(Err(Error::Closed))), log)
        });
        rows.and(log).map_err(Failure::unclear)
    }

    fn records_bytes(&self, additions: &[Addition<'_>], inline: bool) -> usize {
        let bytes = |addition: &Addition<'_>| {
            let batch = addition
                .batch
                .map_or(0, |batch| batch.entries.len() + batch.count * 8 + if inline { batch.rows.len() } else { 0 });
            128 + addition.kills.len() * 8 + batch
        };
        additions.iter().map(bytes).sum()
    }

    /// Adds recorded rows to the columns, whose memory was reserved before.
    fn note_rows(&mut self, batch: &EncodedBatch, entries_start: u64) -> Result<()> {
        let offsets: Vec<u64> = batch.offsets.iter().map(|offset| entries_start + offset).collect();
        self.entries.append(bytemuck::cast_slice(&offsets))?;
        if let Some(norms) = &mut self.norms {
            norms.append(bytemuck::cast_slice(&batch.norms))?;
        }
        if let Some(scales) = &mut self.scales {
            scales.append(bytemuck::cast_slice(&batch.scales))?;
        }
        self.count += batch.count as u32;
        self.view = None;
        Ok(())
    }

    /// Marks a row as dead. Returns false if it was dead already.
    pub(crate) fn kill(&mut self, row: u32) -> bool {
        if row >= self.count {
            return false;
        }
        self.live.resize((self.count as usize).div_ceil(32), u32::MAX);
        let word = &mut self.live[row as usize / 32];
        let bit = 1 << (row % 32);
        let lived = *word & bit != 0;
        *word &= !bit;
        self.dead += u32::from(lived);
        self.view = None;
        lived
    }

    /// Whether a row is live.
    pub(crate) fn is_live(&self, row: u32) -> bool {
        row < self.count && self.live.get(row as usize / 32).is_none_or(|word| word >> (row % 32) & 1 == 1)
    }

    /// The dead rows.
    pub(crate) fn dead_rows(&self) -> impl Iterator<Item = u32> + '_ {
        (0..if self.dead == 0 { 0 } else { self.count }).filter(|row| !self.is_live(*row))
    }

    /// Moves the same rows and log into regions that can grow.
    pub(crate) fn replace_regions(&mut self, rows: Region, log: Region) {
        (self.rows, self.log, self.view) = (rows, log, None);
    }

    /// Whether a flush would write anything.
    pub(crate) fn needs_flush(&self) -> bool {
        self.rows_synced < self.count
    }

    /// Waits until the rows have reached the disk, and records that in the log.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        if self.rows_synced < self.count {
            self.rows.sync().map_err(Failure::unclear)?;
            self.rows_synced = self.count;
            self.append(&[Addition { kills: &[], fields: &[], batch: None }])?;
        }
        if self.records_synced < self.records {
            self.log.sync().map_err(Failure::unclear)?;
            self.records_synced = self.records;
        }
        Ok(())
    }

    /// Waits until everything has reached the disk, and marks it as acknowledged: a write that a
    /// crash interrupted counts from now on, for every reader.
    pub(crate) fn settle(&mut self) -> Result<()> {
        if self.durable {
            self.rows.sync()?;
            self.log.sync()?;
            (self.rows_synced, self.records_synced) = (self.count, self.records);
        }
        self.mark();
        Ok(())
    }

    /// Truncates the files to their content, before they are closed.
    pub(crate) fn trim(&mut self) {
        self.rows.trim();
        self.log.trim();
    }

    /// Closes the files of a segment that no longer grows, since a process can have only a limited
    /// number of files open. Everything in the segment has reached the disk, and the manifest gives
    /// its length.
    pub(crate) fn close_files(&mut self) {
        self.rows.close();
        self.log.close();
    }

    /// A view of the segment at this moment.
    pub(crate) fn view(&mut self) -> Result<Arc<SegmentView>> {
        if let Some(view) = &self.view {
            return Ok(Arc::clone(view));
        }
        let (count, stored) = (self.count as usize, self.rows.view());
        let live = (self.dead > 0).then(|| {
            self.live.resize(count.div_ceil(32), u32::MAX);
            Arc::from(&self.live[..])
        });
        let norms = self.norms.as_ref().map(|norms| Tensor::from_owner(Elements::<f32>::new(norms.view()), [count]));
        let view = Arc::new(SegmentView {
            id: self.id,
            count: self.count,
            dead: self.dead,
            storage: self.schema.storage,
            row_bytes: self.schema.row_bytes(),
            rows: rows_tensor(&stored, self.schema.storage, count, self.schema.dimension)?,
            norms: norms.transpose()?,
            live,
            lists: self.lists.clone(),
            shared: Arc::clone(&self.shared),
            stored,
            log: self.log.view(),
            entries: self.entries.view(),
            scales: self.scales.as_ref().map(Region::view),
        });
        self.view = Some(Arc::clone(&view));
        Ok(view)
    }

    /// The present length of the log and number of rows.
    pub(crate) fn extent(&self) -> Extent {
        Extent { log_bytes: self.log.len() as u64, records: self.records, rows: self.count }
    }

    pub(crate) fn layout(schema: &Schema) -> RecordLayout {
        RecordLayout { row_bytes: schema.row_bytes(), norms: schema.has_norms(), scales: schema.has_scales() }
    }
}

impl SegmentView {
    /// The id and the metadata's text of a row.
    pub(crate) fn entry(&self, row: u32) -> Option<(&str, &[u8])> {
        let place = self.entries.bytes().get(row as usize * 8..)?.get(..8)?;
        entry(self.log.bytes(), usize::try_from(u64::from_ne_bytes(place.try_into().ok()?)).ok()?)
    }

    /// The id of a row.
    pub(crate) fn id_of(&self, row: u32) -> &str {
        self.entry(row).map_or("", |(id, _)| id)
    }

    /// The metadata of a row.
    pub(crate) fn metadata(&self, row: u32) -> Value {
        let text = self.entry(row).map_or(&[][..], |(_, text)| text);
        if text.is_empty() { Value::Null } else { serde_json::from_slice(text).unwrap_or(Value::Null) }
    }

    /// The stored bytes of a row.
    pub(crate) fn row(&self, row: u32) -> &[u8] {
        self.stored
            .bytes()
            .get(row as usize * self.row_bytes..)
            .and_then(|rest| rest.get(..self.row_bytes))
            .unwrap_or(&[])
    }

    /// The factor of a row's eight-bit components.
    pub(crate) fn scale_of(&self, row: u32) -> f32 {
        let scales = self.scales.as_ref().map(|scales| scales.bytes());
        let place = scales.and_then(|bytes| bytes.get(row as usize * 4..)?.get(..4));
        place.and_then(|bytes| bytes.try_into().ok()).map_or(1.0, f32::from_ne_bytes)
    }

    /// The divisor of a row's scores.
    pub(crate) fn norm_of(&self, row: u32) -> f32 {
        let norms = self.norms.as_ref().and_then(|norms| norms.as_slice::<f32>().ok());
        norms.and_then(|norms| norms.get(row as usize).copied()).unwrap_or(1.0)
    }

    /// Adds a stored row to a batch as it is: re-encoding would round it twice.
    pub(crate) fn copy_row(&self, row: u32, batch: &mut EncodedBatch) {
        batch.rows.extend_from_slice(self.row(row));
        if self.norms.is_some() {
            batch.norms.push(self.norm_of(row));
        }
        if self.scales.is_some() {
            batch.scales.push(self.scale_of(row));
        }
    }

    /// The components of a row.
    pub(crate) fn vector(&self, row: u32) -> Vec<f32> {
        decode(self.storage, self.row(row), self.scale_of(row))
    }

    /// Whether a row is live.
    pub(crate) fn is_live(&self, row: u32) -> bool {
        let bit = |live: &Arc<[u32]>| live.get(row as usize / 32).is_some_and(|word| word >> (row % 32) & 1 == 1);
        row < self.count && self.live.as_ref().is_none_or(bit)
    }

    /// Number of rows in the segment that are older than `row`.
    pub(crate) fn age_of(&self, row: u32) -> u32 {
        self.lists.as_ref().map_or(row, |lists| lists.age_of(row))
    }

    /// Whether the rows of a range are stored by age.
    pub(crate) fn is_by_age(&self, range: &Range<u32>) -> bool {
        self.lists.as_ref().is_none_or(|lists| lists.is_by_age(range))
    }

    /// All rows, including dead ones, by age.
    pub(crate) fn rows_by_age(&self) -> Vec<u32> {
        let sorted = self.lists.as_ref().and_then(|lists| lists.rows_by_age());
        sorted.unwrap_or_else(|| (0..self.count).collect())
    }

    /// The live rows, in stored order.
    pub(crate) fn live_rows(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.count).filter(|row| self.is_live(*row))
    }

    /// Number of live rows.
    pub(crate) fn len(&self) -> u32 {
        self.count - self.dead
    }
}

fn rows_tensor(view: &View, storage: Storage, count: usize, dimension: usize) -> Result<Tensor> {
    let view = view.first(count * dimension * storage.size_bytes());
    let shape = [count, dimension];
    let tensor = match storage.dtype() {
        DType::F16 => Tensor::from_owner(Elements::<f16>::new(view), shape),
        DType::BF16 => Tensor::from_owner(Elements::<bf16>::new(view), shape),
        DType::I8 => Tensor::from_owner(Elements::<i8>::new(view), shape),
        _ => Tensor::from_owner(Elements::<f32>::new(view), shape),
    };
    Ok(tensor?)
}

/// The offset of the first record in a log.
pub(crate) const FIRST_RECORD: usize = LOG_HEAD_BYTES;
