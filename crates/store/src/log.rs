//! The log: changes to the catalog, sealed, one record after the other.
//!
//! ```text
//! bytes that are sealed, with the tag   4
//! random bytes of the writer           32
//! number that the writer counts         8
//! changes, sealed                       n
//! ```
//!
//! 1. A writer draws its random bytes when it opens the log, and counts records from zero,
//!    including those whose writing failed. The next writer draws others. So no pair of key and
//!    number ever seals two records.
//! 2. A record authenticates its own front, the store, the log, its position in the log, and the
//!    tag of the record before. The head has the last tag: so the head determines all records,
//!    their order, and excludes records that were written but never counted.
//! 3. Each record contains its generation. The tag of a commit's last record is a point of the
//!    chain: with a remembered point one can tell whether a log contains it. A rewritten log
//!    begins with the points of the log before it.
//! 4. A commit behind the position in the head that is whole ([`beyond`]) was made by a writer that
//!    ended before it replaced the head, or the head is an older copy. It counts: the next writer
//!    makes a head that names it. Other bytes behind that position were never acknowledged. The
//!    next writer cuts them off.
//! 5. A log is two files of the same bytes. A record that is damaged in one is taken from the
//!    other.
//! 6. A writer locks both files before it deletes anything as left over. Before it writes, it
//!    checks that they are still the files that the store's path leads to, and that they end where
//!    it left them. If not, another writer has been there, and nothing is written.

use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use panoply_core::Bytes;
use panoply_core::op::crypto::{Key, Messages, Nonces, Open, Seal, TAG_BYTES};
use panoply_runtime::Runtime;

use crate::catalog::{Catalog, Change, Extent, Point};
use crate::encode::Fields;
use crate::error::{Error, Result};
use crate::files::{Access, differ, has_other_names, open_file, open_kept, sync_folder};
use crate::folder::{Failure, Folder};
use crate::head::State;
use crate::lock::Alone;
use crate::randomness::random;
use crate::sealing::{Label, SALT_BYTES, derive_seal};

/// A record is closed when it reaches this length.
const RECORD_BYTES: usize = 1 << 20;
/// Maximal length of a record: the changes of a full one, and one more.
const RECORD_BYTES_MAX: usize = 16 << 20;
/// Bytes of records that are opened at once.
const OPEN_BYTES: usize = 8 << 20;
const FRONT_BYTES: usize = 4 + SALT_BYTES + 8;
const PREFIX: [u8; 4] = *b"logs";
/// Bytes of the generation and of the number of changes, in front of a record's changes.
const COUNT_BYTES: usize = 8 + 4;

/// A log that is open for writing.
pub(crate) struct Log {
    copies: [Alone; 2],
    store: [u8; 16],
    /// The end of the last commit.
    place: LogPoint,
    salt: [u8; SALT_BYTES],
    key: Key,
    next_number: u64,
}

/// A position in a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LogPoint {
    pub(crate) log: [u8; 16],
    pub(crate) bytes: u64,
    pub(crate) records: u64,
    pub(crate) last_tag: [u8; TAG_BYTES],
}

impl State {
    pub(crate) fn place(&self) -> LogPoint {
        LogPoint { log: self.log, bytes: self.log_bytes, records: self.records, last_tag: self.last_tag }
    }

    pub(crate) fn at(generation: u64, place: &LogPoint) -> State {
        let LogPoint { log, bytes, records, last_tag } = *place;
        State { generation, log, log_bytes: bytes, records, last_tag }
    }
}

impl Log {
    /// Makes a new, empty log.
    pub(crate) fn create(runtime: &Runtime, folder: &Folder, store: [u8; 16], root: &Key) -> Result<Log> {
        folder.expect_in_place()?;
        let place = LogPoint { log: random()?, bytes: 0, records: 0, last_tag: [0; TAG_BYTES] };
        let [first, second] = folder.catalog_paths(&place.log);
        let make = |path: PathBuf| open_kept(&path, Access::New).and_then(|file| Alone::lock(file, path));
        let copies = [make(first)?, make(second)?];
        sync_folder(folder.path())?;
        Log::begin(runtime, copies, store, root, place)
    }

    /// Continues a log whose files are in `locked` ([`lock`]), and takes them. Bytes behind its end
    /// are cut off. Returns `None` and leaves the files if the log does not have both of them up to
    /// its end, or if one has a second name (a hard link): it may be the log of a copy of the
    /// store, which continues from another position.
    pub(crate) fn resume(
        runtime: &Runtime,
        locked: &mut Vec<Alone>,
        store: [u8; 16],
        root: &Key,
        place: LogPoint,
    ) -> Result<Option<Log>> {
        let is_usable = |copy: &mut Alone| !has_other_names(&copy.file) && ends_at(copy, &place);
        if locked.len() != 2 || !locked.iter_mut().all(is_usable) {
            return Ok(None);
        }
        let Ok(copies) = <[Alone; 2]>::try_from(std::mem::take(locked)) else { return Ok(None) };
        let log = Log::begin(runtime, copies, store, root, place)?;
        for Alone { file, path, .. } in &log.copies {
            file.set_len(log.place.bytes).map_err(|error| Error::io("cut", path, error))?;
        }
        Ok(Some(log))
    }

    fn begin(runtime: &Runtime, copies: [Alone; 2], store: [u8; 16], root: &Key, place: LogPoint) -> Result<Log> {
        let salt = random()?;
        let key = derive_seal(runtime, root, Label::Catalog, &[&place.log, &salt])?;
        Ok(Log { copies, store, place, salt, key, next_number: 0 })
    }

    /// The position that the head names.
    pub(crate) fn place(&self) -> &LogPoint {
        &self.place
    }

    /// Writes changes behind the last commit, and waits for the disk. They count once a head names
    /// the returned position; the caller then calls [`Log::committed`].
    pub(crate) fn write(
        &mut self,
        runtime: &Runtime,
        folder: &Folder,
        generation: u64,
        changes: impl Iterator<Item = Change>,
    ) -> Result<LogPoint, Failure> {
        folder.expect_in_place()?;
        self.expect_tip()?;
        let mut place = self.place.clone();
        let written = self.write_records(runtime, folder, generation, changes, &mut place);
        if let Err(error) = written {
            self.cut()?;
            return Err(error.into());
        }
        for Alone { file, path, .. } in &self.copies {
            file.sync_data().map_err(|error| Failure::unclear(Error::io("sync", path, error)))?;
        }
        Ok(place)
    }

    /// Cuts off records that no head names. If that fails, the next writer does it.
    pub(crate) fn cut(&self) -> Result<(), Failure> {
        let cut = |Alone { file, path, .. }: &Alone| {
            file.set_len(self.place.bytes).map_err(|error| Failure::unclear(Error::io("cut", path, error)))
        };
        self.copies.iter().try_for_each(cut)
    }

    /// Cuts off records that end at `place`, which this writer has written and no reader may count,
    /// unless something else has been written since.
    pub(crate) fn cut_own(&mut self, place: &LogPoint) {
        for copy in &mut self.copies {
            let is_end = copy.file.metadata().is_ok_and(|metadata| metadata.len() == place.bytes);
            if is_end && ends_at(copy, place) {
                let _ = copy.file.set_len(self.place.bytes);
            }
        }
    }

    /// Fails if the files are no longer those of the store, or do not end with the last record that
    /// this writer knows.
    fn expect_tip(&mut self) -> Result<()> {
        for copy in &mut self.copies {
            copy.expect_in_place()?;
            let is_ours = copy.file.metadata().is_ok_and(|metadata| metadata.len() == self.place.bytes)
                && ends_at(copy, &self.place);
            if !is_ours {
                return Err(Error::overtaken(copy.path.clone()));
            }
        }
        Ok(())
    }

    /// Call after a head names this position.
    pub(crate) fn committed(&mut self, place: LogPoint) {
        self.place = place;
    }

    fn write_records(
        &mut self,
        runtime: &Runtime,
        folder: &Folder,
        generation: u64,
        changes: impl Iterator<Item = Change>,
        place: &mut LogPoint,
    ) -> Result<()> {
        for Alone { file, path, .. } in &mut self.copies {
            file.seek(SeekFrom::Start(place.bytes)).map_err(|error| Error::io("write", path, error))?;
        }
        let empty = || [&generation.to_le_bytes()[..], &[0; 4]].concat();
        let (mut count, mut content, mut is_begun) = (0_u32, empty(), false);
        for change in changes {
            change.encode(&mut content);
            count += 1;
            is_begun = true;
            if content.len() >= RECORD_BYTES {
                self.write_record(runtime, folder, count, std::mem::replace(&mut content, empty()), place)?;
                count = 0;
            }
        }
        // The last record of a commit is not full, even if nothing is left for it.
        if is_begun { self.write_record(runtime, folder, count, content, place) } else { Ok(()) }
    }

    fn write_record(
        &mut self,
        runtime: &Runtime,
        folder: &Folder,
        count: u32,
        mut content: Vec<u8>,
        place: &mut LogPoint,
    ) -> Result<()> {
        // A forked process would count from the same number under the same key.
        folder.expect_process()?;
        content[COUNT_BYTES - 4..COUNT_BYTES].copy_from_slice(&count.to_le_bytes());
        let number = self.next_number;
        self.next_number += 1;
        let mut record = ((content.len() + TAG_BYTES) as u32).to_le_bytes().to_vec();
        record.extend(self.salt);
        record.extend(number.to_le_bytes());
        let associated = associated(&self.store, place, &record);
        let nonces = Nonces::Counted { prefix: PREFIX, first: number };
        let sealed = runtime.run(Seal::new(&self.key, nonces, content).associated(associated)).wait()?;
        record.extend(sealed.text.into_one()?.as_slice()?);
        for Alone { file, path, .. } in &mut self.copies {
            file.write_all(&record).map_err(|error| Error::io("write", path, error))?;
        }
        place.bytes += record.len() as u64;
        place.records += 1;
        place.last_tag = tag_of(&record);
        Ok(())
    }
}

/// The catalog in a log, and an error for each damaged copy if the other copy is intact.
#[derive(Debug)]
pub(crate) struct LogCatalog {
    pub(crate) catalog: Catalog,
    pub(crate) damaged: Vec<Error>,
}

/// Reads a log up to a position, and applies its changes.
pub(crate) fn read(
    runtime: &Runtime,
    folder: &Folder,
    store: [u8; 16],
    root: &Key,
    end: &LogPoint,
) -> Result<LogCatalog> {
    let [first, second] = folder.catalog_paths(&end.log);
    match read_one(runtime, &first, store, root, end) {
        Ok(catalog) => {
            let damaged =
                differ(&first, &second, end.bytes)?.then(|| Error::damaged(&second, "it differs from the log"));
            Ok(LogCatalog { catalog, damaged: damaged.into_iter().collect() })
        }
        Err(error) if error.is_damage() => {
            let found = salvage(runtime, folder, store, root, end.log, Some(end))?;
            let mut damaged = vec![error.clone()];
            match read_one(runtime, &second, store, root, end) {
                Err(error) if error.is_damage() => damaged.push(error),
                read => drop(read?),
            }
            if found.place == *end { Ok(LogCatalog { catalog: found.catalog, damaged }) } else { Err(error) }
        }
        Err(error) => Err(error),
    }
}

/// Locks the files of logs exclusively, skipping those that are damaged or missing.
pub(crate) fn lock(folder: &Folder, logs: &[[u8; 16]]) -> Result<Vec<Alone>> {
    let mut locked = Vec::new();
    for path in logs.iter().flat_map(|log| folder.catalog_paths(log)) {
        match open_kept(&path, Access::Write) {
            Err(error) if error.is_damage() => {}
            opened => locked.push(Alone::lock(opened?, path)?),
        }
    }
    Ok(locked)
}

/// The commits behind the position that a head names.
#[derive(Debug)]
pub(crate) struct Beyond {
    pub(crate) catalog: Catalog,
    /// The state that a head of the last of them has.
    pub(crate) state: State,
    /// Whether the head is an older copy. Otherwise this is one commit, and its writer may have
    /// ended before it replaced the head.
    pub(crate) is_older_head: bool,
}

/// Reads the commits behind the position that a head names, as far as they are whole. `catalog` is
/// that of the head.
pub(crate) fn beyond(
    runtime: &Runtime,
    folder: &Folder,
    store: [u8; 16],
    root: &Key,
    state: &State,
    catalog: &Catalog,
) -> Result<Option<Beyond>> {
    let mut files = open_copies(folder, &state.log)?;
    let (mut place, mut found): (LogPoint, Option<Beyond>) = (state.place(), None);
    let mut records = Vec::new();
    while let Some((record, path, after)) = next_record(runtime, &mut files, &store, root, &place, u64::MAX)? {
        let generation = record.generation()?;
        let before = found.as_ref().map_or(state.generation, |found| found.state.generation);
        if before.checked_add(1) != Some(generation) {
            break;
        }
        place = after;
        let is_last = record.content.len() < RECORD_BYTES;
        records.push(record);
        if is_last {
            let mut newer = found.take().map_or_else(|| catalog.clone(), |found| found.catalog);
            for record in records.drain(..) {
                apply(&mut newer, &path, &record)?;
            }
            let is_older_head = generation > state.generation + 1;
            found = Some(Beyond { catalog: newer, state: State::at(generation, &place), is_older_head });
        }
    }
    let Some(found) = found else { return Ok(None) };
    // The data of a commit reaches the disk before its record: without it the commit never counted.
    let known: HashSet<[u8; 32]> = catalog.extents().map(|extent| extent.id).collect();
    let is_there = |extent: &Extent| known.contains(&extent.id) || folder.has_extent(extent);
    let counts = found.is_older_head || found.catalog.extents().all(is_there);
    Ok(counts.then_some(found))
}

/// The newest of the logs that go on from the state of a head in other files, and its catalog.
pub(crate) fn successor(
    runtime: &Runtime,
    folder: &Folder,
    store: [u8; 16],
    root: &Key,
    state: &State,
) -> Result<Option<SalvagedLog>> {
    let point = Point { generation: state.generation, tag: state.last_tag };
    let mut newest_one: Option<SalvagedLog> = None;
    for id in folder.catalog_ids()?.into_iter().filter(|id| *id != state.log) {
        let found = salvage(runtime, folder, store, root, id, None)?;
        let is_newer = found.complete > newest_one.as_ref().map_or(state.generation, |other| other.complete);
        // A log knows a limited number of commits before its own.
        let history = &found.catalog.history;
        let is_too_late = history.first().is_some_and(|first| first.generation > state.generation);
        if is_newer && (is_too_late || history.contains(&point)) {
            newest_one = Some(found);
        }
    }
    Ok(newest_one)
}

/// The first records of a log, up to the first that is authentic in neither of its files.
#[derive(Debug, Default)]
pub(crate) struct SalvagedLog {
    pub(crate) catalog: Catalog,
    /// The position behind the last of them.
    pub(crate) place: LogPoint,
    /// The last generation whose records are known to be complete; zero if there is none.
    pub(crate) complete: u64,
}

/// Reads the intact beginning of a log, each record from either file; not beyond `end`, if that is
/// known.
pub(crate) fn salvage(
    runtime: &Runtime,
    folder: &Folder,
    store: [u8; 16],
    root: &Key,
    log: [u8; 16],
    end: Option<&LogPoint>,
) -> Result<SalvagedLog> {
    let mut place = LogPoint { log, bytes: 0, records: 0, last_tag: [0; TAG_BYTES] };
    let (mut catalog, mut complete) = (Catalog::default(), 0);
    let mut files = open_copies(folder, &log)?;
    let bytes_max = end.map_or(u64::MAX, |end| end.bytes);
    while end.is_none_or(|end| place.records < end.records) {
        let next = next_record(runtime, &mut files, &store, root, &place, bytes_max)?;
        let Some((record, path, after)) = next else { break };
        let before = newest(&catalog);
        apply(&mut catalog, &path, &record)?;
        // A commit is complete if its last record is closed before it is full, or another commit
        // follows.
        complete = match newest(&catalog) {
            now if record.content.len() < RECORD_BYTES => now,
            now if now > before => before,
            _ => complete,
        };
        place = after;
    }
    Ok(SalvagedLog { catalog, place, complete })
}

/// The files of a log, without those that are damaged or missing.
fn open_copies(folder: &Folder, log: &[u8; 16]) -> Result<Vec<(File, PathBuf)>> {
    let mut files = Vec::new();
    for path in folder.catalog_paths(log) {
        match open_file(&path, Access::Read) {
            Err(error) if error.is_damage() => {}
            opened => files.push((opened?, path)),
        }
    }
    Ok(files)
}

/// The record behind a position, from the first file in which it is authentic, and the position
/// behind the record.
fn next_record(
    runtime: &Runtime,
    files: &mut [(File, PathBuf)],
    store: &[u8; 16],
    root: &Key,
    place: &LogPoint,
    bytes_max: u64,
) -> Result<Option<(LogRecord, PathBuf, LogPoint)>> {
    let limit = LogPoint { records: place.records + 1, bytes: bytes_max, ..place.clone() };
    for (file, path) in files {
        let mut after = place.clone();
        if file.seek(SeekFrom::Start(place.bytes)).is_err() {
            continue;
        }
        let read = read_batch(file, path, store, &mut after, &limit);
        match read.and_then(|batch| open_all(runtime, root, &limit, path, batch)) {
            Ok(mut opened) => match opened.pop() {
                Some(record) => return Ok(Some((record, path.clone(), after))),
                None => continue,
            },
            Err(error) if error.is_damage() => continue,
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// Reads one file of a log.
fn read_one(runtime: &Runtime, path: &Path, store: [u8; 16], root: &Key, end: &LogPoint) -> Result<Catalog> {
    let mut file = open_file(path, Access::Read)?;
    let mut catalog = Catalog::default();
    let mut place = LogPoint { log: end.log, bytes: 0, records: 0, last_tag: [0; TAG_BYTES] };
    while place.records < end.records {
        let batch = read_batch(&mut file, path, &store, &mut place, end)?;
        for opened in open_all(runtime, root, end, path, batch)? {
            apply(&mut catalog, path, &opened)?;
        }
    }
    if place == *end { Ok(catalog) } else { Err(Error::damaged(path, "it does not end where the head says")) }
}

/// An authenticated record.
struct LogRecord {
    content: Bytes,
    tag: [u8; TAG_BYTES],
}

impl LogRecord {
    /// The generation of its commit; zero if the record is too short.
    fn generation(&self) -> Result<u64> {
        Ok(self.content.as_slice()?.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }
}

/// Applies the changes of a record.
fn apply(catalog: &mut Catalog, path: &Path, opened: &LogRecord) -> Result<()> {
    let senseless = || Error::damaged(path, "a record makes no sense");
    let (generation, changes) = opened.content.as_slice()?.split_first_chunk().ok_or_else(senseless)?;
    let changes = Change::decode_all(changes).ok_or_else(senseless)?;
    changes.into_iter().try_for_each(|change| catalog.apply(change)).ok_or_else(senseless)?;
    catalog.note(u64::from_le_bytes(*generation), opened.tag);
    Ok(())
}

/// The newest generation in a catalog.
pub(crate) fn newest(catalog: &Catalog) -> u64 {
    catalog.history.last().map_or(0, |point| point.generation)
}

/// Whether a file of a log has the last record of `place` at its end.
fn ends_at(copy: &mut Alone, place: &LogPoint) -> bool {
    place.bytes == 0 || last_tag(&mut copy.file, place.bytes) == Some(place.last_tag)
}

/// The tag of the last record of a log that ends at `end`.
fn last_tag(file: &mut File, end: u64) -> Option<[u8; TAG_BYTES]> {
    let mut tag = [0; TAG_BYTES];
    file.seek(SeekFrom::Start(end.checked_sub(TAG_BYTES as u64)?)).ok()?;
    file.read_exact(&mut tag).ok().map(|()| tag)
}

/// Consecutive records of one writer.
#[derive(Default)]
struct LogBatch {
    salt: [u8; SALT_BYTES],
    nonces: Vec<u8>,
    texts: Vec<Bytes>,
    associated: Vec<Bytes>,
}

/// Reads records of one writer, up to `end` or until they suffice for one op.
fn read_batch(
    file: &mut File,
    path: &Path,
    store: &[u8; 16],
    place: &mut LogPoint,
    end: &LogPoint,
) -> Result<LogBatch> {
    let (mut batch, mut bytes) = (LogBatch::default(), 0);
    let refused = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => Error::damaged(path, "it is cut short"),
        _ => Error::io("read", path, error),
    };
    while place.records < end.records && bytes < OPEN_BYTES {
        let mut record = vec![0; FRONT_BYTES];
        file.read_exact(&mut record).map_err(refused)?;
        let mut fields = Fields::new(&record);
        let (len, salt, number) = (fields.u32(), fields.array(), fields.u64());
        let (Some(len), Some(salt), Some(number)) = (len, salt, number) else {
            return Err(Error::damaged(path, "a record is cut short"));
        };
        if batch.texts.is_empty() {
            batch.salt = salt;
        } else if batch.salt != salt {
            let back = file.seek(SeekFrom::Current(-(FRONT_BYTES as i64)));
            return back.map(|_| batch).map_err(refused);
        }
        let len = len as usize;
        let left = (end.bytes - place.bytes).saturating_sub(FRONT_BYTES as u64);
        if !(TAG_BYTES..=RECORD_BYTES_MAX).contains(&len) || len as u64 > left {
            return Err(Error::damaged(path, "a record has a length that cannot be"));
        }
        let associated = associated(store, place, &record);
        let mut text = vec![0; len];
        file.read_exact(&mut text).map_err(refused)?;
        place.bytes += (FRONT_BYTES + len) as u64;
        place.records += 1;
        place.last_tag = tag_of(&text);
        bytes += len;
        batch.nonces.extend(PREFIX);
        batch.nonces.extend(number.to_be_bytes());
        batch.texts.push(text.into());
        batch.associated.push(associated.into());
    }
    Ok(batch)
}

fn open_all(runtime: &Runtime, root: &Key, end: &LogPoint, path: &Path, batch: LogBatch) -> Result<Vec<LogRecord>> {
    let tags: Vec<_> = batch.texts.iter().map(|text| text.as_slice().map(tag_of)).collect::<Result<_, _>>()?;
    let key = derive_seal(runtime, root, Label::Catalog, &[&end.log, &batch.salt])?;
    let open = Open::new(&key, Nonces::Given(batch.nonces.into()), batch.texts);
    match runtime.run(open.associated(Messages::from(batch.associated))).wait() {
        Ok(opened) => {
            Ok(opened.into_list()?.into_iter().zip(tags).map(|(content, tag)| LogRecord { content, tag }).collect())
        }
        Err(panoply_core::Error::Rejected { .. }) => Err(Error::damaged(path, "a record is not authentic")),
        Err(error) => Err(error.into()),
    }
}

/// The associated data of a record: store, log, position, tag of the record before, own front.
fn associated(store: &[u8; 16], place: &LogPoint, front: &[u8]) -> Vec<u8> {
    [&store[..], &place.log, &place.records.to_le_bytes(), &place.last_tag, front].concat()
}

fn tag_of(record: &[u8]) -> [u8; TAG_BYTES] {
    record.last_chunk().copied().unwrap_or_default()
}
