//! What a program holds: a store that is open.
//!
//! 1. One process writes, or several read; the lock in the folder says which. Others are refused, or wait as long as they said.
//! 2. A change is written to the log and reaches the disk; then a new head names it, which is renamed over the old one. Before that rename
//!    nothing has changed, after it everything has. Data lies in files of its own that reach the disk before the log.
//! 3. Opening reads the head and the log, and finds every byte of them authentic; the data of an object is checked when it is read.
//!    Nothing in the folder is changed before that.
//! 4. After a failure that leaves it unclear what the disk holds there are no more writes until the store is opened again.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use panoply_core::op::crypto::Format;
use panoply_runtime::Runtime;

use crate::anchor::{self, Known};
use crate::batch::Batch;
use crate::catalog::{CHUNK_BYTES, Catalog, Change, Extent, Object};
use crate::encode::hex;
use crate::error::{Error, Result};
use crate::extent::object_secret;
use crate::extent::read::ExtentReader;
use crate::folder::{Failure, Folder, read_file};
use crate::head::{HEAD_BYTES_MAX, Identity, MAGIC, State};
use crate::key::{MasterKey, PassphraseCost};
use crate::log::{self, Log};
use crate::merkle;

/// A log is written anew when it is longer than this, and than twice what it began with.
const COMPACT_BYTES_MIN: u64 = 1 << 20;

/// How a store is opened and written to.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of a chunk: what is read at least when one byte is wanted, and compressed by itself.
    pub chunk_bytes: usize,
    /// The longest file of data; a longer object has several.
    pub extent_bytes_max: u64,
    /// The level of Zstandard; `None` compresses nothing. Chunks that do not become shorter are stored as they are.
    pub level: Option<i32>,
    /// How long to wait for another process that has the store.
    pub lock_wait: Duration,
    /// A file outside of the store that finds out where an older copy of all of it was put back; see [`crate::anchor`].
    pub anchor: Option<PathBuf>,
    /// What a new passphrase costs whoever tries it.
    pub passphrase_cost: PassphraseCost,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            chunk_bytes: 256 << 10,
            extent_bytes_max: 4 << 30,
            level: Some(1),
            lock_wait: Duration::ZERO,
            anchor: None,
            passphrase_cost: PassphraseCost::default(),
        }
    }
}

/// What is known of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub len: u64,
    /// The bytes of its files.
    pub stored: u64,
    /// When it was last written to, in seconds since 1970.
    pub modified_s: u64,
    /// Its files.
    pub extents: usize,
    /// Its Merkle root.
    pub root: [u8; 32],
}

/// What [`Store::verify`] found.
#[derive(Clone, Debug, Default)]
pub struct Verification {
    /// Objects that are in order.
    pub intact: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that are not, and why.
    pub damaged: Vec<(String, Error)>,
}

/// An encrypted store that is open.
pub struct Store {
    runtime: Arc<Runtime>,
    folder: Folder,
    options: Options,
    identity: Identity,
    state: State,
    catalog: Catalog,
    /// `None` where it is read alone.
    log: Option<Log>,
    /// About how long the log is where it begins anew with everything that there is.
    log_bytes_first: u64,
    /// Why nothing can be written any more.
    stopped: Option<String>,
    had_no_anchor: bool,
    anchor_problem: Option<Error>,
}

impl Store {
    /// Makes a new store in a new or empty folder.
    pub fn create(runtime: impl Into<Arc<Runtime>>, path: &Path, key: &MasterKey, options: Options) -> Result<Store> {
        let runtime = runtime.into();
        check(&options)?;
        let identity = Identity::create(&runtime, MAGIC, key, options.passphrase_cost)?;
        let (_, root) = identity.keyring.newest()?;
        let folder = Folder::create(path)?;
        let begun = Log::create(&runtime, &folder, identity.store, root).and_then(|log| {
            let state = State::at(1, log.place());
            folder.write_head(&identity.encode(&runtime, &state)?).map_err(|failure| failure.error)?;
            Ok((log, state))
        });
        let (log, state) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                folder.give_up();
                return Err(error);
            }
        };
        let mut store = Store {
            runtime,
            folder,
            options,
            identity,
            state,
            catalog: Catalog::default(),
            log: Some(log),
            log_bytes_first: 0,
            stopped: None,
            had_no_anchor: false,
            anchor_problem: None,
        };
        store.drop_anchor();
        Ok(store)
    }

    /// Opens a store to read and write. What a crash has left over is deleted.
    pub fn open(runtime: impl Into<Arc<Runtime>>, path: &Path, key: &MasterKey, options: Options) -> Result<Store> {
        Store::open_as(runtime.into(), path, key, options, true)
    }

    /// Opens a store to be read alone. Nothing in its folder is changed.
    pub fn open_read_only(
        runtime: impl Into<Arc<Runtime>>,
        path: &Path,
        key: &MasterKey,
        options: Options,
    ) -> Result<Store> {
        Store::open_as(runtime.into(), path, key, options, false)
    }

    fn open_as(runtime: Arc<Runtime>, path: &Path, key: &MasterKey, options: Options, writes: bool) -> Result<Store> {
        check(&options)?;
        let folder = Folder::open(path, writes, options.lock_wait)?;
        let head = folder.head_path();
        let bytes = read_file(&head, HEAD_BYTES_MAX)?;
        let (identity, state) = Identity::decode(&runtime, folder.path(), &head, &bytes, key)?;
        let checked = options.anchor.as_ref().map(|file| anchor::check(file, folder.path(), &identity.store, &state));
        let known = checked.transpose()?;
        let (_, root) = identity.keyring.newest()?;
        let catalog = log::read(&runtime, &folder, identity.store, root, &state.place())?;
        let mut log = None;
        if writes {
            let named: HashSet<String> = catalog.extents().map(|extent| hex(&extent.id)).collect();
            folder.remove_strangers(Some(&state.log), &named)?;
            log = Log::resume(&runtime, &folder, identity.store, root, state.place())?;
        }
        let mut store = Store {
            runtime,
            folder,
            options,
            identity,
            log_bytes_first: catalog.encoded_bytes(),
            state,
            catalog,
            log,
            stopped: None,
            had_no_anchor: known == Some(Known::Nothing),
            anchor_problem: None,
        };
        if writes && store.log.is_none() {
            store.rewrite_log(store.identity.clone())?;
        } else if known.is_some_and(|known| known != Known::This) {
            store.drop_anchor();
        }
        Ok(store)
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Its number, random, as text.
    pub fn id(&self) -> String {
        hex(&self.identity.store)
    }

    /// How many commits there were.
    pub fn generation(&self) -> u64 {
        self.state.generation
    }

    /// How many root keys open what is in it: one more for each rotation, while something is left that was written before it.
    pub fn epochs(&self) -> usize {
        self.identity.keyring.len()
    }

    /// Whether it was opened with an anchor that was not there yet: nobody can tell whether an older copy was put back before.
    pub fn had_no_anchor(&self) -> bool {
        self.had_no_anchor
    }

    /// Why the anchor could not be written, where it could not. The store itself is as it should be.
    pub fn anchor_problem(&self) -> Option<&Error> {
        self.anchor_problem.as_ref()
    }

    /// Every object, in the order of names. The list is authentic.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        self.catalog.objects.iter().map(|(name, object)| Entry::of(name, object))
    }

    /// One object.
    pub fn get(&self, name: &str) -> Option<Entry> {
        self.object(name).map(|object| Entry::of(name, object))
    }

    /// Begins changes that are made together.
    pub fn batch(&mut self) -> Result<Batch<'_>> {
        Batch::new(self)
    }

    /// Puts an object: everything that the source has. One that is there already is refused, or replaced. When it returns the object has
    /// reached the disk.
    pub fn put(&mut self, name: &str, source: &mut dyn Read, replace: bool) -> Result<Entry> {
        let mut batch = self.batch()?;
        let entry = batch.put(name, source, replace)?;
        batch.commit().map(|()| entry)
    }

    /// Adds everything that the source has to the end of an object.
    pub fn append(&mut self, name: &str, source: &mut dyn Read) -> Result<Entry> {
        let mut batch = self.batch()?;
        let entry = batch.append(name, source)?;
        batch.commit().map(|()| entry)
    }

    /// Removes an object, and deletes its files.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        let mut batch = self.batch()?;
        batch.remove(name)?;
        batch.commit()
    }

    /// Writes all of an object to `out`. What is not authentic is not written.
    pub fn read(&self, name: &str, out: &mut dyn Write) -> Result<()> {
        let len = self.expect_object(name)?.len();
        self.read_range(name, 0..len, out)
    }

    /// Writes a range of an object to `out`.
    pub fn read_range(&self, name: &str, range: Range<u64>, out: &mut dyn Write) -> Result<()> {
        let object = self.expect_object(name)?;
        if range.start > range.end || range.end > object.len() {
            let expected = format!("a range within {} bytes", object.len());
            return Err(Error::invalid("range", expected, format!("{} to {}", range.start, range.end)));
        }
        let mut take = |bytes: &[u8]| out.write_all(bytes).map_err(|error| Error::stream("the output", error));
        let mut start = 0;
        for extent in &object.extents {
            let end = start + extent.len;
            let wanted = range.start.max(start)..range.end.min(end);
            if !wanted.is_empty() {
                self.reader(object, extent)?.read(wanted.start - start..wanted.end - start, &mut take)?;
            }
            start = end;
        }
        Ok(())
    }

    /// Reads everything and compares it with its Merkle roots. `progress` is called with the bytes of each object that was looked at.
    pub fn verify(&self, progress: &mut dyn FnMut(&str, u64)) -> Result<Verification> {
        let mut found = Verification::default();
        for (name, object) in &self.catalog.objects {
            match self.verify_object(object) {
                Ok(()) => {
                    found.intact += 1;
                    found.bytes += object.len();
                }
                Err(error @ (Error::Damaged { .. } | Error::NotAFile { .. } | Error::Io { .. })) => {
                    found.damaged.push((name.clone(), error));
                }
                Err(error) => return Err(error),
            }
            progress(name, object.len());
        }
        Ok(found)
    }

    /// Locks the store with another master key. Data is not rewritten: its root keys are sealed again, and a new one is made for what is
    /// written from now on, so that the old master key opens nothing of that, not even with an old copy of the head.
    pub fn rotate(&mut self, key: &MasterKey) -> Result<()> {
        self.expect_writable()?;
        let used: HashSet<u32> = self.catalog.extents().map(|extent| extent.epoch).collect();
        let cost = self.options.passphrase_cost;
        let identity = self.identity.rotated(&self.runtime, key, cost, |epoch| used.contains(&epoch))?;
        self.rewrite_log(identity)
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn object(&self, name: &str) -> Option<&Object> {
        self.catalog.objects.get(name)
    }

    /// Refuses where nothing can be written.
    pub(crate) fn expect_writable(&self) -> Result<()> {
        match &self.stopped {
            Some(reason) => Err(Error::WritesStopped { reason: reason.clone() }),
            None if !self.folder.is_writer() => Err(Error::ReadOnly),
            None => Ok(()),
        }
    }

    /// Makes changes whose data has reached the disk.
    pub(crate) fn commit(&mut self, changes: Vec<Change>) -> Result<()> {
        self.expect_writable()?;
        let written = self.write_changes(&changes);
        self.settle(written)?;
        if changes.into_iter().try_for_each(|change| self.catalog.apply(change)).is_none() {
            let reason = "a change did not fit the catalog".to_owned();
            self.stopped = Some(reason.clone());
            return Err(Error::WritesStopped { reason });
        }
        self.drop_anchor();
        if self.state.log_bytes > COMPACT_BYTES_MIN.max(2 * self.log_bytes_first) {
            // The changes count already; where there is no room for a new log, the old one goes on.
            let _ = self.rewrite_log(self.identity.clone());
        }
        Ok(())
    }

    fn write_changes(&mut self, changes: &[Change]) -> Result<(), Failure> {
        let Some(log) = &mut self.log else { return Err(Error::ReadOnly.into()) };
        let place = log.write(&self.runtime, changes.iter().cloned())?;
        let state = State::at(self.state.generation + 1, &place);
        self.folder.write_head(&self.identity.encode(&self.runtime, &state)?)?;
        log.committed(place);
        self.state = state;
        Ok(())
    }

    /// Begins a new log with everything that there is, under the newest root key of this identity.
    fn rewrite_log(&mut self, identity: Identity) -> Result<()> {
        let (_, root) = identity.keyring.newest()?;
        let mut log = Log::create(&self.runtime, &self.folder, identity.store, root)?;
        let id = log.place().log;
        let written = log.write(&self.runtime, self.catalog.changes()).and_then(|place| {
            let state = State::at(self.state.generation + 1, &place);
            self.folder.write_head(&identity.encode(&self.runtime, &state)?).map(|()| (state, place))
        });
        if matches!(&written, Err(failure) if !failure.is_unclear) {
            self.folder.remove_catalog(&id);
        }
        let (state, place) = self.settle(written)?;
        log.committed(place);
        self.folder.remove_catalog(&self.state.log);
        (self.log_bytes_first, self.identity, self.state, self.log) = (state.log_bytes, identity, state, Some(log));
        self.drop_anchor();
        Ok(())
    }

    /// An unclear failure ends all writing.
    fn settle<T>(&mut self, result: Result<T, Failure>) -> Result<T> {
        result.map_err(|Failure { error, is_unclear }| {
            if is_unclear {
                self.stopped = Some(error.to_string());
            }
            error
        })
    }

    fn drop_anchor(&mut self) {
        if let Some(file) = &self.options.anchor {
            self.anchor_problem = anchor::write(file, &self.identity.store, &self.state).err();
        }
    }

    fn expect_object(&self, name: &str) -> Result<&Object> {
        self.object(name).ok_or_else(|| Error::NoObject { name: name.to_owned() })
    }

    fn reader<'a>(&'a self, object: &Object, extent: &'a Extent) -> Result<ExtentReader<'a>> {
        let secret = object_secret(&self.runtime, &self.identity, extent.epoch, &object.id)?;
        let unknown = || Error::damaged(&self.folder.head_path(), "a root key is missing");
        ExtentReader::open(&self.runtime, &self.folder, &secret.ok_or_else(unknown)?, extent)
    }

    fn verify_object(&self, object: &Object) -> Result<()> {
        if merkle::object_root(&self.runtime, &object.extents)? != object.root {
            let path = self.folder.catalog_path(&self.state.log);
            return Err(Error::damaged(&path, "the Merkle root of an object is not that of its extents"));
        }
        object.extents.iter().try_for_each(|extent| self.reader(object, extent)?.verify())
    }
}

impl Entry {
    pub(crate) fn of(name: &str, object: &Object) -> Entry {
        Entry {
            name: name.to_owned(),
            len: object.len(),
            stored: object.extents.iter().map(|extent| extent.file_bytes).sum(),
            modified_s: object.modified_s,
            extents: object.extents.len(),
            root: object.root,
        }
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let objects = self.catalog.objects.len();
        write!(f, "Store({}, generation {}, {objects} objects)", self.folder.path().display(), self.state.generation)
    }
}

fn check(options: &Options) -> Result<()> {
    if !CHUNK_BYTES.contains(&options.chunk_bytes) {
        let expected = format!("{} to {}", CHUNK_BYTES.start(), CHUNK_BYTES.end());
        return Err(Error::invalid("bytes of a chunk", expected, options.chunk_bytes));
    }
    if options.extent_bytes_max < options.chunk_bytes as u64 {
        let expected = format!("at least a chunk of {}", options.chunk_bytes);
        return Err(Error::invalid("bytes of a file of data", expected, options.extent_bytes_max));
    }
    let levels = Format::Zstd.levels();
    match options.level {
        Some(level) if !levels.contains(&level) => {
            let expected = format!("{} to {}", levels.start(), levels.end());
            Err(Error::invalid("level of compression", expected, level))
        }
        _ => Ok(()),
    }
}
