//! An encrypted collection: nothing can be read without its key, and otherwise it works like any
//! other. The tests of damage and of killed writers cover encrypted collections too.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::fs;
use std::path::Path;

use crate::support::{Random, TempFolder, ids, runtime};
use panoply_store::MasterKey;
use panoply_vector::{Collection, Error, IndexOptions, Metric, Options, Schema, SearchOptions, Storage};
use serde_json::{Value, json};

const DIMENSION: usize = 16;

fn key(byte: u8) -> MasterKey {
    MasterKey::from_bytes(vec![byte; 32]).unwrap()
}

fn with(key: Option<MasterKey>) -> Options {
    Options { segment_bytes_max: 100 * DIMENSION * 4, key, ..Options::default() }
}

/// A collection with all kinds of files: several segments, an index, removals, and rows added after
/// the index.
fn filled(folder: &Path, key: Option<MasterKey>) -> Collection {
    let schema = Schema::new("whispers", DIMENSION, Metric::Euclidean).storage(Storage::F32);
    let collection = Collection::create(runtime(), folder, schema, with(key)).unwrap();
    let vectors = Random(4).vectors(300, DIMENSION);
    let names: Vec<String> = ids(0..300).iter().map(|id| format!("confidant-{id}")).collect();
    let metadata: Vec<Value> = names.iter().map(|name| json!({ "mother's maiden name": name })).collect();
    for first in (0..300).step_by(60) {
        let rows = first * DIMENSION..(first + 60) * DIMENSION;
        collection.insert_many(&names[first..first + 60], &vectors[rows], &metadata[first..first + 60]).unwrap();
    }
    collection.build_index(&IndexOptions { lists: Some(4), rounds: 2, ..IndexOptions::default() }).unwrap();
    collection.remove_many(&["confidant-v7", "confidant-v200"]).unwrap();
    collection.insert("confidant-late", &[0.5; DIMENSION], json!({ "mother's maiden name": "none" })).unwrap();
    collection
}

fn contents(collection: &Collection) -> Vec<(String, Vec<f32>, Value)> {
    let mut found: Vec<_> = collection.iter().map(|entry| (entry.id, entry.vector, entry.metadata)).collect();
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

fn holds(file: &[u8], text: &[u8]) -> bool {
    file.windows(text.len()).any(|window| window == text)
}

#[test]
fn nothing_can_be_read_without_the_key_and_everything_with_it() {
    let (plain, sealed, copy) = (TempFolder::new("plain"), TempFolder::new("sealed"), TempFolder::new("sealed-copy"));
    let expected = contents(&filled(&plain.0, None));
    let collection = filled(&sealed.0, Some(key(1)));
    let query = expected[17].1.clone();
    let found = |collection: &Collection| collection.search(&query, &SearchOptions::new(5)).unwrap().hits;
    assert!(contents(&collection) == expected);
    let hits = found(&collection);
    assert_eq!(hits[0].id, expected[17].0);
    collection.verify().unwrap();
    collection.snapshot(&copy.0).unwrap();
    let left = files(&sealed.0);
    drop(collection);

    let vector: Vec<u8> = query.iter().flat_map(|component| component.to_le_bytes()).collect();
    let secrets: [&[u8]; 6] = [b"confidant", b"maiden", b"whispers", b"euclidean", &vector[..12], b"PNPLV"];
    let in_plain = files(&plain.0);
    for secret in secrets {
        assert!(in_plain.iter().any(|(_, file)| holds(file, secret)), "the search finds what is there");
        for (name, file) in files(&sealed.0).iter().chain(&left).chain(&files(&copy.0)) {
            assert!(!holds(file, secret), "{name} holds {:?}", String::from_utf8_lossy(secret));
        }
    }
    let ends = ["MANIFEST", ".rows", ".log", ".lists", ".centroids"];
    for end in ends {
        assert!(left.iter().any(|(name, _)| name.ends_with(end)), "there is no {end}");
    }
    for folder in [&sealed.0, &copy.0] {
        for open in [Collection::open, Collection::open_read_only] {
            let collection = open(runtime(), folder, with(Some(key(1)))).unwrap();
            collection.verify().unwrap();
            assert!(contents(&collection) == expected && found(&collection) == hits);
            assert!(collection.stats().index.is_some() && collection.stats().checked);
        }
    }
}

#[test]
fn a_wrong_key_none_and_one_too_many_are_typed_errors() {
    let (folder, plain) = (TempFolder::new("keys"), TempFolder::new("keys-plain"));
    drop(filled(&folder.0, Some(key(1))));
    drop(filled(&plain.0, None));
    let before = files(&folder.0);
    for open in [Collection::open, Collection::open_read_only] {
        let opened = |key| open(runtime(), &folder.0, with(key)).err().unwrap();
        assert!(matches!(opened(None), Error::Locked { .. }));
        assert!(matches!(opened(Some(key(2))), Error::Key(panoply_store::Error::WrongKey { .. })));
        let passphrase = MasterKey::passphrase(b"open sesame".to_vec()).unwrap();
        assert!(matches!(opened(Some(passphrase)), Error::Key(panoply_store::Error::KeyKind { .. })));
        let not = open(runtime(), &plain.0, with(Some(key(1)))).err().unwrap();
        assert!(matches!(not, Error::NotEncrypted { .. }));
    }
    assert!(matches!(Collection::repair(&folder.0, true), Err(Error::Locked { .. })));
    assert!(Collection::is_encrypted(&folder.0).unwrap() && !Collection::is_encrypted(&plain.0).unwrap());
    assert!(files(&folder.0) == before, "whoever has no key changes nothing");
    Collection::destroy(&folder.0).unwrap();
    assert!(!folder.0.exists());
}

/// Files of another encrypted collection with the same key, and files that were swapped, are
/// refused.
#[test]
fn files_cannot_be_exchanged() {
    let (folder, other) = (TempFolder::new("swap"), TempFolder::new("swap-other"));
    drop(filled(&folder.0, Some(key(1))));
    drop(filled(&other.0, Some(key(1))));
    let names: Vec<String> = files(&folder.0).into_iter().map(|(name, _)| name).filter(|name| name != "LOCK").collect();
    let mut tried = 0;
    for (place, name) in names.iter().enumerate() {
        let own = fs::read(folder.0.join(name)).unwrap();
        for source in [folder.0.join(&names[(place + 1) % names.len()]), other.0.join(name)] {
            fs::write(folder.0.join(name), fs::read(&source).unwrap()).unwrap();
            let opened = Collection::open(runtime(), &folder.0, with(Some(key(1))));
            assert!(opened.is_err(), "{} as {name}", source.display());
            tried += 1;
        }
        fs::write(folder.0.join(name), own).unwrap();
    }
    assert!(tried > 15, "{tried}");
    Collection::open(runtime(), &folder.0, with(Some(key(1)))).unwrap();
}

/// A reader beside a writer sees everything that was acknowledged.
#[test]
fn readers_beside_a_writer_see_what_was_acknowledged() {
    let folder = TempFolder::new("beside");
    let writer =
        Collection::create(runtime(), &folder.0, Schema::new("a", 2, Metric::Dot), with(Some(key(1)))).unwrap();
    writer.insert("first", &[1.0, 2.0], Value::Null).unwrap();
    let reader = Collection::open_read_only(runtime(), &folder.0, with(Some(key(1)))).unwrap();
    for number in 0..40 {
        writer.insert(&format!("n{number}"), &[number as f32, 1.0], Value::Null).unwrap();
        reader.refresh().unwrap();
        assert_eq!(reader.len(), number + 2);
    }
    writer.clear().unwrap();
    reader.refresh().unwrap();
    assert!(reader.is_empty());
}
