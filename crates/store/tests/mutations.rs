//! Stores whose files are altered, cut, deleted, doubled or exchanged with older ones at random.
//! Each store opens correctly, is reported as damaged, or is repaired without loss. No call panics,
//! no content is returned that was never stored, and no store grows without bound.
//!
//! `PANOPLY_STORE_MUTATIONS` sets the number of stores.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use crate::support::{Random, TempFolder, copy, create, key, open, options, read, runtime};
use panoply_store::{Error, RepairOptions, Store};

const STORES_DEFAULT: u64 = 60;
const APPLY: RepairOptions = RepairOptions { apply: true, new_anchor: false };

type Contents = BTreeMap<String, Vec<u8>>;

/// A store at two times.
struct Base {
    _folders: [TempFolder; 2],
    then: PathBuf,
    now: PathBuf,
    newest: Contents,
    /// Every content that an object of a name ever had.
    versions: BTreeMap<String, BTreeSet<Vec<u8>>>,
}

/// A change to the files of a store.
#[derive(Debug)]
struct Mutation {
    file: PathBuf,
    how: &'static str,
}

impl Mutation {
    /// Whether a copy of the file is left, so that nothing may be lost.
    fn is_harmless(&self) -> bool {
        let name = self.file.to_string_lossy();
        let has_copy = ["catalog-", "KEYS", "LOCK", "RESERVE"].iter().any(|part| name.contains(part));
        has_copy
            || self.how == "flipped"
            || self.how == "lengthened" && !name.starts_with("data")
            || self.how == "brought back"
    }
}

fn contents(store: &Store) -> Contents {
    store.entries().map(|entry| (entry.name.clone(), read(store, &entry.name).unwrap())).collect()
}

fn base(number: u64) -> Base {
    let folders = [TempFolder::new("mutations-now"), TempFolder::new("mutations-then")];
    let (now, then) = (folders[0].0.clone(), folders[1].0.clone());
    let mut random = Random(number);
    let mut versions: BTreeMap<String, BTreeSet<Vec<u8>>> = BTreeMap::new();
    let mut store = create(&now);
    let mut note = |store: &Store| {
        contents(store).into_iter().for_each(|(name, content)| {
            versions.entry(name).or_default().insert(content);
        });
    };
    for (name, len) in [("a", 30), ("b", 1900), ("c", 250), ("gone", 120), ("deep/empty", 0)] {
        store.put(name, &mut &random.bytes(len)[..], false).unwrap();
        note(&store);
    }
    copy(&now, &then);
    store.append("a", &mut &random.bytes(800)[..]).unwrap();
    note(&store);
    if number % 2 == 1 {
        store.rotate(&key(1)).unwrap();
    }
    store.put("b", &mut &random.bytes(90)[..], true).unwrap();
    note(&store);
    store.remove("gone").unwrap();
    store.put("d", &mut &random.bytes(500)[..], false).unwrap();
    store.append("d", &mut &random.bytes(1100)[..]).unwrap();
    note(&store);
    let newest = contents(&store);
    drop(store);
    Base { _folders: folders, then, now, newest, versions }
}

/// The names of all files below a folder.
fn names(folder: &Path) -> Vec<PathBuf> {
    let list = |inner: &str| {
        let entries = fs::read_dir(folder.join(inner)).unwrap().map(|entry| entry.unwrap());
        let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
        files.map(|entry| Path::new(inner).join(entry.file_name())).collect::<Vec<_>>()
    };
    let mut names = [list(""), list("data")].concat();
    names.sort();
    names
}

fn bytes_of(folder: &Path) -> u64 {
    names(folder).iter().map(|name| fs::metadata(folder.join(name)).unwrap().len()).sum()
}

fn mutate(work: &Path, base: &Base, other: &Base, random: &mut Random) -> Mutation {
    let pick = |names: Vec<PathBuf>, random: &mut Random| names[random.below(names.len() as u64) as usize].clone();
    // Half of the time head and root keys, which are few among the files.
    let mut file = match random.below(4) {
        0 => PathBuf::from("HEAD"),
        1 => pick(names(work).into_iter().filter(|name| !name.starts_with("data")).collect(), random),
        _ => pick(names(work), random),
    };
    let path = work.join(&file);
    let bytes = fs::read(&path).unwrap_or_default();
    let at = random.below(bytes.len().max(1) as u64) as usize;
    let how = match random.below(10) {
        0..3 if !bytes.is_empty() => {
            let mut bytes = bytes;
            bytes[at] ^= 1 << random.below(8);
            fs::write(path, bytes).unwrap();
            "flipped"
        }
        3 => {
            fs::write(path, &bytes[..at]).unwrap();
            "cut"
        }
        4 => {
            fs::write(path, [&bytes[..], &random.bytes(1 + at % 300)].concat()).unwrap();
            "lengthened"
        }
        5 => {
            let _ = fs::remove_file(path);
            "deleted"
        }
        6 => {
            let source = pick(names(work), random);
            let bytes = fs::read(work.join(source)).unwrap();
            fs::write(path, bytes).unwrap();
            "doubled"
        }
        7 if base.then.join(&file).exists() => {
            fs::copy(base.then.join(&file), path).unwrap();
            "taken from an older copy"
        }
        8 => {
            let source = if file.starts_with("data") { pick(names(&other.now), random) } else { file.clone() };
            let source = other.now.join(source);
            fs::write(path, fs::read(source).unwrap_or_default()).unwrap();
            "taken from another store"
        }
        _ => {
            let known = names(work);
            let gone: Vec<PathBuf> = names(&base.then).into_iter().filter(|name| !known.contains(name)).collect();
            if gone.is_empty() {
                fs::write(&path, b"").unwrap();
                return Mutation { file, how: "emptied" };
            }
            file = pick(gone, random);
            fs::copy(base.then.join(&file), work.join(&file)).unwrap();
            "brought back"
        }
    };
    Mutation { file, how }
}

/// Errors that name damage.
fn is_named(error: &Error) -> bool {
    matches!(
        error,
        Error::Damaged { .. }
            | Error::NotAFile { .. }
            | Error::NotAStore { .. }
            | Error::WrongKey { .. }
            | Error::KeyKind { .. }
            | Error::UnknownFormat { .. }
            | Error::CostlyPassphrase { .. }
            | Error::OlderHead { .. }
    )
}

/// Everything that can be read was there once; the rest is named. Returns what can be read.
fn judge(store: &Store, base: &Base, what: &str) -> Contents {
    let mut found = Contents::new();
    for entry in store.entries() {
        match read(store, &entry.name) {
            Ok(content) => {
                let is_known = base.versions.get(&entry.name).is_some_and(|known| known.contains(&content));
                assert!(is_known, "{what}: `{}` was never so", entry.name);
                found.insert(entry.name, content);
            }
            Err(error) => assert!(is_named(&error), "{what}: {error:?}"),
        }
    }
    store.verify(&mut |_, _| ()).unwrap_or_else(|error| panic!("{what}: {error}"));
    found
}

#[derive(Debug, Default)]
struct MutationCounts {
    opened: u64,
    named: u64,
    repaired: u64,
    beyond_repair: u64,
}

/// Opens, repairs and opens again.
fn check(work: &Path, base: &Base, mutations: &[Mutation], what: &str, counts: &mut MutationCounts) {
    let is_one = mutations.len() == 1;
    let is_harmless = is_one && mutations[0].is_harmless();
    let is_extent = is_one && mutations[0].file.starts_with("data") && !mutations[0].file.ends_with("KEYS");
    let bytes = bytes_of(work);
    let reader = Store::open_read_only(runtime(), work, &key(1), options());
    let seen = match &reader {
        Ok(store) => Some(judge(store, base, what)),
        Err(error) => {
            assert!(is_named(error) && !is_extent, "{what}: {error:?}");
            assert!(!is_harmless || mutations[0].file.ends_with("KEYS"), "{what}: {error:?}");
            None
        }
    };
    drop(reader);
    if let Some(seen) =
        seen.as_ref().filter(|_| is_harmless && !is_extent || is_one && mutations[0].file.ends_with("HEAD"))
    {
        assert!(*seen == base.newest, "{what}: something is missing");
    }
    check_writer(work, base, seen, what, counts);
    assert!(bytes_of(&work.with_extension("written")) <= 2 * bytes + (1 << 18), "{what}: it has grown");
    check_repair(work, base, mutations, what, counts);
    assert!(bytes_of(work) <= 3 * bytes + (1 << 18), "{what}: it has grown");
}

/// A writer, on a copy, sees what a reader has seen, and leaves it as it is.
fn check_writer(work: &Path, base: &Base, seen: Option<Contents>, what: &str, counts: &mut MutationCounts) {
    let written = work.with_extension("written");
    copy(work, &written);
    match open(&written) {
        Ok(store) => {
            counts.opened += 1;
            let found = judge(&store, base, what);
            assert!(seen.as_ref().is_none_or(|seen| *seen == found), "{what}: a writer sees something else");
            drop(store);
            let again = open(&written).unwrap_or_else(|error| panic!("{what}: once only: {error}"));
            assert!(judge(&again, base, what) == found, "{what}: it was there once");
            assert!(again.damaged_copies().is_empty(), "{what}: {:?}", again.damaged_copies());
        }
        Err(error) => {
            counts.named += 1;
            assert!(is_named(&error), "{what}: {error:?}");
        }
    }
}

/// A repair deletes nothing, and after it everything is there that one alteration has left.
fn check_repair(work: &Path, base: &Base, mutations: &[Mutation], what: &str, counts: &mut MutationCounts) {
    let is_one = mutations.len() == 1;
    let is_extent = is_one && mutations[0].file.starts_with("data") && !mutations[0].file.ends_with("KEYS");
    let intact: Vec<Vec<u8>> = names(work).iter().map(|name| fs::read(work.join(name)).unwrap()).collect();
    match Store::repair(runtime(), work, &key(1), &options(), APPLY) {
        Ok(report) => {
            counts.repaired += u64::from(report.applied);
            let left: BTreeSet<Vec<u8>> = names(work).iter().map(|name| fs::read(work.join(name)).unwrap()).collect();
            let is_kept = |bytes: &&Vec<u8>| bytes.starts_with(b"panoply extent") && !left.contains(*bytes);
            assert!(!intact.iter().any(|bytes| is_kept(&bytes)), "{what}: a repair has deleted an extent: {report:?}");
            let store = open(work).unwrap_or_else(|error| panic!("{what}: {error} after {report:?}"));
            let found = judge(&store, base, what);
            if is_one && !is_extent {
                let lost: Vec<&String> = base
                    .newest
                    .iter()
                    .filter(|(name, content)| found.get(*name) != Some(content))
                    .map(|(n, _)| n)
                    .collect();
                assert!(lost.is_empty(), "{what}: {lost:?} lost, {report:?}");
            }
            drop(store);
            let report = Store::repair(runtime(), work, &key(1), &options(), APPLY).unwrap();
            assert!(report.findings.is_empty(), "{what}: repaired twice: {report:?}");
        }
        Err(error) => {
            counts.beyond_repair += 1;
            assert!(is_named(&error), "{what}: {error:?}");
            let is_foreign = mutations.iter().any(|mutation| mutation.how == "taken from another store");
            assert!(!is_one || is_foreign, "{what}: {error:?}");
        }
    }
}

fn run(count: u64) {
    let bases: Vec<Base> = (0..2).map(base).collect();
    let (work, mut counts) = (TempFolder::new("mutations-work"), MutationCounts::default());
    for seed in 0..count {
        let mut random = Random(seed);
        let base = &bases[(seed % 2) as usize];
        copy(&base.now, &work.0);
        let number = if seed % 4 < 2 { 1 } else { 1 + random.below(3) };
        let mutations: Vec<Mutation> =
            (0..number).map(|_| mutate(&work.0, base, &bases[((seed + 1) % 2) as usize], &mut random)).collect();
        let what = format!("seed {seed}, {mutations:?}");
        let checked = catch_unwind(AssertUnwindSafe(|| check(&work.0, base, &mutations, &what, &mut counts)));
        if let Err(panic) = checked {
            eprintln!("{what}");
            std::panic::resume_unwind(panic);
        }
    }
    let _ = fs::remove_dir_all(work.0.with_extension("written"));
    println!("{count} stores: {counts:?}");
}

#[test]
fn altered_stores_open_right_or_are_named_or_repaired() {
    let count = std::env::var("PANOPLY_STORE_MUTATIONS").ok();
    run(count.map_or(STORES_DEFAULT, |count| count.parse().unwrap()));
}
