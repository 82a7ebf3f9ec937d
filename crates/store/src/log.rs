//! The log: changes to the catalog, sealed, one record after the other.
//!
//! ```text
//! bytes that are sealed, with the tag   4
//! random bytes of the writer           32
//! number that the writer counts         8
//! changes, sealed                       n
//! ```
//!
//! 1. A writer draws its random bytes when it opens the log, and counts records from zero, also those whose writing failed. The next writer
//!    draws others. So no key and number ever seal two records.
//! 2. A record authenticates its own front, the store, the log, its place in it, and the tag of the record before. The head has the
//!    last tag: whoever has the head has all records, in their order, and none that was written and never counted.
//! 3. What lies behind the length that the head says was never acknowledged. It is cut off by the next writer.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use panoply_core::Bytes;
use panoply_core::op::crypto::{Key, Messages, Nonces, Open, Seal, TAG_BYTES};
use panoply_runtime::Runtime;

use crate::catalog::{Catalog, Change};
use crate::encode::Fields;
use crate::error::{Error, Result};
use crate::folder::{Access, Failure, Folder, has_other_names, open_file, sync_folder};
use crate::head::State;
use crate::key::random;
use crate::sealing::{Label, SALT_BYTES, derive_seal};

/// A record is closed when it is this long.
const RECORD_BYTES: usize = 1 << 20;
/// No record is longer: the changes of one, and one more.
const RECORD_BYTES_MAX: usize = 16 << 20;
/// Records that are opened at once.
const OPEN_BYTES: usize = 8 << 20;
const FRONT_BYTES: usize = 4 + SALT_BYTES + 8;
const PREFIX: [u8; 4] = *b"logs";

/// A log that is written to.
pub(crate) struct Log {
    file: File,
    path: PathBuf,
    store: [u8; 16],
    /// What counts, up to the last commit.
    place: Place,
    salt: [u8; SALT_BYTES],
    key: Key,
    next_number: u64,
}

/// A place in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) log: [u8; 16],
    pub(crate) bytes: u64,
    pub(crate) records: u64,
    pub(crate) last_tag: [u8; TAG_BYTES],
}

impl State {
    pub(crate) fn place(&self) -> Place {
        Place { log: self.log, bytes: self.log_bytes, records: self.records, last_tag: self.last_tag }
    }

    pub(crate) fn at(generation: u64, place: &Place) -> State {
        let Place { log, bytes, records, last_tag } = *place;
        State { generation, log, log_bytes: bytes, records, last_tag }
    }
}

impl Log {
    /// A new log, empty.
    pub(crate) fn create(runtime: &Runtime, folder: &Folder, store: [u8; 16], root: &Key) -> Result<Log> {
        folder.expect_in_place()?;
        let place = Place { log: random()?, bytes: 0, records: 0, last_tag: [0; TAG_BYTES] };
        let path = folder.catalog_path(&place.log);
        let file = open_file(&path, Access::New)?;
        sync_folder(folder.path())?;
        Log::begin(runtime, file, path, store, root, place)
    }

    /// Goes on with a log. What lies behind its end is cut off. `None` where its file has a second name (a hard link): it may be the log of
    /// a copy of the store, which goes on from another place.
    pub(crate) fn resume(
        runtime: &Runtime,
        folder: &Folder,
        store: [u8; 16],
        root: &Key,
        place: Place,
    ) -> Result<Option<Log>> {
        let path = folder.catalog_path(&place.log);
        let file = open_file(&path, Access::Write)?;
        if has_other_names(&file) {
            return Ok(None);
        }
        file.set_len(place.bytes).map_err(|error| Error::io("cut", &path, error))?;
        Log::begin(runtime, file, path, store, root, place).map(Some)
    }

    fn begin(runtime: &Runtime, file: File, path: PathBuf, store: [u8; 16], root: &Key, place: Place) -> Result<Log> {
        let salt = random()?;
        let key = derive_seal(runtime, root, Label::Catalog, &[&place.log, &salt])?;
        Ok(Log { file, path, store, place, salt, key, next_number: 0 })
    }

    /// The place that the head names.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }

    /// Writes changes behind the last commit, and waits for the disk. They count once a head names the place that is returned, which is
    /// then told by [`Log::committed`].
    pub(crate) fn write(&mut self, runtime: &Runtime, changes: impl Iterator<Item = Change>) -> Result<Place, Failure> {
        let mut place = self.place.clone();
        let start = place.bytes;
        let written = self.write_records(runtime, changes, &mut place);
        if let Err(error) = written {
            // What was written was never acknowledged; it is overwritten, and cut off when the log is opened next.
            return match self.file.set_len(start) {
                Ok(()) => Err(error.into()),
                Err(_) => Err(Failure::unclear(error)),
            };
        }
        self.file.sync_data().map_err(|error| Failure::unclear(Error::io("sync", &self.path, error)))?;
        Ok(place)
    }

    /// A head names this place now.
    pub(crate) fn committed(&mut self, place: Place) {
        self.place = place;
    }

    fn write_records(
        &mut self,
        runtime: &Runtime,
        changes: impl Iterator<Item = Change>,
        place: &mut Place,
    ) -> Result<()> {
        let refused = |error| Error::io("write", &self.path, error);
        self.file.seek(SeekFrom::Start(place.bytes)).map_err(refused)?;
        let (mut count, mut content) = (0_u32, vec![0; 4]);
        for change in changes {
            change.encode(&mut content);
            count += 1;
            if content.len() >= RECORD_BYTES {
                self.write_record(runtime, count, &mut content, place)?;
                count = 0;
            }
        }
        if count > 0 { self.write_record(runtime, count, &mut content, place) } else { Ok(()) }
    }

    fn write_record(&mut self, runtime: &Runtime, count: u32, content: &mut Vec<u8>, place: &mut Place) -> Result<()> {
        let mut content = std::mem::replace(content, vec![0; 4]);
        content[..4].copy_from_slice(&count.to_le_bytes());
        let number = self.next_number;
        self.next_number += 1;
        let mut record = ((content.len() + TAG_BYTES) as u32).to_le_bytes().to_vec();
        record.extend(self.salt);
        record.extend(number.to_le_bytes());
        let associated = associated(&self.store, place, &record);
        let nonces = Nonces::Counted { prefix: PREFIX, first: number };
        let sealed = runtime.run(Seal::new(&self.key, nonces, content).associated(associated)).wait()?;
        record.extend(sealed.text.into_one()?.as_slice()?);
        self.file.write_all(&record).map_err(|error| Error::io("write", &self.path, error))?;
        place.bytes += record.len() as u64;
        place.records += 1;
        place.last_tag = tag_of(&record);
        Ok(())
    }
}

/// Reads a log up to a place, and applies its changes.
pub(crate) fn read(runtime: &Runtime, folder: &Folder, store: [u8; 16], root: &Key, end: &Place) -> Result<Catalog> {
    let path = folder.catalog_path(&end.log);
    let mut file = open_file(&path, Access::Read)?;
    let mut catalog = Catalog::default();
    let mut place = Place { log: end.log, bytes: 0, records: 0, last_tag: [0; TAG_BYTES] };
    while place.records < end.records {
        let batch = read_batch(&mut file, &path, &store, &mut place, end)?;
        for content in open_all(runtime, root, end, &path, batch)? {
            let changes = Change::decode_all(content.as_slice()?);
            let applied = changes.and_then(|changes| changes.into_iter().try_for_each(|change| catalog.apply(change)));
            applied.ok_or_else(|| Error::damaged(&path, "a record makes no sense"))?;
        }
    }
    if place == *end { Ok(catalog) } else { Err(Error::damaged(&path, "it does not end where the head says")) }
}

/// Records of one writer that follow each other.
#[derive(Default)]
struct Sealed {
    salt: [u8; SALT_BYTES],
    nonces: Vec<u8>,
    texts: Vec<Bytes>,
    associated: Vec<Bytes>,
}

/// Reads records of one writer, up to the end, or until they are enough for one op.
fn read_batch(file: &mut File, path: &Path, store: &[u8; 16], place: &mut Place, end: &Place) -> Result<Sealed> {
    let (mut batch, mut bytes) = (Sealed::default(), 0);
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

fn open_all(runtime: &Runtime, root: &Key, end: &Place, path: &Path, batch: Sealed) -> Result<Vec<Bytes>> {
    let key = derive_seal(runtime, root, Label::Catalog, &[&end.log, &batch.salt])?;
    let open = Open::new(&key, Nonces::Given(batch.nonces.into()), batch.texts);
    match runtime.run(open.associated(Messages::from(batch.associated))).wait() {
        Ok(opened) => Ok(opened.into_list()?),
        Err(panoply_core::Error::Rejected { .. }) => Err(Error::damaged(path, "a record is not authentic")),
        Err(error) => Err(error.into()),
    }
}

/// What a record authenticates beside its changes: where it belongs, what is before it, and its own front.
fn associated(store: &[u8; 16], place: &Place, front: &[u8]) -> Vec<u8> {
    [&store[..], &place.log, &place.records.to_le_bytes(), &place.last_tag, front].concat()
}

fn tag_of(record: &[u8]) -> [u8; TAG_BYTES] {
    record.last_chunk().copied().unwrap_or_default()
}
