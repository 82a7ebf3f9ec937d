//! A store that is open.
//!
//! 1. One process writes, or several read; the lock on the folder decides. Others are refused, or
//!    wait as long as their options say.
//! 2. A change is written to the log and reaches the disk; then a new head names it and is renamed
//!    over the old one. Before this rename nothing has changed, after it everything has. Data lies
//!    in files of its own that reach the disk before the log.
//! 3. Opening reads the head and the log, and authenticates every byte of them; the data of an
//!    object is checked when it is read. Nothing in the folder is changed before that.
//! 4. Head and log have two copies. Damage in one is repaired from the other, and reported; a
//!    writer rewrites the damaged copy. If the log goes on behind the commit in the head, the store
//!    has its newest commit, and a writer makes a head that names it.
//! 5. Every write first checks that head and log are still as this writer left them. If another
//!    writer has bypassed the lock, this one fails, and the other's changes stay.
//! 6. After a failure that leaves the state of the disk unclear, nothing is written until the
//!    store is opened again.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use panoply_runtime::Runtime;

use crate::anchor::{self, AnchorRelation};
use crate::batch::Batch;
use crate::catalog::{Catalog, Change, Extent, Object};
use crate::encode::hex;
pub use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::extent::object_secret;
use crate::extent::read::{ExtentReader, ReaderEnds};
use crate::files::{read_file, read_intact};
use crate::folder::{Failure, Folder};
use crate::head::{HEAD_BYTES_MAX, Head, HeadSource, Identity, State, magic_for};
use crate::key::MasterKey;
use crate::log::{self, Log};
use crate::merkle;
use crate::newest::{Newest, refuse_successor_of_keys};
pub use crate::options::Options;
use crate::options::check;
use crate::overtaken::undone;
use crate::temporary;
use crate::uses::{CompressionUse, Uses};

/// A log is rewritten when it is longer than this, and than twice its first length.
const COMPACT_BYTES_MIN: u64 = 1 << 20;
/// Changes without an object that another writer can prevent.
const KEY_NOT_CHANGED: &str = "the key of the store was not changed";
const LOG_NOT_REWRITTEN: &str = "the log was not rewritten";

/// Result of [`Store::verify`].
#[derive(Clone, Debug, Default)]
pub struct Verification {
    /// Number of intact objects.
    pub intact: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Damaged objects, and why.
    pub damaged: Vec<(String, Error)>,
}

/// An encrypted store that is open.
pub struct Store {
    runtime: Arc<Runtime>,
    folder: Folder,
    options: Options,
    identity: Identity,
    state: State,
    /// HEAD as this process has read or written it last.
    head: Vec<u8>,
    catalog: Catalog,
    /// `None` in a store opened read-only.
    log: Option<Log>,
    /// Approximate length of the log right after it was last rewritten.
    log_bytes_first: u64,
    /// Why nothing can be written any more.
    stopped: Option<String>,
    had_no_anchor: bool,
    anchor_problem: Option<Error>,
    damaged_copies: Vec<Error>,
    uses: Uses,
}

impl Store {
    /// Makes a new store in a new or empty folder.
    pub fn create(runtime: impl Into<Arc<Runtime>>, path: &Path, key: &MasterKey, options: Options) -> Result<Store> {
        let runtime = runtime.into();
        check(&options)?;
        let identity = Identity::create(&runtime, magic_for(options.compression), key, options.passphrase_cost)?;
        let folder = Folder::create(path)?;
        let begun = begin(&runtime, &folder, &identity);
        let (log, state, head, catalog) = match begun {
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
            head,
            catalog,
            log: Some(log),
            log_bytes_first: 0,
            stopped: None,
            had_no_anchor: false,
            anchor_problem: None,
            damaged_copies: Vec::new(),
            uses: Uses::default(),
        };
        store.folder.complete_reserve();
        store.write_anchor();
        anchor::files(&store.options, &store.identity.store).iter().for_each(|file| temporary::remove_leftovers(file));
        Ok(store)
    }

    /// Opens a store to read and write. Files left over from a crash are deleted.
    pub fn open(runtime: impl Into<Arc<Runtime>>, path: &Path, key: &MasterKey, options: Options) -> Result<Store> {
        Store::open_as(runtime.into(), path, key, options, true)
    }

    /// Opens a store read-only. Nothing in its folder is changed.
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
        let path = folder.head_path();
        let head = read_file(&path, HEAD_BYTES_MAX)?;
        let from = HeadSource::new(folder.path(), &path, key, options.passphrase_cost);
        let Head { identity, state, is_whole } = Identity::decode(&runtime, &from, &head)?;
        let (_, root) = identity.keyring.newest()?;
        // The log's lock keeps out other writers even if the folder's lock does not. So files that
        // are not named are left over, unless the head was replaced after it was read.
        let (mut locked, mut log) = (Vec::new(), None);
        if writes {
            locked = log::lock(&folder, &[state.log])?;
            folder.expect_head(Some(&head))?;
        }
        let Newest { catalog, state, mut damaged_copies, is_head_newest } =
            Newest::read(&runtime, &folder, &identity, state, &head)?;
        let anchors = anchor::files(&options, &identity.store);
        let check = |file: &PathBuf| anchor::check(file, folder.path(), &identity.store, &catalog.history);
        let known: Vec<AnchorRelation> = anchors.iter().map(check).collect::<Result<_>>()?;
        let is_log_whole = damaged_copies.iter().all(|damaged| matches!(damaged, Error::OlderHead { .. }));
        if !is_whole {
            damaged_copies.push(Error::damaged(&path, "one of its two copies is not in order"));
        }
        let keys_path = folder.keys_path();
        let keys = read_intact(&keys_path, HEAD_BYTES_MAX)?.unwrap_or_default();
        if writes {
            identity.expect_keys_of_this_store(&keys_path, &keys)?;
        }
        let has_keys = identity.is_kept_in(&runtime, &keys_path, &keys);
        if !has_keys {
            if writes {
                let from = HeadSource { path: &keys_path, ..from };
                refuse_successor_of_keys(&runtime, &folder, &from, &keys, identity.store, &state)?;
            }
            damaged_copies.push(Error::damaged(&keys_path, "it does not have the root keys that HEAD has"));
        }
        if writes {
            let named: HashSet<String> = catalog.extents().map(|extent| hex(&extent.id)).collect();
            folder.remove_strangers(Some(&state.log), &named)?;
            folder.complete_reserve();
            log = Log::resume(&runtime, &mut locked, identity.store, root, state.place())?;
        }
        let mut store = Store {
            runtime,
            folder,
            options,
            identity,
            log_bytes_first: catalog.encoded_bytes(),
            state,
            head,
            catalog,
            log,
            stopped: None,
            had_no_anchor: !known.is_empty() && known.iter().all(|known| *known == AnchorRelation::Nothing),
            anchor_problem: None,
            damaged_copies,
            uses: Uses::default(),
        };
        if writes {
            store.mend_copies(has_keys, is_whole && is_head_newest, is_log_whole)?;
        }
        // Held until the store has locked a log of its own.
        drop(locked);
        if known.iter().any(|known| *known != AnchorRelation::This) {
            store.write_anchor();
        }
        anchors.iter().for_each(|file| temporary::remove_leftovers(file));
        Ok(store)
    }

    /// Rewrites damaged copies. A full disk must not prevent the removal of objects, so copies that
    /// do not fit stay as they are, and the next writer tries again.
    fn mend_copies(&mut self, has_keys: bool, is_head_whole: bool, is_log_whole: bool) -> Result<()> {
        if !has_keys {
            let written = self.identity.encode_keys(&self.runtime).and_then(|keys| self.folder.write_keys(&keys));
            self.or_later(written)?;
        }
        if self.log.is_none() {
            return self.rewrite_log(self.identity.clone(), LOG_NOT_REWRITTEN);
        }
        if !is_log_whole {
            let written = self.rewrite_log(self.identity.clone(), LOG_NOT_REWRITTEN);
            return self.or_later(written);
        }
        if !is_head_whole {
            let head = self.identity.encode(&self.runtime, &self.state)?;
            let written = self.folder.write_head(&head, Some(&self.head), &[]);
            let written = self.settle(written);
            if written.is_ok() {
                self.head = head;
            }
            self.or_later(written)?;
        }
        Ok(())
    }

    /// Ignores a full disk if nothing has changed.
    fn or_later(&self, written: Result<()>) -> Result<()> {
        match written {
            Err(Error::DiskFull { .. }) if self.stopped.is_none() => Ok(()),
            written => written,
        }
    }

    /// Path of its folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Its random id, as text.
    pub fn id(&self) -> String {
        hex(&self.identity.store)
    }

    /// Number of commits.
    pub fn generation(&self) -> u64 {
        self.state.generation
    }

    /// Number of root keys in use: each rotation adds one, and a key is dropped once no data uses
    /// it.
    pub fn epochs(&self) -> usize {
        self.identity.keyring.len()
    }

    /// Whether it was opened with an anchor that did not exist yet. Then an earlier rollback cannot
    /// be detected.
    pub fn had_no_anchor(&self) -> bool {
        self.had_no_anchor
    }

    /// Why the anchor could not be written. The store itself is intact.
    pub fn anchor_problem(&self) -> Option<&Error> {
        self.anchor_problem.as_ref()
    }

    /// Copies of head, log and root keys that were damaged when the store was opened, although the
    /// other copies were intact, and a head that was an older copy ([`Error::OlderHead`]). Nothing
    /// is lost; if the store was opened for writing, they have been rewritten. The disk may fail
    /// soon.
    pub fn damaged_copies(&self) -> &[Error] {
        &self.damaged_copies
    }

    /// The devices that have compressed and decompressed chunks since the store was opened.
    pub fn compression_uses(&self) -> Vec<CompressionUse> {
        self.uses.listed()
    }

    /// All objects, sorted by name. The list is authentic.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        self.catalog.objects.iter().map(|(name, object)| Entry::of(name, object))
    }

    /// The object of this name.
    pub fn get(&self, name: &str) -> Option<Entry> {
        self.object(name).map(|object| Entry::of(name, object))
    }

    /// Begins changes that are committed together.
    pub fn batch(&mut self) -> Result<Batch<'_>> {
        Batch::new(self)
    }

    /// Puts an object with all bytes of the source. An existing object is replaced if `replace` is
    /// set; otherwise the call is refused. The object is on the disk when this returns.
    pub fn put(&mut self, name: &str, source: &mut dyn Read, replace: bool) -> Result<Entry> {
        let mut batch = self.batch()?;
        let entry = batch.put(name, source, replace)?;
        batch.commit().map(|()| entry)
    }

    /// Appends all bytes of the source to an object.
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

    /// Writes all of an object to `out`. Bytes that are not authentic are never written.
    pub fn read(&self, name: &str, out: &mut dyn Write) -> Result<()> {
        let len = self.expect_object(name)?.len();
        self.read_range(name, 0..len, out)
    }

    /// Writes a range of an object to `out`.
    pub fn read_range(&self, name: &str, range: Range<u64>, out: &mut dyn Write) -> Result<()> {
        self.folder.expect_process()?;
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

    /// Reads everything and compares it with its Merkle roots. `progress` is called with the name
    /// and the bytes of each object after its check.
    pub fn verify(&self, progress: &mut dyn FnMut(&str, u64)) -> Result<Verification> {
        self.folder.expect_process()?;
        let mut found = Verification::default();
        for (name, object) in &self.catalog.objects {
            match self.verify_object(object) {
                Ok(()) => {
                    found.intact += 1;
                    found.bytes += object.len();
                }
                Err(error) if error.is_damage() => {
                    found.damaged.push((name.clone(), error));
                }
                Err(error) => return Err(error),
            }
            progress(name, object.len());
        }
        Ok(found)
    }

    /// Locks the store with another master key. Data is not rewritten: its root keys are sealed
    /// again, and a new root key is made for new data. So the old master key opens no new data, not
    /// even with an old copy of the head.
    pub fn rotate(&mut self, key: &MasterKey) -> Result<()> {
        self.expect_writable()?;
        let used: HashSet<u32> = self.catalog.extents().map(|extent| extent.epoch).collect();
        let cost = self.options.passphrase_cost;
        let identity =
            self.identity.rotated(&self.runtime, key, cost, magic_for(self.options.compression), |epoch| {
                used.contains(&epoch)
            })?;
        let current = self.folder.expect_head(Some(&self.head)).map_err(Failure::from);
        self.settle(current.map_err(|failure| failure.undoing(|| KEY_NOT_CHANGED.to_owned())))?;
        // The copy of the keys is written first: once the rotation counts, nothing is left that the
        // old master key opens.
        self.folder.write_keys(&identity.encode_keys(&self.runtime)?)?;
        if let Err(error) = self.rewrite_log(identity, KEY_NOT_CHANGED) {
            let keys = self.identity.encode_keys(&self.runtime)?;
            if self.stopped.is_none() {
                // If that fails too, the next writer does it.
                let _ = self.folder.write_keys(&keys);
            }
            return Err(error);
        }
        self.folder.remove_old_heads();
        Ok(())
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

    pub(crate) fn uses(&self) -> &Uses {
        &self.uses
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn object(&self, name: &str) -> Option<&Object> {
        self.catalog.objects.get(name)
    }

    /// Fails if nothing can be written.
    pub(crate) fn expect_writable(&self) -> Result<()> {
        self.folder.expect_process()?;
        match &self.stopped {
            Some(reason) => Err(Error::WritesStopped { reason: reason.clone() }),
            None if !self.folder.is_writer() => Err(Error::ReadOnly),
            None => Ok(()),
        }
    }

    /// Commits changes whose data is on the disk.
    pub(crate) fn commit(&mut self, changes: Vec<Change>) -> Result<()> {
        self.expect_writable()?;
        let written = self.write_changes_in_reserve(&changes);
        self.settle(written.map_err(|failure| failure.undoing(|| undone(&changes))))?;
        if changes.into_iter().try_for_each(|change| self.catalog.apply(change)).is_none() {
            let reason = "a change did not fit the catalog".to_owned();
            self.stopped = Some(reason.clone());
            return Err(Error::WritesStopped { reason });
        }
        self.catalog.note(self.state.generation, self.state.last_tag);
        self.write_anchor();
        if self.state.log_bytes > COMPACT_BYTES_MIN.max(2 * self.log_bytes_first) {
            // The changes already count; if there is no space for a new log, the old one is
            // continued.
            let _ = self.rewrite_log(self.identity.clone(), LOG_NOT_REWRITTEN);
        }
        Ok(())
    }

    /// Writes changes. On a full disk, removals may use the space of the reserve; the caller
    /// completes the reserve once the files of the removed objects are deleted.
    fn write_changes_in_reserve(&mut self, changes: &[Change]) -> Result<(), Failure> {
        let written = self.write_changes(changes);
        let is_full = matches!(&written, Err(Failure { error: Error::DiskFull { .. }, is_unclear: false }));
        let removes = changes.iter().all(|change| matches!(change, Change::Remove { .. }));
        if !(is_full && removes && self.folder.give_up_reserve()) {
            return written;
        }
        self.write_changes(changes).inspect_err(|_| self.folder.complete_reserve())
    }

    fn write_changes(&mut self, changes: &[Change]) -> Result<(), Failure> {
        let Some(log) = &mut self.log else { return Err(Error::ReadOnly.into()) };
        let generation = self.state.generation + 1;
        // Checked before a byte is written: the head must be the one that this writer knows.
        self.folder.expect_head(Some(&self.head))?;
        let place = log.write(&self.runtime, &self.folder, generation, changes.iter().cloned())?;
        let named: Vec<&Extent> = changes.iter().flat_map(Change::extents).collect();
        let state = State::at(generation, &place);
        let head = self.identity.encode(&self.runtime, &state).map_err(Failure::from);
        let written = head.and_then(|head| self.folder.write_head(&head, Some(&self.head), &named).map(|()| head));
        let head = match written {
            Ok(head) => head,
            Err(failure) if failure.is_unclear => {
                if matches!(failure.error, Error::Overtaken { .. }) {
                    log.cut_own(&place);
                }
                return Err(failure);
            }
            Err(failure) => {
                log.cut()?;
                return Err(failure);
            }
        };
        log.committed(place);
        (self.state, self.head) = (state, head);
        Ok(())
    }

    /// Writes a new log with the whole catalog, under the newest root key of this identity. If
    /// another writer has changed the store, the error says `undone`.
    fn rewrite_log(&mut self, identity: Identity, undone: &str) -> Result<()> {
        let (_, root) = identity.keyring.newest()?;
        let mut log = Log::create(&self.runtime, &self.folder, identity.store, root)?;
        let (id, generation) = (log.place().log, self.state.generation + 1);
        let written = log.write(&self.runtime, &self.folder, generation, self.catalog.changes()).and_then(|place| {
            let state = State::at(generation, &place);
            let head = identity.encode(&self.runtime, &state)?;
            self.folder.write_head(&head, Some(&self.head), &[]).map(|()| (state, head, place))
        });
        if matches!(&written, Err(failure) if !failure.is_unclear) {
            self.folder.remove_catalog(&id);
        }
        let (state, head, place) = self.settle(written.map_err(|failure| failure.undoing(|| undone.to_owned())))?;
        log.committed(place);
        let old = self.state.log;
        self.catalog.note(state.generation, state.last_tag);
        (self.log_bytes_first, self.identity, self.state, self.log) = (state.log_bytes, identity, state, Some(log));
        self.head = head;
        self.folder.remove_catalog(&old);
        self.write_anchor();
        Ok(())
    }

    /// Stops all writing after an unclear failure.
    fn settle<T>(&mut self, result: Result<T, Failure>) -> Result<T> {
        result.map_err(|Failure { error, is_unclear }| {
            if is_unclear {
                self.stopped = Some(error.reason());
            }
            error
        })
    }

    /// Writes the last point of the history into every anchor.
    fn write_anchor(&mut self) {
        let Some(point) = self.catalog.history.last() else { return };
        let write = |file: &PathBuf| anchor::write(file, &self.identity.store, point);
        let files = anchor::files(&self.options, &self.identity.store);
        self.anchor_problem = files.iter().map(write).find_map(Result::err);
    }

    fn expect_object(&self, name: &str) -> Result<&Object> {
        self.object(name).ok_or_else(|| Error::NoObject { name: name.to_owned() })
    }

    fn reader<'a>(&'a self, object: &Object, extent: &'a Extent) -> Result<ExtentReader<'a>> {
        let secret = object_secret(&self.runtime, &self.identity, extent.epoch, &object.id)?;
        let unknown = || Error::damaged(&self.folder.head_path(), "a root key is missing");
        let ends = ReaderEnds { runtime: &self.runtime, compress_with: &self.options.compress_with, uses: &self.uses };
        ExtentReader::open(ends, &self.folder, &secret.ok_or_else(unknown)?, extent)
    }

    fn verify_object(&self, object: &Object) -> Result<()> {
        if merkle::object_root(&self.runtime, &object.extents)? != object.root {
            let [path, _] = self.folder.catalog_paths(&self.state.log);
            return Err(Error::damaged(&path, "the Merkle root of an object is not that of its extents"));
        }
        object.extents.iter().try_for_each(|extent| self.reader(object, extent)?.verify())
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let objects = self.catalog.objects.len();
        write!(f, "Store({}, generation {}, {objects} objects)", self.folder.path().display(), self.state.generation)
    }
}

/// The first log, root keys and head of a new store.
fn begin(runtime: &Runtime, folder: &Folder, identity: &Identity) -> Result<(Log, State, Vec<u8>, Catalog)> {
    let (_, root) = identity.keyring.newest()?;
    let mut catalog = Catalog::default();
    let mut log = Log::create(runtime, folder, identity.store, root)?;
    let place = log.write(runtime, folder, 1, catalog.changes()).map_err(|failure| failure.error)?;
    let state = State::at(1, &place);
    catalog.note(1, place.last_tag);
    log.committed(place);
    folder.write_keys(&identity.encode_keys(runtime)?)?;
    let head = identity.encode(runtime, &state)?;
    folder.write_head(&head, None, &[]).map_err(|failure| failure.error)?;
    Ok((log, state, head, catalog))
}
