//! Damage to any byte or to the end of any file of a collection: nothing is lost silently, no hit
//! is wrong, nothing panics. A collection that cannot be opened is left unchanged and can be
//! repaired.
//!
//! Positions are sampled, the same ones in every run; `PANOPLY_DAMAGE_SAMPLES=100000` covers every
//! byte and every length.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Random, TempFolder, ids, runtime};
use panoply_store::MasterKey;
use panoply_vector::{Collection, Error, IndexOptions, Metric, Options, Repair, Schema, SearchOptions, Storage};
use serde_json::{Value, json};

const DIMENSION: usize = 8;

type Model = BTreeMap<String, (Vec<f32>, Value)>;

fn samples() -> u64 {
    std::env::var("PANOPLY_DAMAGE_SAMPLES").ok().and_then(|samples| samples.parse().ok()).unwrap_or(8)
}

fn options(key: Option<&MasterKey>) -> Options {
    let segment_bytes_max = 40 * DIMENSION * 4;
    Options { segment_bytes_max, compact_dead_percent: 101, key: key.cloned(), ..Options::default() }
}

fn repair(folder: &Path, key: Option<&MasterKey>, apply: bool) -> Result<Repair, Error> {
    match key {
        Some(key) => Collection::repair_encrypted(runtime(), folder, key, apply),
        None => Collection::repair(folder, apply),
    }
}

fn contents(collection: &Collection) -> Model {
    collection.iter().map(|entry| (entry.id, (entry.vector, entry.metadata))).collect()
}

/// Creates sealed segments with and without an index, removals in logs of other segments than their
/// rows, and a segment that grows. Returns the collection and every version of every record that
/// ever existed.
fn filled(
    folder: &Path,
    storage: Storage,
    metric: Metric,
    key: Option<&MasterKey>,
) -> (Collection, Vec<(String, Vec<f32>)>) {
    let schema = Schema::new("damage", DIMENSION, metric).storage(storage);
    let collection = Collection::create(runtime(), folder, schema, options(key)).unwrap();
    let mut random = Random(31);
    let mut history = Vec::new();
    let mut put = |ids: &[String]| {
        let metadata: Vec<Value> = ids.iter().map(|id| json!({ "id": id, "n": ids.len() })).collect();
        collection.upsert_many(ids, &random.vectors(ids.len(), DIMENSION), &metadata).unwrap();
        history.extend(collection.iter().map(|entry| (entry.id, entry.vector)));
    };
    put(&ids(0..30));
    put(&ids(30..60));
    collection.remove_many(&["v3", "v40"]).unwrap();
    collection.build_index(&IndexOptions { lists: Some(4), rounds: 2, ..IndexOptions::default() }).unwrap();
    put(&ids(60..90));
    put(&ids(90..110));
    collection.remove_many(&["v5", "v70"]).unwrap();
    put(&ids(108..115));
    put(&ids(200..201));
    collection.remove("v100").unwrap();
    (collection, history)
}

/// Every file except the lock, with its content.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| !path.ends_with("LOCK")).map(|path| (path.clone(), fs::read(&path).unwrap())).collect()
}

fn write_files(files: &BTreeMap<PathBuf, Vec<u8>>, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    files.iter().for_each(|(path, bytes)| fs::write(to.join(path.file_name().unwrap()), bytes).unwrap());
}

fn is_refusal(error: &Error) -> bool {
    use panoply_store::Error::{KeyKind, WrongKey};
    matches!(
        error,
        Error::Corrupt { .. }
            | Error::NotACollection { .. }
            | Error::NotAFile { .. }
            | Error::Io { .. }
            | Error::NotEncrypted { .. }
            | Error::Key(WrongKey { .. } | KeyKind { .. })
    )
}

/// Checks the guarantees on one damaged folder. Returns whether the folder was refused.
fn check(copy: &Path, model: &Model, history: &[(String, Vec<f32>)], key: Option<&MasterKey>, what: &str) -> bool {
    let before = files(copy);
    let whole = |collection: &Collection| {
        collection.verify().unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(contents(collection) == *model, "{what}: {} of {} records", collection.len(), model.len());
        for (id, (vector, _)) in model.iter().step_by(17) {
            let hits = collection.search(vector, &SearchOptions::new(1)).unwrap().hits;
            assert_eq!(hits[0].id, *id, "{what}");
        }
    };
    let read = Collection::open_read_only(runtime(), copy, options(key));
    let refused = match &read {
        Ok(collection) => {
            whole(collection);
            false
        }
        Err(error) => {
            assert!(is_refusal(error), "{what}: {error}");
            true
        }
    };
    drop(read);
    assert!(files(copy) == before, "{what}: a reader changed something");
    match Collection::open(runtime(), copy, options(key)) {
        Ok(collection) => {
            assert!(!refused, "{what}: refused to a reader, but not to a writer");
            whole(&collection);
            return false;
        }
        Err(error) => assert!(refused && is_refusal(&error), "{what}: {error}"),
    }
    assert!(files(copy) == before, "{what}: opening failed, and changed something");
    let Ok(found) = repair(copy, key, false) else {
        // Without its manifest the parts of the collection are unknown.
        assert!(what.contains("MANIFEST"), "{what}");
        return true;
    };
    assert!(!found.findings.is_empty() && !found.applied, "{what}: {found:?}");
    assert!(files(copy) == before, "{what}: a dry run changed something");
    let done = repair(copy, key, true).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!((done.records, done.rows_lost, done.applied), (found.records, found.rows_lost, true), "{what}");
    let mended = Collection::open(runtime(), copy, options(key)).unwrap_or_else(|error| panic!("{what}: {error}"));
    mended.verify().unwrap();
    assert_eq!(mended.len() as u64, done.records, "{what}");
    for entry in mended.iter() {
        let known = history.iter().any(|(id, vector)| *id == entry.id && *vector == entry.vector);
        assert!(known, "{what}: {entry:?} was never written");
        assert!(done.removals_lost || model.contains_key(&entry.id), "{what}: {} came back", entry.id);
    }
    let lost = model.keys().filter(|id| mended.get(id).unwrap().is_none()).count() as u64;
    assert!(lost <= done.rows_lost, "{what}: {lost} records are lost, {} were said to be", done.rows_lost);
    true
}

fn damage(
    original: &BTreeMap<PathBuf, Vec<u8>>,
    model: &Model,
    history: &[(String, Vec<f32>)],
    key: Option<&MasterKey>,
) -> (u32, u32) {
    let copy = TempFolder::new("damaged");
    let (mut refused, mut opened) = (0, 0);
    let mut random = Random(5);
    for (path, bytes) in original {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let length = bytes.len() as u64;
        let count = samples().min(length);
        let places: Vec<usize> = match count == length {
            true => (0..bytes.len()).collect(),
            // Half of the positions are near the end, where the newest data is.
            false => (0..count)
                .map(
                    |place| {
                        if place % 2 == 0 { random.below(length) } else { length - 1 - random.below(length.min(300)) }
                    },
                )
                .map(|place| place as usize)
                .collect(),
        };
        for place in places {
            for kind in ["flip", "cut", "zero"] {
                let mut bytes = bytes.clone();
                match kind {
                    "flip" => bytes[place] ^= 1 << (place % 8),
                    "cut" => bytes.truncate(place),
                    _ => bytes[place..].iter_mut().take(16).for_each(|byte| *byte = 0),
                }
                let mut damaged = original.clone();
                if damaged.insert(path.clone(), bytes.clone()).as_ref() == Some(&bytes) {
                    continue;
                }
                write_files(&damaged, &copy.0);
                let was_refused =
                    check(&copy.0, model, history, key, &format!("{name}: {kind} at {place} of {length}"));
                refused += u32::from(was_refused);
                opened += u32::from(!was_refused);
            }
        }
        let mut without = original.clone();
        without.remove(path);
        write_files(&without, &copy.0);
        assert!(check(&copy.0, model, history, key, &format!("{name}: deleted")));
    }
    (refused, opened)
}

/// Regression: a flipped byte in the last records of a log, or a truncated log, made acknowledged
/// records vanish. The truncated log of a sealed segment brought removed records back. `verify`
/// found nothing wrong afterwards.
#[test]
fn a_closed_collection_is_whole_or_refused() {
    let key = MasterKey::generate().unwrap();
    for (storage, key) in [(Storage::F32, None), (Storage::I8, None), (Storage::F16, Some(&key))] {
        let folder = TempFolder::new("closed");
        let (collection, history) = filled(&folder.0, storage, Metric::Euclidean, key);
        let model = contents(&collection);
        drop(collection);
        let (refused, opened) = damage(&files(&folder.0), &model, &history, key);
        println!("{storage}: {refused} refused, {opened} whole");
        assert!(refused > 100, "{refused} refused, {opened} opened");
    }
}

/// The same for a collection that its process did not close. Zeroes follow the last record, and
/// changed zeroes must be harmless.
#[test]
fn a_collection_that_was_not_closed_is_whole_or_refused() {
    let key = MasterKey::generate().unwrap();
    for key in [None, Some(&key)] {
        let (folder, copy) = (TempFolder::new("left"), TempFolder::new("left"));
        let (collection, history) = filled(&folder.0, Storage::F32, Metric::Euclidean, key);
        let (model, left) = (contents(&collection), files(&folder.0));
        drop(collection);
        write_files(&left, &copy.0);
        assert!(!check(&copy.0, &model, &history, key, "as it was left"));
        let (refused, opened) = damage(&left, &model, &history, key);
        println!("{refused} refused, {opened} whole");
        assert!(refused > 50, "{refused} refused, {opened} opened");
    }
}

/// A file of version 1 is read correctly, and becomes version 2 with the first change.
#[test]
fn the_format_before_is_read_and_brought_up_to_date() {
    let folder = TempFolder::new("old");
    let schema = Schema::new("old", DIMENSION, Metric::Euclidean).storage(Storage::I8);
    let in_memory = Collection::in_memory(runtime(), schema, Options::default()).unwrap();
    in_memory.insert_many(&ids(0..40), &Random(3).vectors(40, DIMENSION), &[]).unwrap();
    in_memory.remove("v7").unwrap();
    in_memory.snapshot(&folder.0).unwrap();
    let manifest = fs::read_to_string(folder.0.join("MANIFEST")).unwrap();
    let mut body: Value = serde_json::from_str(manifest.lines().nth(1).unwrap()).unwrap();
    body["segments"][0].as_object_mut().unwrap().remove("extent").unwrap();
    let body = body.to_string();
    fs::write(
        folder.0.join("MANIFEST"),
        format!("panoply vectors 1 {:08x}\n{body}\n", crc32fast::hash(body.as_bytes())),
    )
    .unwrap();
    let log_path = folder.0.join("segment-000000.log");
    let mut log = fs::read(&log_path).unwrap();
    log[8] = 1;
    let sum = crc32fast::hash(&log[..24]).to_le_bytes();
    log[24..28].copy_from_slice(&sum);
    share_scale(&mut log, 40, 0.031);
    fs::write(&log_path, &log).unwrap();
    let read = Collection::open_read_only(runtime(), &folder.0, options(None)).unwrap();
    assert_eq!(read.len(), 39);
    let written = Collection::open(runtime(), &folder.0, options(None)).unwrap();
    let stored = written.get("v9").unwrap().unwrap().vector;
    assert!(stored.iter().all(|value| (value / 0.031 - (value / 0.031).round()).abs() < 1.0e-3), "{stored:?}");
    written.insert("new", &[0.5; DIMENSION], Value::Null).unwrap();
    let nearest = |collection: &Collection| {
        let hit = collection.search(&stored, &SearchOptions::new(1)).unwrap().hits.remove(0);
        assert!(hit.id == "v9" && hit.score < 1.0e-4, "{hit:?}");
    };
    nearest(&written);
    // The rows of both scales are in one segment, and none is rounded again.
    written.compact().unwrap();
    written.build_index(&IndexOptions { lists: Some(2), ..IndexOptions::default() }).unwrap();
    assert_eq!(written.get("v9").unwrap().unwrap().vector, stored);
    nearest(&written);
    drop(written);
    assert!(fs::read_to_string(folder.0.join("MANIFEST")).unwrap().starts_with("panoply vectors 2 "));
    assert_eq!(Collection::open(runtime(), &folder.0, options(None)).unwrap().len(), 40);
}

/// Gives the rows of the first record one common scale, as version 1 did, and corrects its
/// checksum.
fn share_scale(log: &mut [u8], rows: usize, scale: f32) {
    let nonce = log[16..24].to_vec();
    let length = u64::from_le_bytes(log[32..40].try_into().unwrap()) as usize;
    let number = |at: usize| u32::from_le_bytes(log[48 + at..][..4].try_into().unwrap()) as usize;
    assert_eq!((number(16), number(20), number(24)), (0, 0, rows), "no removals and no fields before the scales");
    (0..rows).for_each(|row| log[48 + 40 + row * 4..][..4].copy_from_slice(&scale.to_le_bytes()));
    let mut sum = crc32fast::Hasher::new();
    sum.update(&nonce);
    sum.update(&log[48..48 + length]);
    let sum = sum.finalize().to_le_bytes();
    log[40..44].copy_from_slice(&sum);
}

/// Rows that are not checked on opening are checked in the background; after damage was found, no
/// search returns results.
#[test]
fn old_rows_are_checked_in_the_background() {
    let folder = TempFolder::new("background");
    let schema = Schema::new("background", 512, Metric::Dot);
    let collection = Collection::create(runtime(), &folder.0, schema, Options::default()).unwrap();
    let vectors = Random(9).vectors(1000, 512);
    for first in (0..10_000).step_by(1000) {
        collection.insert_many(&ids(first..first + 1000), &vectors, &[]).unwrap();
    }
    drop(collection);
    let path = folder.0.join("segment-000000.rows");
    let mut rows = fs::read(&path).unwrap();
    rows[100] ^= 1;
    fs::write(&path, &rows).unwrap();
    for read_only in [true, false] {
        let open = if read_only { Collection::open_read_only } else { Collection::open };
        let collection = open(runtime(), &folder.0, Options::default()).unwrap();
        let start = std::time::Instant::now();
        let error = loop {
            match collection.search(&vectors[..512], &SearchOptions::new(1)) {
                Ok(_) => assert!(start.elapsed().as_secs() < 30, "nobody has noticed"),
                Err(error) => break error,
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        assert!(matches!(&error, Error::Corrupt { path, offset: 0, .. } if path.ends_with("segment-000000.rows")));
        assert!(collection.get("v5000").is_err() && !collection.stats().checked);
        // Compaction would give damaged rows new checksums.
        if !read_only {
            collection.remove("v1").unwrap();
            assert!(matches!(collection.compact(), Err(Error::Corrupt { .. })));
        }
    }
    rows[100] ^= 1;
    fs::write(&path, &rows).unwrap();
    let collection = Collection::open_read_only(runtime(), &folder.0, Options::default()).unwrap();
    let start = std::time::Instant::now();
    while !collection.stats().checked {
        assert!(start.elapsed().as_secs() < 30);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
