//! Batches: changes that are committed together, with one wait for the disk.
//!
//! Data is written when an object is put into the batch. Names change at the commit, all of them
//! or none; until then no reader sees any change. A batch that is dropped leaves nothing behind,
//! and neither does a crash.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::catalog::{Change, EXTENTS_MAX, Extent, Object, check_name};
use crate::error::{Error, Result};
use crate::extent::buffers::Buffers;
use crate::extent::object_secret;
use crate::extent::owner::Owner;
use crate::extent::write::{CompressionProbe, ObjectSource, Setting, WrittenExtent, write_next};
use crate::merkle;
use crate::options::Compression;
use crate::randomness::random;
use crate::store::{Entry, Store};
use crate::syncing::Syncer;

/// Number of objects that are written at the same time by `put_many`: one is compressed
/// while the last chunks of another are sealed.
const OBJECTS_AT_ONCE: usize = 2;

/// Changes to a store that are committed together.
#[must_use = "a batch that is not committed changes nothing"]
pub struct Batch<'a> {
    store: &'a mut Store,
    changes: Vec<Change>,
    /// The objects after the changes so far; `None` for a removed object.
    staged: BTreeMap<String, Option<Object>>,
    /// Extents that this batch has written.
    written: Vec<[u8; 32]>,
    /// Extents that no object names once the batch is committed.
    freed: Vec<[u8; 32]>,
    syncer: Syncer,
    /// Counts writes, to tell the later of two extents of one commit.
    turns: AtomicU32,
    /// Memory for batches, and for chunks in planes.
    buffers: [Buffers; 2],
}

impl<'a> Batch<'a> {
    pub(crate) fn new(store: &'a mut Store) -> Result<Batch<'a>> {
        store.expect_writable()?;
        let (changes, staged, written, freed) = (Vec::new(), BTreeMap::new(), Vec::new(), Vec::new());
        let (syncer, turns, buffers) = (Syncer::default(), AtomicU32::new(0), Default::default());
        Ok(Batch { store, changes, staged, written, freed, syncer, turns, buffers })
    }

    /// Puts an object with all bytes of the source. An object of this name is replaced if `replace`
    /// is set; otherwise the call is refused.
    pub fn put(&mut self, name: &str, source: &mut dyn Read, replace: bool) -> Result<Entry> {
        self.check_new(name, replace)?;
        let object = self.write_object(name, source)?;
        Ok(self.take(name.to_owned(), object))
    }

    /// Puts many objects, in order; several are written at the same time, which is faster than one
    /// by one. If one fails, its error is returned: the objects before it are in the batch, it and
    /// the objects after it are not.
    pub fn put_many<R: Read>(
        &mut self,
        sources: impl Iterator<Item = (String, R)> + Send,
        replace: bool,
    ) -> (Vec<Entry>, Result<()>) {
        // Each thread takes one source at a time, with its index. After a failure no more are
        // taken.
        let sources = Mutex::new(sources.enumerate().fuse());
        let done: Mutex<BTreeMap<usize, (String, Result<Object>)>> = Mutex::default();
        let batch = &*self;
        let work = || {
            while let Some((place, (name, mut source))) = next_of(&sources, &done) {
                let object = batch.check_new(&name, replace);
                let object = object.and_then(|()| batch.write_object(&name, &mut source));
                done.lock().unwrap_or_else(PoisonError::into_inner).insert(place, (name, object));
            }
        };
        std::thread::scope(|scope| {
            let spawn = || std::thread::Builder::new().spawn_scoped(scope, work);
            // If no thread can be started, this one writes all objects.
            let others: Vec<_> = (1..OBJECTS_AT_ONCE).filter_map(|_| spawn().ok()).collect();
            work();
            drop(others);
        });
        let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (mut entries, mut outcome) = (Vec::with_capacity(done.len()), Ok(()));
        for (name, object) in done.into_values() {
            // This check also refuses a name that occurs twice.
            let checked = if outcome.is_ok() { self.check_new(&name, replace) } else { Ok(()) };
            match object {
                Ok(object) if outcome.is_ok() && checked.is_ok() => entries.push(self.take(name, object)),
                Ok(object) => {
                    give_up(self.store, &self.syncer, &object.extents);
                    outcome = outcome.and(checked);
                }
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        (entries, outcome)
    }

    /// Appends all bytes of the source to an object. If that fails, the object is unchanged.
    pub fn append(&mut self, name: &str, source: &mut dyn Read) -> Result<Entry> {
        let mut object = self.object(name).cloned().ok_or_else(|| Error::NoObject { name: name.to_owned() })?;
        let (modified_s, before) = (now_s(), object.extents.len());
        let extents = self.write_extents(self.owner(name, object.id, before, modified_s), source)?;
        let mut changes = Vec::with_capacity(extents.len());
        for extent in &extents {
            object.extents.push(extent.clone());
            object.modified_s = modified_s;
            object.root = match merkle::object_root(self.store.runtime(), &object.extents) {
                Ok(root) => root,
                Err(error) => {
                    give_up(self.store, &self.syncer, &extents);
                    return Err(error);
                }
            };
            changes.push(Change::Append {
                name: name.to_owned(),
                extent: extent.clone(),
                modified_s,
                root: object.root,
            });
        }
        self.written.extend(extents.iter().map(|extent| extent.id));
        self.changes.append(&mut changes);
        let entry = Entry::of(name, &object);
        self.staged.insert(name.to_owned(), Some(object));
        Ok(entry)
    }

    /// Removes an object.
    pub fn remove(&mut self, name: &str) -> Result<()> {
        let Some(object) = self.object(name) else { return Err(Error::NoObject { name: name.to_owned() }) };
        let extents: Vec<[u8; 32]> = object.extents.iter().map(|extent| extent.id).collect();
        self.freed.extend(extents);
        self.staged.insert(name.to_owned(), None);
        self.changes.push(Change::Remove { name: name.to_owned() });
        Ok(())
    }

    /// Number of changes so far.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether the batch has no changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Commits all changes. They are on the disk when this returns.
    pub fn commit(mut self) -> Result<()> {
        self.store.folder().expect_process()?;
        if self.changes.is_empty() {
            return Ok(());
        }
        self.syncer.finish()?;
        if !self.written.is_empty() {
            self.store.folder().sync_data()?;
        }
        let committed = self.store.commit(std::mem::take(&mut self.changes));
        match committed {
            Ok(()) => {
                self.written.clear();
                if !self.freed.is_empty() {
                    self.store.folder().remove_extents(&self.freed);
                    self.store.folder().complete_reserve();
                }
                Ok(())
            }
            Err(error) => {
                // If it is unclear whether the new names are on the disk, their data must stay.
                if self.store.expect_writable().is_err() {
                    self.written.clear();
                }
                Err(error)
            }
        }
    }

    /// The object with the changes so far.
    fn object(&self, name: &str) -> Option<&Object> {
        match self.staged.get(name) {
            Some(staged) => staged.as_ref(),
            None => self.store.object(name),
        }
    }

    /// Refuses an invalid name, and an existing name unless it may be replaced.
    fn check_new(&self, name: &str, replace: bool) -> Result<()> {
        check_name(name)?;
        match self.object(name).is_some() && !replace {
            true => Err(Error::ObjectExists { name: name.to_owned() }),
            false => Ok(()),
        }
    }

    /// Adds a written object to the batch.
    fn take(&mut self, name: String, object: Object) -> Entry {
        let before: Vec<[u8; 32]> =
            self.object(&name).iter().flat_map(|object| object.extents.iter().map(|extent| extent.id)).collect();
        self.freed.extend(before);
        self.written.extend(object.extents.iter().map(|extent| extent.id));
        let entry = Entry::of(&name, &object);
        self.staged.insert(name.clone(), Some(object.clone()));
        self.changes.push(Change::Put { name, object });
        entry
    }

    /// The owner record of the object's next extents, from extent `number` on.
    fn owner(&self, name: &str, object: [u8; 16], number: usize, modified_s: u64) -> Owner {
        Owner {
            object,
            generation: self.store.generation() + 1,
            turn: self.turns.fetch_add(1, Ordering::Relaxed),
            number: number as u32,
            modified_s,
            chunk_bytes: self.store.options().chunk_bytes as u32,
            name: name.to_owned(),
        }
    }

    /// Writes all bytes of a source as a new object. If that fails, nothing of it is left.
    fn write_object(&self, name: &str, source: &mut dyn Read) -> Result<Object> {
        let (id, modified_s) = (random()?, now_s());
        let extents = self.write_extents(self.owner(name, id, 0, modified_s), source)?;
        match merkle::object_root(self.store.runtime(), &extents) {
            Ok(root) => Ok(Object { id, modified_s, extents, root }),
            Err(error) => {
                give_up(self.store, &self.syncer, &extents);
                Err(error)
            }
        }
    }

    fn write_extents(&self, owner: Owner, source: &mut dyn Read) -> Result<Vec<Extent>> {
        self.store.expect_writable()?;
        let mut extents = Vec::new();
        match self.write_all(owner, source, &mut extents) {
            Ok(()) => Ok(extents),
            Err(error) => {
                give_up(self.store, &self.syncer, &extents);
                Err(error)
            }
        }
    }

    fn write_all(&self, mut owner: Owner, source: &mut dyn Read, extents: &mut Vec<Extent>) -> Result<()> {
        let (store, before) = (&*self.store, owner.number as usize);
        let (identity, options) = (store.identity(), store.options());
        if options.compression != Compression::Zstd && !identity.has_any_compression() {
            let expected =
                "zstd, since the store was made for it alone: `rotate` with another compression marks the store";
            return Err(Error::invalid("compression", expected, options.compression.name()));
        }
        let (epoch, root) = identity.keyring.newest()?;
        let none = || Error::invalid("root keys", "the newest", "none");
        let setting = Setting {
            runtime: store.runtime(),
            folder: store.folder(),
            chunk_bytes: options.chunk_bytes,
            extent_bytes_max: options.extent_bytes_max,
            compression: options.compression,
            level: options.level,
            compress_with: &options.compress_with,
            uses: store.uses(),
            epoch,
            root,
            store: identity.store,
            object_secret: &object_secret(store.runtime(), identity, epoch, &owner.object)?.ok_or_else(none)?,
            buffers: &self.buffers,
        };
        let (mut probe, mut source) = (CompressionProbe::default(), ObjectSource::new(source));
        while let Some(WrittenExtent { extent, file, path }) = write_next(&setting, &owner, &mut source, &mut probe)? {
            extents.push(extent);
            owner.number += 1;
            if before + extents.len() > EXTENTS_MAX {
                let expected = format!("at most {EXTENTS_MAX} pieces; put the object anew to join them");
                return Err(Error::invalid("object", expected, before + extents.len()));
            }
            self.syncer.push(file, path);
        }
        Ok(())
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.store.folder().remove_extents(&self.written);
    }
}

/// Takes the next source, unless one has failed.
fn next_of<T>(
    sources: &Mutex<impl Iterator<Item = (usize, T)>>,
    done: &Mutex<BTreeMap<usize, (String, Result<Object>)>>,
) -> Option<(usize, T)> {
    let mut sources = sources.lock().unwrap_or_else(PoisonError::into_inner);
    let done = done.lock().unwrap_or_else(PoisonError::into_inner);
    if done.values().any(|(_, object)| object.is_err()) {
        return None;
    }
    drop(done);
    sources.next()
}

/// Deletes extents that will not be named.
fn give_up(store: &Store, syncer: &Syncer, extents: &[Extent]) {
    extents.iter().for_each(|extent| syncer.give_up(store.folder().extent_path(&extent.id)));
    store.folder().remove_extents(extents.iter().map(|extent| &extent.id));
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
