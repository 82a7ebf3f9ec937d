//! State shared by the threads of a collection.
//!
//! 1. Searches take the current [`Snapshot`], which never changes, and need nothing else. The lock
//!    around it is held only while one pointer is copied.
//! 2. One writer thread makes every change: it records it, applies it to the index of ids, and
//!    replaces the snapshot. It holds the index's lock around the last two steps. So looking up an
//!    id and then taking the snapshot, in that order and under that lock, is always consistent.
//! 3. A write is answered after its snapshot is in place: a search that begins later sees it.
//! 4. In a fork of the process no lock is waited for: see [`CollectionState::read`].

use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock, PoisonError, RwLock, TryLockError};

use hashbrown::{DefaultHashBuilder, HashTable};
use panoply_core::{DeviceId, DeviceKind};
use panoply_runtime::Runtime;
use panoply_runtime::process::Process;

use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::folder::Folder;
use crate::ivf::Centroids;
use crate::record::RowAddress;
use crate::schema::{Options, Schema};
use crate::search::check_types;
use crate::search::placement::Placement;
use crate::segment::SegmentView;

/// Maximal number of remembered fields. A collection with more of them accepts any field in a
/// filter.
const FIELDS_MAX: usize = 1 << 16;
/// Maximal number of fields that the error about an unknown field names.
const FIELDS_NAMED_MAX: usize = 20;

/// State shared by the threads of a collection.
pub(crate) struct CollectionState {
    pub(crate) schema: Arc<Schema>,
    pub(crate) options: Options,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) folder: Option<Arc<Folder>>,
    pub(crate) hasher: DefaultHashBuilder,
    /// The devices that search rows in host memory.
    pub(crate) hosts: Vec<DeviceId>,
    pub(crate) index: RwLock<Index>,
    /// Requests background work.
    nudge: OnceLock<SyncSender<()>>,
    snapshot: RwLock<Arc<Snapshot>>,
    fields: RwLock<Arc<BTreeSet<String>>>,
    /// The damage found by a check of the rows. Searches fail with it: a damaged row could be a
    /// wrong hit.
    damage: OnceLock<Error>,
    /// Whether every row that existed when the collection was opened has been checked.
    checked: AtomicBool,
    /// The devices that may hold rows.
    pub(crate) placement: Placement,
    /// The process whose threads serve the collection.
    process: Process,
}

/// Name of a collection in errors.
pub(crate) const COLLECTION: &str = "the collection";

/// An immutable state of the collection.
#[derive(Default)]
pub(crate) struct Snapshot {
    pub(crate) segments: Vec<Arc<SegmentView>>,
    pub(crate) centroids: Option<Arc<Centroids>>,
}

/// The row of each id.
#[derive(Default)]
pub(crate) struct Index {
    /// The hash of an id, and its row.
    table: HashTable<(u64, RowAddress)>,
}

impl CollectionState {
    pub(crate) fn new(
        schema: Arc<Schema>,
        options: Options,
        runtime: Arc<Runtime>,
        folder: Option<Arc<Folder>>,
    ) -> CollectionState {
        CollectionState {
            schema,
            options,
            hosts: host_devices(&runtime),
            runtime,
            folder,
            hasher: DefaultHashBuilder::default(),
            index: RwLock::default(),
            nudge: OnceLock::new(),
            snapshot: RwLock::default(),
            fields: RwLock::default(),
            damage: OnceLock::new(),
            checked: AtomicBool::new(false),
            placement: Placement::default(),
            process: Process::current(),
        }
    }

    /// Records that rows are damaged. Other failures of a check are not recorded.
    pub(crate) fn note_damage(&self, error: &Error) {
        if matches!(error, Error::Corrupt { .. }) {
            let _ = self.damage.set(error.clone());
        }
    }

    /// Fails in a fork: the collection's threads do not exist there, and locks that they held are
    /// never released.
    pub(crate) fn check_process(&self) -> Result<()> {
        self.process.check(COLLECTION).map_err(Error::Device)
    }

    /// Whether this is the process whose threads serve the collection, and not a fork of it.
    pub(crate) fn is_here(&self) -> bool {
        self.process.is_here()
    }

    /// Fails if rows are damaged, and in a fork.
    pub(crate) fn check_sound(&self) -> Result<()> {
        self.check_process()?;
        self.damage.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Records that every row was checked.
    pub(crate) fn note_checked(&self) {
        self.checked.store(true, Ordering::Relaxed);
    }

    /// Whether every row has been checked.
    pub(crate) fn is_checked(&self) -> bool {
        self.checked.load(Ordering::Relaxed)
    }

    /// Whether nothing may be changed.
    pub(crate) fn is_read_only(&self) -> bool {
        self.folder.as_ref().is_some_and(|folder| folder.is_read_only())
    }

    /// Sets the receiver of requests for background work. Only the first call has an effect.
    pub(crate) fn set_nudge(&self, sender: SyncSender<()>) {
        let _ = self.nudge.set(sender);
    }

    /// Requests background work: compaction, uploads. Pending requests are merged.
    pub(crate) fn nudge(&self) {
        if let Some(sender) = self.nudge.get() {
            let _ = sender.try_send(());
        }
    }

    /// The current snapshot; in a fork, that of the time of the fork.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.read(&self.snapshot)
    }

    /// Replaces the snapshot.
    pub(crate) fn publish(&self, snapshot: Snapshot) {
        let mut place = self.snapshot.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *place, Arc::new(snapshot));
        // Dropping segments takes a while, so it happens outside the lock.
        drop(place);
        drop(before);
    }

    /// The value behind a lock that is held only briefly. In a fork, a thread that no longer exists
    /// may hold it forever: if the value was being changed, the default is returned.
    pub(crate) fn read<T: Default>(&self, lock: &RwLock<Arc<T>>) -> Arc<T> {
        if self.is_here() {
            return Arc::clone(&lock.read().unwrap_or_else(PoisonError::into_inner));
        }
        match lock.try_read() {
            Ok(value) => Arc::clone(&value),
            Err(TryLockError::Poisoned(poisoned)) => Arc::clone(&poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Arc::default(),
        }
    }

    pub(crate) fn hash(&self, id: &str) -> u64 {
        self.hasher.hash_one(id.as_bytes())
    }

    /// The row of an id, with the snapshot that contains it.
    pub(crate) fn find(&self, id: &str) -> (Option<RowAddress>, Arc<Snapshot>) {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let snapshot = self.snapshot();
        (index.find(&snapshot, self.hash(id), id), snapshot)
    }

    /// Every metadata field that a record has ever had.
    pub(crate) fn fields(&self) -> Arc<BTreeSet<String>> {
        self.read(&self.fields)
    }

    /// Adds fields, up to the limit.
    pub(crate) fn add_fields(&self, more: impl IntoIterator<Item = String>) {
        let mut more = more.into_iter().peekable();
        if more.peek().is_some() {
            let mut fields = self.fields.write().unwrap_or_else(PoisonError::into_inner);
            let fields = Arc::make_mut(&mut fields);
            for field in more {
                if fields.len() < FIELDS_MAX {
                    fields.insert(field);
                }
            }
        }
    }

    /// The fields of a batch that are not yet remembered, up to the limit.
    pub(crate) fn new_fields(&self, batch: &BTreeSet<String>) -> Vec<String> {
        let known = self.fields();
        let room = FIELDS_MAX.saturating_sub(known.len());
        batch.iter().filter(|field| !known.contains(*field)).take(room).cloned().collect()
    }

    /// Checks that the fields of a filter exist, and have values of the types that it compares them
    /// with.
    pub(crate) fn check_filter(&self, filter: &Filter) -> Result<()> {
        self.check_fields(filter)?;
        check_types(&self.snapshot().segments, filter)
    }

    fn check_fields(&self, filter: &Filter) -> Result<()> {
        let fields = self.fields();
        if fields.len() >= FIELDS_MAX {
            return Ok(());
        }
        let mut unknown = None;
        filter.for_each_field(&mut |field| {
            if !fields.contains(field) && unknown.is_none() {
                unknown = Some(field.to_owned());
            }
        });
        let Some(field) = unknown else { return Ok(()) };
        let mut known = fields.iter().take(FIELDS_NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
        match fields.len() {
            0 => known = "none".to_owned(),
            count if count > FIELDS_NAMED_MAX => known += &format!(" and {} more", count - FIELDS_NAMED_MAX),
            _ => {}
        }
        Err(Error::UnknownField { field, known })
    }
}

impl Snapshot {
    /// The segment with this number.
    pub(crate) fn segment(&self, id: u32) -> Option<&Arc<SegmentView>> {
        self.segments.iter().find(|segment| segment.id == id)
    }

    /// Number of records.
    pub(crate) fn len(&self) -> usize {
        self.segments.iter().map(|segment| segment.len() as usize).sum()
    }
}

impl Index {
    pub(crate) fn with_capacity(ids: usize) -> Index {
        Index { table: HashTable::with_capacity(ids) }
    }

    pub(crate) fn find(&self, snapshot: &Snapshot, hash: u64, id: &str) -> Option<RowAddress> {
        let same = |(other, slot): &(u64, RowAddress)| {
            *other == hash && snapshot.segment(slot.segment).is_some_and(|segment| segment.id_of(slot.row) == id)
        };
        self.table.find(hash, same).map(|(_, slot)| *slot)
    }

    /// Reserves space for this many more ids, so that the table grows once.
    pub(crate) fn reserve(&mut self, more: usize) {
        self.table.reserve(more, |(hash, _)| *hash);
    }

    /// The same; `None` if there is no memory.
    pub(crate) fn try_reserve(&mut self, more: usize) -> Option<()> {
        self.table.try_reserve(more, |(hash, _)| *hash).ok()
    }

    pub(crate) fn insert(&mut self, hash: u64, slot: RowAddress) {
        self.table.insert_unique(hash, (hash, slot), |(hash, _)| *hash);
    }

    pub(crate) fn remove(&mut self, hash: u64, slot: RowAddress) {
        if let Ok(entry) = self.table.find_entry(hash, |(_, other)| *other == slot) {
            entry.remove();
        }
    }

    /// Moves an id to another row.
    pub(crate) fn relocate(&mut self, hash: u64, from: RowAddress, to: RowAddress) {
        if let Some((_, slot)) = self.table.find_mut(hash, |(_, other)| *other == from) {
            *slot = to;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.table.clear();
    }
}

/// The devices that search rows on the host.
fn host_devices(runtime: &Runtime) -> Vec<DeviceId> {
    let cpus = runtime.devices().filter(|info| info.kind == DeviceKind::Cpu && !info.is_simulated());
    cpus.map(|info| info.id).collect()
}
