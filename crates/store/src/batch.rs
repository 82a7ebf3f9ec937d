//! Batches: changes that count together, with one wait for the disk.
//!
//! Data is written when an object is put into the batch. Names change when it is committed, all of them or none; until then nobody sees
//! any of it. A batch that is dropped leaves nothing behind, nor does a crash.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::catalog::{Change, EXTENTS_MAX, Extent, Object, check_name};
use crate::error::{Error, Result};
use crate::extent::buffers::Buffers;
use crate::extent::object_secret;
use crate::extent::write::{Pays, Setting, Written, write_next};
use crate::key::random;
use crate::merkle;
use crate::store::{Entry, Store};
use crate::syncing::Syncer;

/// Objects that are written at the same time where many are put: one is compressed while the last chunks of another are sealed.
const OBJECTS_AT_ONCE: usize = 2;

/// Changes to a store that are made together.
#[must_use = "a batch that is not committed changes nothing"]
pub struct Batch<'a> {
    store: &'a mut Store,
    changes: Vec<Change>,
    /// What objects have become; `None` where there is none any more.
    staged: BTreeMap<String, Option<Object>>,
    /// Extents of this batch.
    written: Vec<[u8; 32]>,
    /// Extents that nobody names once it is committed.
    freed: Vec<[u8; 32]>,
    syncer: Syncer,
    /// Memory for batches, and for chunks in planes.
    buffers: [Buffers; 2],
}

impl<'a> Batch<'a> {
    pub(crate) fn new(store: &'a mut Store) -> Result<Batch<'a>> {
        store.expect_writable()?;
        let (changes, staged, written, freed) = (Vec::new(), BTreeMap::new(), Vec::new(), Vec::new());
        Ok(Batch { store, changes, staged, written, freed, syncer: Syncer::default(), buffers: Default::default() })
    }

    /// Puts an object: everything that the source has. One that is there already is refused, or replaced.
    pub fn put(&mut self, name: &str, source: &mut dyn Read, replace: bool) -> Result<Entry> {
        self.check_new(name, replace)?;
        let object = write_object(self.store, &self.syncer, &self.buffers, source)?;
        Ok(self.take(name.to_owned(), object))
    }

    /// Puts many objects, in order, faster than one by one: several are written at the same time. Where one fails, with the error that is
    /// returned, those before it are in the batch, and neither it nor those after it.
    pub fn put_many<R: Read>(
        &mut self,
        sources: impl Iterator<Item = (String, R)> + Send,
        replace: bool,
    ) -> (Vec<Entry>, Result<()>) {
        // Taken one at a time, with its place among them. After a failure none is taken any more.
        let sources = Mutex::new(sources.enumerate().fuse());
        let done: Mutex<BTreeMap<usize, (String, Result<Object>)>> = Mutex::default();
        let batch = &*self;
        let work = || {
            while let Some((place, (name, mut source))) = next_of(&sources, &done) {
                let object = batch.check_new(&name, replace);
                let object =
                    object.and_then(|()| write_object(batch.store, &batch.syncer, &batch.buffers, &mut source));
                done.lock().unwrap_or_else(PoisonError::into_inner).insert(place, (name, object));
            }
        };
        std::thread::scope(|scope| {
            let spawn = || std::thread::Builder::new().spawn_scoped(scope, work);
            // Where no thread can be had this one writes all of them.
            let others: Vec<_> = (1..OBJECTS_AT_ONCE).filter_map(|_| spawn().ok()).collect();
            work();
            drop(others);
        });
        let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
        let (mut entries, mut outcome) = (Vec::with_capacity(done.len()), Ok(()));
        for (name, object) in done.into_values() {
            // Also where one name comes twice.
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

    /// Adds everything that the source has to the end of an object: all of it, or where that fails nothing.
    pub fn append(&mut self, name: &str, source: &mut dyn Read) -> Result<Entry> {
        let mut object = self.object(name).cloned().ok_or_else(|| Error::NoObject { name: name.to_owned() })?;
        let modified_s = now_s();
        let before = object.extents.len();
        let extents = write_extents(self.store, &self.syncer, &self.buffers, &object.id, before, source)?;
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

    /// How many changes there are so far.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Makes all changes. When it returns they have reached the disk.
    pub fn commit(mut self) -> Result<()> {
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
                self.store.folder().remove_extents(&self.freed);
                Ok(())
            }
            Err(error) => {
                // Where it is unclear whether the new names count, their data must stay.
                if self.store.expect_writable().is_err() {
                    self.written.clear();
                }
                Err(error)
            }
        }
    }

    /// The object as it is with the changes so far.
    fn object(&self, name: &str) -> Option<&Object> {
        match self.staged.get(name) {
            Some(staged) => staged.as_ref(),
            None => self.store.object(name),
        }
    }

    /// Refuses a name that cannot be, or that is there and not to be replaced.
    fn check_new(&self, name: &str, replace: bool) -> Result<()> {
        check_name(name)?;
        match self.object(name).is_some() && !replace {
            true => Err(Error::ObjectExists { name: name.to_owned() }),
            false => Ok(()),
        }
    }

    /// Takes an object that was written into the batch.
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
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.store.folder().remove_extents(&self.written);
    }
}

/// The next source, unless one has failed.
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

/// Writes everything that a source has as a new object. Where that fails nothing is left of it.
fn write_object(store: &Store, syncer: &Syncer, buffers: &[Buffers; 2], source: &mut dyn Read) -> Result<Object> {
    let (id, modified_s) = (random()?, now_s());
    let extents = write_extents(store, syncer, buffers, &id, 0, source)?;
    match merkle::object_root(store.runtime(), &extents) {
        Ok(root) => Ok(Object { id, modified_s, extents, root }),
        Err(error) => {
            give_up(store, syncer, &extents);
            Err(error)
        }
    }
}

fn write_extents(
    store: &Store,
    syncer: &Syncer,
    buffers: &[Buffers; 2],
    object: &[u8; 16],
    extents_before: usize,
    source: &mut dyn Read,
) -> Result<Vec<Extent>> {
    let mut extents = Vec::new();
    match write_all(store, syncer, buffers, object, extents_before, source, &mut extents) {
        Ok(()) => Ok(extents),
        Err(error) => {
            give_up(store, syncer, &extents);
            Err(error)
        }
    }
}

fn write_all(
    store: &Store,
    syncer: &Syncer,
    buffers: &[Buffers; 2],
    object: &[u8; 16],
    extents_before: usize,
    source: &mut dyn Read,
    extents: &mut Vec<Extent>,
) -> Result<()> {
    let (identity, options) = (store.identity(), store.options());
    let (epoch, _) = identity.keyring.newest()?;
    let none = || Error::invalid("root keys", "the newest", "none");
    let setting = Setting {
        runtime: store.runtime(),
        folder: store.folder(),
        chunk_bytes: options.chunk_bytes,
        extent_bytes_max: options.extent_bytes_max,
        level: options.level,
        epoch,
        object_secret: &object_secret(store.runtime(), identity, epoch, object)?.ok_or_else(none)?,
        buffers,
    };
    let mut pays = Pays::default();
    while let Some(Written { extent, file, path }) = write_next(&setting, source, &mut pays)? {
        extents.push(extent);
        if extents_before + extents.len() > EXTENTS_MAX {
            let expected = format!("at most {EXTENTS_MAX} pieces; put the object anew to join them");
            return Err(Error::invalid("object", expected, extents_before + extents.len()));
        }
        syncer.push(file, path);
    }
    Ok(())
}

/// Deletes extents that nobody will name.
fn give_up(store: &Store, syncer: &Syncer, extents: &[Extent]) {
    extents.iter().for_each(|extent| syncer.give_up(store.folder().extent_path(&extent.id)));
    store.folder().remove_extents(extents.iter().map(|extent| &extent.id));
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}
