//! Repairs a store that does not open, and reports what is lost.
//!
//! 1. Head and log have two copies; an intact copy is used without any repair. A repair is for a
//!    store in which both copies of something are damaged or missing.
//! 2. It begins with authentic data: HEAD if one copy is intact, else the root keys of HEAD or
//!    `data/KEYS`; then the records of the log up to the first that is intact in neither copy;
//!    then extents that these records do not name, each of which contains the object it belongs
//!    to.
//! 3. An extent that these records do not name, although they contain its commit, belongs to no
//!    object: it was removed, or never counted. The same holds for an extent of a commit beyond
//!    the last in HEAD. A put or append is restored whole or not at all. Later data has a later
//!    generation and no older root key.
//! 4. Nothing is changed unless the caller asks for it. Damaged files, and extents of incomplete
//!    objects, are then set aside with `.damaged` behind their names. They are never deleted,
//!    except heads by a key rotation.
//! 5. The report states what cannot be proved. Without HEAD the last record is unknown: the last
//!    changes may be missing, changes in progress may be there, and objects whose removal was lost
//!    may come back. Someone with an earlier master key may have made extents of its time.
//! 6. The anchor stays as it is, unless the recovered log contains the point that it remembers, or
//!    a new anchor is requested.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use panoply_runtime::Runtime;

use crate::anchor::{self, AnchorRelation};
use crate::catalog::{Catalog, Object};
use crate::error::{Error, Result};
use crate::extent::owner::{IdentifiedExtent, identify};
use crate::files::{read_file, read_intact};
use crate::folder::Folder;
use crate::head::{GENERATION_MAX, HEAD_BYTES_MAX, Head, HeadSource, Identity, State};
use crate::key::MasterKey;
use crate::lock::Alone;
use crate::log::{self, Log, LogPoint, SalvagedLog};
use crate::merkle;
use crate::options::{Options, check};
use crate::store::Store;
use crate::temporary;

/// Options of [`Store::repair`]: the changes that it may make to the folder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairOptions {
    /// Repairs the store; otherwise nothing is changed.
    pub apply: bool,
    /// Rewrites the anchor to the repaired store, even if the anchor remembers a point that the
    /// store does not contain.
    pub new_anchor: bool,
}

/// Result of a repair.
#[derive(Clone, Debug, Default)]
pub struct Repair {
    /// The damage that was found; empty if there is none.
    pub findings: Vec<Error>,
    /// Number of objects in the store afterwards.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Objects that were found by their extents, beyond those in the log.
    pub found: Vec<String>,
    /// Objects that are missing or incomplete afterwards, and why.
    pub lost: Vec<(String, &'static str)>,
    /// Number of data files that belong to no recoverable object. They are set aside.
    pub files_aside: u64,
    /// Number of those that cannot be read, so that it is unknown whether and to which object they
    /// belonged. Objects of unknown names may be lost.
    pub files_unreadable: u64,
    /// Whether head and log are authentic to their end. Otherwise the last changes may be missing,
    /// changes in progress may be there, and removed objects may come back.
    pub is_proved: bool,
    /// Whether the anchors remember a point that the store contains; `None` if there is no anchor.
    pub is_anchored: Option<bool>,
    /// Whether the repair was carried out. Otherwise nothing was changed.
    pub applied: bool,
}

/// The recoverable state of a store.
struct RecoverableState {
    identity: Identity,
    catalog: Catalog,
    /// The newest generation that was found anywhere.
    generation: u64,
    /// Whether HEAD has an intact copy.
    has_head: bool,
    /// HEAD as it was read.
    head: Option<Vec<u8>>,
    report: Repair,
    /// Files that the repaired store does not use.
    aside: Vec<PathBuf>,
}

impl Store {
    /// Reports the damage and what can be recovered; repairs the store if `wanted` says so.
    pub fn repair(
        runtime: impl Into<Arc<Runtime>>,
        path: &Path,
        key: &MasterKey,
        options: &Options,
        wanted: RepairOptions,
    ) -> Result<Repair> {
        let runtime = runtime.into();
        check(options)?;
        let folder = Folder::open_anyhow(path, wanted.apply, options.lock_wait)?;
        // The logs are locked too, so that no other writer changes them even if the folder's lock
        // does not hold.
        let locked = if wanted.apply { log::lock(&folder, &folder.catalog_ids()?)? } else { Vec::new() };
        let mut found = find(&runtime, &folder, key, options)?;
        let anchors = anchor::files(options, &found.identity.store);
        let checked =
            |file: &PathBuf| anchor::check(file, folder.path(), &found.identity.store, &found.catalog.history);
        let known: Vec<AnchorRelation> = anchors.iter().map(checked).map(known_at_all).collect::<Result<_>>()?;
        let is_there = |file: &PathBuf| file.symlink_metadata().is_ok();
        let is_contained =
            anchors.iter().zip(&known).all(|(file, known)| !is_there(file) || *known != AnchorRelation::Nothing);
        found.report.is_anchored = anchors.iter().any(is_there).then_some(is_contained);
        let store = found.identity.store;
        let remembered = anchors.iter().filter_map(|file| anchor::generation(file, &store)).max();
        // An anchor is neither secret nor authenticated: an impossibly high number is ignored.
        let remembered = remembered.filter(|generation| *generation < GENERATION_MAX);
        found.generation = found.generation.max(remembered.unwrap_or(0));
        if wanted.apply {
            anchors.iter().try_for_each(|file| anchor::expect_replaceable(file))?;
            anchors.iter().for_each(|file| temporary::remove_leftovers(file));
        }
        if wanted.apply && !found.report.findings.is_empty() {
            apply(&runtime, &folder, locked, &mut found)?;
            found.report.applied = true;
        }
        let may_anchor = wanted.apply && (wanted.new_anchor || found.report.applied && is_contained);
        if let Some(point) = found.catalog.history.last().filter(|_| may_anchor) {
            anchors.iter().try_for_each(|file| anchor::write(file, &store, point))?;
            found.report.is_anchored = (!anchors.is_empty()).then_some(true);
        }
        Ok(found.report)
    }
}

/// An anchor whose point is not in the log tells nothing. One that cannot be read now is an error.
fn known_at_all(checked: Result<AnchorRelation>) -> Result<AnchorRelation> {
    match checked {
        Err(error @ Error::Io { .. }) if !error.is_damage() => Err(error),
        checked => Ok(checked.unwrap_or(AnchorRelation::Nothing)),
    }
}

fn find(runtime: &Runtime, folder: &Folder, key: &MasterKey, options: &Options) -> Result<RecoverableState> {
    let (mut report, mut aside) = (Repair::default(), Vec::new());
    let head = read_file(&folder.head_path(), HEAD_BYTES_MAX);
    if let Err(error) = &head
        && !error.is_damage()
    {
        return Err(error.clone());
    }
    let Keys { identity, state, newer: newer_keys } =
        find_keys(runtime, folder, key, options, &head, &mut report.findings)?;
    let LogContents { identity, salvaged, is_older_head } =
        find_log(runtime, folder, identity, newer_keys, state.as_ref(), &mut report)?;
    let SalvagedLog { mut catalog, complete, .. } = salvaged;
    let known = log::newest(&catalog);
    let mut generation = known.max(state.as_ref().map_or(0, |state| state.generation));
    if !report.is_proved {
        // An older head does not tell which commit was the last.
        let last = state.as_ref().filter(|_| !is_older_head).map_or(u64::MAX, |state| state.generation);
        let unnamed = find_extents(runtime, folder, &identity, &catalog, &mut aside)?.into_iter();
        report.files_unreadable = aside.len() as u64;
        let may_count = |found: &IdentifiedExtent| (complete + 1..=last).contains(&found.owner.generation);
        let (unnamed, others): (Vec<IdentifiedExtent>, Vec<IdentifiedExtent>) = unnamed.partition(may_count);
        let (unnamed, forged) = by_epochs(&identity, known, unnamed)?;
        aside.extend(others.iter().chain(&forged).map(|found| folder.extent_path(&found.extent.id)));
        generation = unnamed.iter().map(|found| found.owner.generation).max().unwrap_or(0).max(generation);
        drop_incomplete(folder, &mut catalog, &mut report, &mut aside);
        add_found(runtime, folder, &mut catalog, known, unnamed, &mut report, &mut aside)?;
    } else {
        name_incomplete(folder, &catalog, &mut report);
    }
    report.files_aside = aside.len() as u64;
    report.objects = catalog.objects.len() as u64;
    report.bytes = catalog.objects.values().map(Object::len).sum();
    Ok(RecoverableState { identity, catalog, generation, has_head: state.is_some(), head: head.ok(), report, aside })
}

/// The content of a log.
struct LogContents {
    /// The root keys that open it.
    identity: Identity,
    salvaged: SalvagedLog,
    /// Whether the log goes on behind the commit that HEAD names.
    is_older_head: bool,
}

/// Reads the log as far as it is intact, also behind the commit that HEAD names.
fn find_log(
    runtime: &Runtime,
    folder: &Folder,
    identity: Identity,
    newer_keys: Option<Identity>,
    state: Option<&State>,
    report: &mut Repair,
) -> Result<LogContents> {
    let salvaged = find_own_log(runtime, folder, &identity, state, report)?;
    let own = LogContents { salvaged, is_older_head: false, identity };
    let Some(state) = state else { return Ok(own) };
    let older = |expected| Error::OlderHead { path: folder.head_path(), expected, got: state.generation };
    let read = |identity: Identity, state: &State| -> Result<Option<LogContents>> {
        let (_, root) = identity.keyring.newest()?;
        let found = log::successor(runtime, folder, identity.store, root, state)?;
        Ok(found.map(|salvaged| LogContents { identity, salvaged, is_older_head: true }))
    };
    let (mut newest, mut end) = (own, state.clone());
    if report.is_proved {
        let (_, root) = newest.identity.keyring.newest()?;
        let catalog = &newest.salvaged.catalog;
        if let Some(found) = log::beyond(runtime, folder, newest.identity.store, root, state, catalog)? {
            // A single commit is taken up by the next writer, without any repair.
            newest.is_older_head = found.is_older_head;
            let (complete, place) = (found.state.generation, found.state.place());
            newest.salvaged = SalvagedLog { catalog: found.catalog, place, complete };
            end = found.state;
        }
    }
    for identity in [Some(newest.identity.clone()), newer_keys].into_iter().flatten() {
        // A log that was being rewritten has the same content.
        let is_begun = |found: &LogContents| report.is_proved && found.salvaged.complete <= end.generation + 1;
        if let Some(found) = read(identity, &end)?.filter(|found| !is_begun(found)) {
            newest = found;
        }
    }
    if newest.is_older_head {
        report.findings.push(older(newest.salvaged.complete));
        report.is_proved = false;
    }
    Ok(newest)
}

/// Reads the log that HEAD names; without HEAD, the newest.
fn find_own_log(
    runtime: &Runtime,
    folder: &Folder,
    identity: &Identity,
    state: Option<&State>,
    report: &mut Repair,
) -> Result<SalvagedLog> {
    let (_, root) = identity.keyring.newest()?;
    let salvage = |log, end: Option<&LogPoint>| log::salvage(runtime, folder, identity.store, root, log, end);
    let Some(end) = state.map(State::place) else {
        let mut found = SalvagedLog::default();
        for id in folder.catalog_ids()? {
            let salvaged = salvage(id, None)?;
            if log::newest(&salvaged.catalog) > log::newest(&found.catalog) {
                found = salvaged;
            }
        }
        return Ok(found);
    };
    match log::read(runtime, folder, identity.store, root, &end) {
        Ok(log::LogCatalog { catalog, damaged }) => {
            report.findings.extend(damaged);
            report.is_proved = true;
            Ok(SalvagedLog { complete: log::newest(&catalog), catalog, place: end })
        }
        Err(error) if error.is_damage() => {
            report.findings.push(error);
            salvage(end.log, Some(&end))
        }
        Err(error) => Err(error),
    }
}

/// Splits off extents that have an older root key than others of their generation or before. Root
/// keys only become newer, so such extents were forged with an earlier master key. `known` is the
/// last generation of a log, which is sealed with the newest root key.
fn by_epochs(
    identity: &Identity,
    known: u64,
    mut found: Vec<IdentifiedExtent>,
) -> Result<(Vec<IdentifiedExtent>, Vec<IdentifiedExtent>)> {
    let (newest, _) = identity.keyring.newest()?;
    // Sorted by key, newest first, then by generation.
    found.sort_by_key(|found| (std::cmp::Reverse(found.extent.epoch), found.owner.generation));
    let (mut epoch, mut end, mut next_end) = (newest, u64::MAX, if known > 0 { known + 1 } else { u64::MAX });
    let (mut kept, mut forged) = (Vec::new(), Vec::new());
    for extent in found {
        if extent.extent.epoch < epoch {
            (epoch, end) = (extent.extent.epoch, next_end);
        }
        let generation = extent.owner.generation;
        if generation < end {
            next_end = next_end.min(generation);
            kept.push(extent);
        } else {
            forged.push(extent);
        }
    }
    Ok((kept, forged))
}

/// The root keys, and the state if HEAD has an intact copy.
struct Keys {
    identity: Identity,
    state: Option<State>,
    /// Those of `data/KEYS`, if they are newer than those of HEAD.
    newer: Option<Identity>,
}

/// Reads the root keys.
fn find_keys(
    runtime: &Runtime,
    folder: &Folder,
    key: &MasterKey,
    options: &Options,
    head: &Result<Vec<u8>>,
    findings: &mut Vec<Error>,
) -> Result<Keys> {
    let (head_path, keys_path) = (folder.head_path(), folder.keys_path());
    let from = |path| HeadSource::new(folder.path(), path, key, options.passphrase_cost);
    let keys = read_intact(&keys_path, HEAD_BYTES_MAX)?
        .ok_or_else(|| Error::damaged(&keys_path, "it is missing, or cannot be read"));
    let read_keys = || keys.clone().and_then(|bytes| Identity::decode_front(runtime, &from(&keys_path), &bytes));
    let read = head.clone().and_then(|bytes| Identity::decode(runtime, &from(&head_path), &bytes));
    let newest = |identity: &Identity| identity.keyring.newest().map_or(0, |(epoch, _)| epoch);
    let (identity, state) = match read {
        Ok(Head { identity, state, is_whole }) => {
            if !is_whole {
                findings.push(Error::damaged(&head_path, "one of its two copies is not in order"));
            }
            (identity, Some(state))
        }
        Err(error @ Error::Device(_)) => return Err(error),
        Err(error) => {
            findings.push(error.clone());
            let front = head.clone().and_then(|bytes| Identity::decode_front(runtime, &from(&head_path), &bytes));
            let identity = match (front, read_keys()) {
                (Ok(front), Ok(keys)) if newest(&keys) > newest(&front) => keys,
                (Ok(front), _) => front,
                (Err(_), Ok(keys)) => keys,
                // A wrong key is reported rather than damage.
                (Err(_), Err(other @ (Error::WrongKey { .. } | Error::KeyKind { .. }))) => return Err(other),
                (Err(_), Err(_)) => return Err(error),
            };
            (identity, None)
        }
    };
    if let Ok(keys) = &keys {
        identity.expect_keys_of_this_store(&keys_path, keys)?;
    }
    if !keys.as_ref().is_ok_and(|keys| identity.is_kept_in(runtime, &keys_path, keys)) {
        findings.push(Error::damaged(&keys_path, "it does not have the root keys that HEAD has"));
    }
    if let (Some(state), Ok(bytes)) = (&state, &keys)
        && Identity::is_twice(bytes)
        && folder.catalog_paths(&state.log).iter().all(|path| is_missing(path))
    {
        // HEAD is from before a rotation of keys. Its key does not open what was written since.
        if let Err(error @ (Error::WrongKey { .. } | Error::KeyKind { .. })) = read_keys() {
            return Err(error);
        }
    }
    let is_newer = |keys: &Identity| keys.store == identity.store && newest(keys) > newest(&identity);
    let newer = read_keys().ok().filter(is_newer);
    Ok(Keys { identity, state, newer })
}

fn is_missing(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// Identifies the extents that the catalog does not name. Those that cannot be identified are set
/// aside.
fn find_extents(
    runtime: &Runtime,
    folder: &Folder,
    identity: &Identity,
    catalog: &Catalog,
    aside: &mut Vec<PathBuf>,
) -> Result<Vec<IdentifiedExtent>> {
    let named: HashSet<[u8; 32]> = catalog.extents().map(|extent| extent.id).collect();
    let mut found = Vec::new();
    for id in folder.extent_ids()?.into_iter().filter(|id| !named.contains(id)) {
        match identify(runtime, identity, folder, &id) {
            Ok(identified) => found.push(identified),
            // A folder or a link is not an extent.
            Err(Error::NotAFile { .. }) => {}
            Err(error) if error.is_damage() => aside.push(folder.extent_path(&id)),
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Removes objects with missing files from the catalog: they were removed or replaced by a change
/// that is lost, or are damaged.
fn drop_incomplete(folder: &Folder, catalog: &mut Catalog, report: &mut Repair, aside: &mut Vec<PathBuf>) {
    catalog.objects.retain(|name, object| {
        let is_whole = object.extents.iter().all(|extent| folder.has_extent(extent));
        if !is_whole {
            report
                .lost
                .push((name.clone(), "files of it are missing: it was removed or replaced later, or is damaged"));
            let left = object.extents.iter().map(|extent| folder.extent_path(&extent.id));
            aside.extend(left.filter(|path| path.symlink_metadata().is_ok_and(|metadata| metadata.is_file())));
        }
        is_whole
    });
}

/// Reports objects with missing files. The catalog is authentic, so they stay in it.
fn name_incomplete(folder: &Folder, catalog: &Catalog, report: &mut Repair) {
    for (name, object) in &catalog.objects {
        if !object.extents.iter().all(|extent| folder.has_extent(extent)) {
            report.lost.push((name.clone(), "files of it are missing, or have another length"));
        }
    }
}

/// Adds the objects that were found by their extents to the catalog. `known` is the last generation
/// in the catalog.
fn add_found(
    runtime: &Runtime,
    folder: &Folder,
    catalog: &mut Catalog,
    known: u64,
    unnamed: Vec<IdentifiedExtent>,
    report: &mut Repair,
    aside: &mut Vec<PathBuf>,
) -> Result<()> {
    let mut by_object: BTreeMap<[u8; 16], Vec<IdentifiedExtent>> = BTreeMap::new();
    unnamed.into_iter().for_each(|found| by_object.entry(found.owner.object).or_default().push(found));
    // Oldest first, so that a later object replaces an earlier one of the same name.
    let mut objects: Vec<Vec<IdentifiedExtent>> = by_object.into_values().collect();
    objects.iter_mut().for_each(|parts| parts.sort_by_key(|part| (source(part), part.owner.number)));
    objects.sort_by_key(|parts| parts.first().map(source));
    for parts in objects {
        let Some(owner) = parts.first().map(|part| part.owner.clone()) else { continue };
        let before = catalog.objects.get(&owner.name);
        let begun = before.filter(|object| object.id == owner.object).cloned();
        // An object of this name that the log contains, and that was written before the log's end,
        // wins.
        let is_older = begun.is_none() && before.is_some() && owner.generation <= known;
        let (kept, rest) = if is_older { (None, parts) } else { join(runtime, begun, parts)? };
        aside.extend(rest.iter().map(|part| folder.extent_path(&part.extent.id)));
        if !rest.is_empty() && !is_older {
            report.lost.push((
                owner.name.clone(),
                "some of its files are missing, or belong to a change that was never finished",
            ));
        }
        if let Some(object) = kept {
            report.found.push(owner.name.clone());
            if let Some(replaced) = catalog.objects.insert(owner.name, object.clone()).filter(|old| old.id != object.id)
            {
                aside.extend(replaced.extents.iter().map(|extent| folder.extent_path(&extent.id)));
            }
        }
    }
    report.found.sort();
    report.found.dedup();
    Ok(())
}

/// The put or append that wrote an extent, as a sortable key.
fn source(part: &IdentifiedExtent) -> (u64, u32, u64) {
    (part.owner.generation, part.owner.turn, part.owner.modified_s)
}

/// Whether these are all extents of one put or append, each once.
fn is_whole(parts: &[IdentifiedExtent]) -> bool {
    let first = parts.first().map_or(0, |part| u64::from(part.owner.number));
    let is_next = |(number, part): (u64, &IdentifiedExtent)| u64::from(part.owner.number) == number;
    let ends = parts.iter().filter(|part| part.is_last).count();
    ends == 1 && parts.last().is_some_and(|part| part.is_last) && (first..).zip(parts).all(is_next)
}

/// Joins extents to an object behind its known extents; also returns the extents that do not fit.
/// Each put or append is taken whole, and later ones follow earlier ones. If two begin at the same
/// index, the later counts, since the earlier was never committed. The extents must be sorted by
/// [`source`].
fn join(
    runtime: &Runtime,
    begun: Option<Object>,
    parts: Vec<IdentifiedExtent>,
) -> Result<(Option<Object>, Vec<IdentifiedExtent>)> {
    let mut object = begun.unwrap_or_else(|| {
        let id = parts.first().map_or([0; 16], |part| part.owner.object);
        Object { id, modified_s: 0, extents: Vec::new(), root: [0; 32] }
    });
    let (mut sources, mut rest): (Vec<Vec<IdentifiedExtent>>, Vec<IdentifiedExtent>) = Default::default();
    for part in parts {
        match sources.last_mut().filter(|others| others.first().map(source) == Some(source(&part))) {
            Some(others) => others.push(part),
            None => sources.push(vec![part]),
        }
    }
    let known = object.extents.len();
    let end = |chosen: &[Vec<IdentifiedExtent>]| known + chosen.iter().map(Vec::len).sum::<usize>();
    // The puts and appends chosen so far, which follow each other without a gap.
    let mut chosen: Vec<Vec<IdentifiedExtent>> = Vec::new();
    for parts in sources {
        let start = parts.first().map_or(0, |part| part.owner.number as usize);
        if is_whole(&parts) && start >= known {
            // This source was begun when the object ended at `start`, so everything beyond never
            // counted.
            while end(&chosen) > start {
                rest.extend(chosen.pop().into_iter().flatten());
            }
            if end(&chosen) == start {
                chosen.push(parts);
                continue;
            }
        }
        rest.extend(parts);
    }
    let taken: Vec<IdentifiedExtent> = chosen.into_iter().flatten().collect();
    let Some(last) = taken.last() else { return Ok((None, rest)) };
    object.modified_s = last.owner.modified_s;
    object.extents.extend(taken.into_iter().map(|part| part.extent));
    object.root = merkle::object_root(runtime, &object.extents)?;
    Ok((Some(object), rest))
}

/// Rewrites root keys, log and head. Every unused file is set aside before the new head counts.
fn apply(runtime: &Runtime, folder: &Folder, locked: Vec<Alone>, found: &mut RecoverableState) -> Result<()> {
    folder.expect_in_place()?;
    if let Some(head) = &found.head {
        folder.expect_head(Some(head))?;
    }
    found.aside.iter().try_for_each(|path| folder.set_aside(path))?;
    let generation = found.generation.saturating_add(1);
    let (_, root) = found.identity.keyring.newest()?;
    let old: Vec<[u8; 16]> = folder.catalog_ids()?;
    let mut log = Log::create(runtime, folder, found.identity.store, root)?;
    let written = log.write(runtime, folder, generation, found.catalog.changes());
    let place = written.map_err(|failure| failure.error)?;
    let state = State::at(generation, &place);
    // Root keys that differ may be newer than those of HEAD, and the only ones of some objects.
    let keys = read_intact(&folder.keys_path(), HEAD_BYTES_MAX)?.unwrap_or_default();
    if !found.identity.is_kept_in(runtime, &folder.keys_path(), &keys) {
        folder.set_aside(&folder.keys_path())?;
    }
    folder.write_keys(&found.identity.encode_keys(runtime)?)?;
    let head = found.identity.encode(runtime, &state)?;
    let before = found.head.as_deref().filter(|_| found.has_head);
    if before.is_none() {
        folder.set_aside(&folder.head_path())?;
    }
    folder.write_head(&head, before, &[]).map_err(|failure| failure.error)?;
    found.catalog.note(generation, place.last_tag);
    // The new log is locked. Some systems cannot rename open files.
    drop(locked);
    for path in old.iter().flat_map(|id| folder.catalog_paths(id)) {
        folder.set_aside(&path)?;
    }
    Ok(())
}
