//! What a collection's threads share.
//!
//! 1. Searches take the current [`Snapshot`], which never changes, and need nothing else. The lock around it is held for
//!    the time of copying one pointer.
//! 2. One writer thread makes every change: it records it, takes it into the index of ids, and puts a new snapshot in
//!    place of the old one. It holds the index's lock around the last two, so that looking up an id and then taking the
//!    snapshot, in that order and under that lock, always fit together.
//! 3. A write is answered after its snapshot is in place: a search that begins later sees it.

use std::collections::BTreeSet;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use hashbrown::{DefaultHashBuilder, HashTable};
use panoply_core::DeviceId;
use panoply_runtime::Runtime;

use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::folder::Folder;
use crate::ivf::Centroids;
use crate::record::Slot;
use crate::schema::{Options, Schema};
use crate::segment::SegmentView;

/// Fields that are remembered. A collection with more of them takes whatever a filter asks for.
const FIELDS_MAX: usize = 1 << 16;
/// Fields that are named to whoever asks for one that does not exist.
const FIELDS_NAMED_MAX: usize = 20;

/// What a collection's threads share.
pub(crate) struct Shared {
    pub(crate) schema: Arc<Schema>,
    pub(crate) options: Options,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) folder: Option<Arc<Folder>>,
    pub(crate) hasher: DefaultHashBuilder,
    /// The devices that search rows of the host.
    pub(crate) hosts: Vec<DeviceId>,
    pub(crate) index: RwLock<Index>,
    /// Asks for background work.
    nudge: OnceLock<SyncSender<()>>,
    snapshot: RwLock<Arc<Snapshot>>,
    fields: RwLock<Arc<BTreeSet<String>>>,
    /// What a check of the rows has found. Searches end with it: a damaged row could be a wrong hit.
    damage: OnceLock<Error>,
    /// Whether every row that was there when the collection was opened has been checked.
    checked: AtomicBool,
}

/// The collection as it was at some time.
#[derive(Default)]
pub(crate) struct Snapshot {
    pub(crate) segments: Vec<Arc<SegmentView>>,
    pub(crate) centroids: Option<Arc<Centroids>>,
}

/// Which row has which id.
#[derive(Default)]
pub(crate) struct Index {
    /// The hash of an id, and its row.
    table: HashTable<(u64, Slot)>,
}

impl Shared {
    pub(crate) fn new(
        schema: Arc<Schema>,
        options: Options,
        runtime: Arc<Runtime>,
        folder: Option<Arc<Folder>>,
    ) -> Shared {
        Shared {
            schema,
            options,
            hosts: crate::search::residency::host_devices(&runtime),
            runtime,
            folder,
            hasher: DefaultHashBuilder::default(),
            index: RwLock::default(),
            nudge: OnceLock::new(),
            snapshot: RwLock::default(),
            fields: RwLock::default(),
            damage: OnceLock::new(),
            checked: AtomicBool::new(false),
        }
    }

    /// Notes that rows are damaged. Other failures of a check are not remembered.
    pub(crate) fn note_damage(&self, error: &Error) {
        if matches!(error, Error::Corrupt { .. }) {
            let _ = self.damage.set(error.clone());
        }
    }

    /// Refuses to answer from damaged rows.
    pub(crate) fn check_sound(&self) -> Result<()> {
        self.damage.get().map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Notes that every row was checked.
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

    /// Says whom to ask for background work. The first call counts.
    pub(crate) fn set_nudge(&self, sender: SyncSender<()>) {
        let _ = self.nudge.set(sender);
    }

    /// Asks for background work: compaction, uploads. Many requests are one.
    pub(crate) fn nudge(&self) {
        if let Some(sender) = self.nudge.get() {
            let _ = sender.try_send(());
        }
    }

    /// The collection as it is now.
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.snapshot.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts a new snapshot in place.
    pub(crate) fn publish(&self, snapshot: Snapshot) {
        *self.snapshot.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
    }

    pub(crate) fn hash(&self, id: &str) -> u64 {
        self.hasher.hash_one(id.as_bytes())
    }

    /// The row of an id, with the snapshot in which it is.
    pub(crate) fn find(&self, id: &str) -> (Option<Slot>, Arc<Snapshot>) {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let snapshot = self.snapshot();
        (index.find(&snapshot, self.hash(id), id), snapshot)
    }

    /// Every metadata field that a record has ever had.
    pub(crate) fn fields(&self) -> Arc<BTreeSet<String>> {
        Arc::clone(&self.fields.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes in fields, as many as are remembered.
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

    /// Those of a batch's fields that are to be remembered and are not yet.
    pub(crate) fn new_fields(&self, batch: &BTreeSet<String>) -> Vec<String> {
        let known = self.fields();
        let room = FIELDS_MAX.saturating_sub(known.len());
        batch.iter().filter(|field| !known.contains(*field)).take(room).cloned().collect()
    }

    /// Checks that the fields which a filter asks for exist.
    pub(crate) fn check_filter(&self, filter: &Filter) -> Result<()> {
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

    /// How many records there are.
    pub(crate) fn len(&self) -> usize {
        self.segments.iter().map(|segment| segment.len() as usize).sum()
    }
}

impl Index {
    pub(crate) fn with_capacity(ids: usize) -> Index {
        Index { table: HashTable::with_capacity(ids) }
    }

    pub(crate) fn find(&self, snapshot: &Snapshot, hash: u64, id: &str) -> Option<Slot> {
        let same = |(other, slot): &(u64, Slot)| {
            *other == hash && snapshot.segment(slot.segment).is_some_and(|segment| segment.id_of(slot.row) == id)
        };
        self.table.find(hash, same).map(|(_, slot)| *slot)
    }

    /// Makes room for so many more ids, so that the table grows once.
    pub(crate) fn reserve(&mut self, more: usize) {
        self.table.reserve(more, |(hash, _)| *hash);
    }

    /// The same; `None` where there is no memory for that.
    pub(crate) fn try_reserve(&mut self, more: usize) -> Option<()> {
        self.table.try_reserve(more, |(hash, _)| *hash).ok()
    }

    pub(crate) fn insert(&mut self, hash: u64, slot: Slot) {
        self.table.insert_unique(hash, (hash, slot), |(hash, _)| *hash);
    }

    pub(crate) fn remove(&mut self, hash: u64, slot: Slot) {
        if let Ok(entry) = self.table.find_entry(hash, |(_, other)| *other == slot) {
            entry.remove();
        }
    }

    /// The same id in another row.
    pub(crate) fn relocate(&mut self, hash: u64, from: Slot, to: Slot) {
        if let Some((_, slot)) = self.table.find_mut(hash, |(_, other)| *other == from) {
            *slot = to;
        }
    }

    pub(crate) fn clear(&mut self) {
        self.table.clear();
    }
}
