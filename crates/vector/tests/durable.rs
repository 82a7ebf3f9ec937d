//! The guarantees of a durable collection: everything written is there when it is opened again, for
//! any damage to the end of its files. A folder that is not a collection is refused.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Random, TempFolder, ids, runtime};
use panoply_vector::{Collection, Error, IndexOptions, Metric, Options, Schema, SearchOptions, Storage};
use serde_json::{Value, json};

fn open(path: &Path) -> Result<Collection, Error> {
    Collection::open(runtime(), path, Options::default())
}

#[test]
fn everything_comes_back() {
    for storage in Storage::ALL {
        for metric in Metric::ALL {
            let folder = TempFolder::new("back");
            let schema = Schema::new("back", 16, metric).storage(storage);
            let collection = Collection::create(runtime(), &folder.0, schema.clone(), Options::default()).unwrap();
            let vectors = Random(5).vectors(300, 16);
            let metadata: Vec<Value> = (0..300).map(|index| json!({ "index": index, "ü": "ß\n\u{0}" })).collect();
            collection.insert_many(&ids(0..300), &vectors, &metadata).unwrap();
            collection.remove("v7").unwrap();
            collection.update("v8", Some(&[0.5; 16]), None).unwrap();
            collection.insert("größer 🦀", &[0.25; 16], Value::Null).unwrap();
            let before: Vec<_> = collection.iter().collect();
            let hits = collection.search(&vectors[..16], &SearchOptions::new(30)).unwrap().hits;
            assert!(matches!(open(&folder.0), Err(Error::InUse { .. })));
            let again = Collection::create(runtime(), &folder.0, schema.clone(), Options::default());
            assert!(matches!(again, Err(Error::AlreadyExists { .. })));
            drop(collection);
            let again = open(&folder.0).unwrap();
            assert_eq!(again.schema(), &schema);
            assert!(again.iter().collect::<Vec<_>>() == before);
            assert_eq!(again.search(&vectors[..16], &SearchOptions::new(30)).unwrap().hits, hits);
            assert_eq!(again.fields(), ["index", "ü"]);
            again.verify().unwrap();
        }
    }
}

#[test]
fn snapshots_are_collections_of_their_own() {
    let (folder, copy, saved) = (TempFolder::new("snap"), TempFolder::new("snap"), TempFolder::new("snap"));
    let schema = Schema::new("snap", 8, Metric::Dot);
    let options = Options { segment_bytes_max: 32 * 400, ..Options::default() };
    let collection = Collection::create(runtime(), &folder.0, schema.clone(), options.clone()).unwrap();
    let vectors = Random(6).vectors(1000, 8);
    for first in (0..1000).step_by(100) {
        collection.insert_many(&ids(first..first + 100), &vectors[first * 8..][..800], &[]).unwrap();
    }
    collection.build_index(&IndexOptions { lists: Some(8), ..IndexOptions::default() }).unwrap();
    collection.remove_many(&ids(0..100)).unwrap();
    let before: Vec<_> = collection.iter().collect();
    collection.snapshot(&copy.0).unwrap();
    assert!(matches!(collection.snapshot(&copy.0), Err(Error::AlreadyExists { .. })));
    // A copy inside the folder would be deleted together with the collection.
    for inside in [
        folder.0.join("inner"),
        folder.0.join("a/b"),
        folder.0.join("../").join(folder.0.file_name().unwrap()).join("c"),
    ] {
        assert!(matches!(collection.snapshot(&inside), Err(Error::InvalidArgument { .. })), "{}", inside.display());
        assert!(!inside.exists());
    }
    collection.clear().unwrap();
    let taken = Collection::open(runtime(), &copy.0, options.clone()).unwrap();
    assert!(taken.iter().collect::<Vec<_>>() == before);
    assert_eq!(taken.stats().index.unwrap().lists, 8);
    taken.verify().unwrap();
    // A collection in memory is saved the same way.
    let in_memory = Collection::in_memory(runtime(), schema, options).unwrap();
    in_memory.insert_many(&ids(0..1000), &vectors, &[]).unwrap();
    in_memory.remove("v3").unwrap();
    in_memory.snapshot(&saved.0).unwrap();
    let reopened = open(&saved.0).unwrap();
    assert!(reopened.iter().eq(in_memory.iter()));
    reopened.verify().unwrap();
}

#[test]
fn what_is_not_a_collection_is_refused() {
    let folder = TempFolder::new("refused");
    assert!(matches!(open(&folder.0), Err(Error::NotACollection { .. })));
    assert!(matches!(Collection::destroy(&folder.0), Err(Error::NotACollection { .. })));
    fs::create_dir_all(&folder.0).unwrap();
    fs::write(folder.0.join("notes.txt"), "mine").unwrap();
    assert!(matches!(open(&folder.0), Err(Error::NotACollection { .. })));
    let schema = Schema::new("a", 2, Metric::Dot);
    let created = Collection::create(runtime(), &folder.0, schema.clone(), Options::default());
    assert!(matches!(created, Err(Error::AlreadyExists { .. })));
    assert!(matches!(Collection::destroy(&folder.0), Err(Error::NotACollection { .. })));
    let inside = folder.0.join("inside");
    let collection = Collection::create(runtime(), &inside, schema, Options::default()).unwrap();
    assert!(matches!(Collection::destroy(&inside), Err(Error::InUse { .. })));
    drop(collection);
    Collection::destroy(&inside).unwrap();
    assert!(!inside.exists());
    assert!(folder.0.join("notes.txt").exists());
}

/// A collection whose history is known: the records after each of its writes.
fn written(folder: &Path, indexed: bool) -> (Collection, Vec<usize>) {
    let schema = Schema::new("torn", 32, Metric::Cosine);
    let collection = Collection::create(runtime(), folder, schema, Options::default()).unwrap();
    let mut lengths = vec![0];
    let mut random = Random(12);
    for batch in 0..12 {
        // The fourth and the eighth are too large to be inline.
        let count = if batch % 4 == 3 { 2200 } else { 3 };
        let ids: Vec<String> = (0..count).map(|index| format!("{batch}-{index}")).collect();
        collection.insert_many(&ids, &random.vectors(count, 32), &[]).unwrap();
        lengths.push(collection.len());
        if batch % 3 == 2 {
            collection.remove(&ids[0]).unwrap();
            lengths.push(collection.len());
        }
    }
    if indexed {
        collection.build_index(&IndexOptions { lists: Some(4), rounds: 2, ..IndexOptions::default() }).unwrap();
    }
    (collection, lengths)
}

fn copy_folder(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn file_ending(folder: &Path, end: &str) -> PathBuf {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let ours = files.filter(|path| path.to_str().unwrap().ends_with(end));
    ours.max_by_key(|path| fs::metadata(path).unwrap().len()).unwrap()
}

/// The machine stopped in the middle of a write: the rest of the file was never written.
#[test]
fn a_log_that_was_written_up_to_anywhere_holds_the_writes_before_that() {
    let (folder, left, copy) = (TempFolder::new("torn"), TempFolder::new("torn"), TempFolder::new("torn"));
    let (collection, lengths) = written(&folder.0, false);
    copy_folder(&folder.0, &left.0);
    drop(collection);
    let log = fs::metadata(file_ending(&folder.0, ".log")).unwrap().len();
    let mut random = Random(2);
    let mut seen = std::collections::BTreeSet::new();
    let cuts = (0..120).map(|_| random.below(log + 1)).chain((0..40).map(|back| log - back));
    for cut in cuts {
        copy_folder(&left.0, &copy.0);
        let path = file_ending(&copy.0, ".log");
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(cut).unwrap();
        if cut % 3 == 0 {
            assert!(matches!(open(&copy.0), Err(Error::Corrupt { .. })), "a log that was cut at {cut} is refused");
        }
        file.set_len(length).unwrap();
        drop(file);
        match open(&copy.0) {
            Ok(collection) => {
                assert!(lengths.contains(&collection.len()), "{} records after a cut at {cut}", collection.len());
                seen.insert(collection.len());
                collection.verify().unwrap();
                collection.insert("after", &[1.0; 32], Value::Null).unwrap();
                drop(collection);
                assert!(open(&copy.0).unwrap().get("after").unwrap().is_some());
            }
            Err(Error::Corrupt { .. }) => {
                assert!(cut < 32, "only a log without its head is refused, not one cut at {cut}")
            }
            Err(other) => panic!("{other}"),
        }
    }
    assert!(seen.len() > 5, "{seen:?}");
}

#[test]
fn damage_is_a_typed_error_or_the_torn_end() {
    let (folder, copy) = (TempFolder::new("damage"), TempFolder::new("damage"));
    let (collection, lengths) = written(&folder.0, true);
    drop(collection);
    let whole = *lengths.last().unwrap();
    let mut random = Random(3);
    let mut refused = 0;
    for end in [".log", ".rows", ".lists", ".centroids", "MANIFEST"] {
        let length = fs::metadata(file_ending(&folder.0, end)).unwrap().len();
        for round in 0..40 {
            copy_folder(&folder.0, &copy.0);
            let path = file_ending(&copy.0, end);
            let mut bytes = fs::read(&path).unwrap();
            let at = random.below(length) as usize;
            match round % 3 {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes.truncate(at),
                _ => bytes[at..].fill(0xff),
            }
            fs::write(&path, &bytes).unwrap();
            match open(&copy.0) {
                // Rows that are not checked on opening are checked by `verify`.
                Ok(collection) => {
                    let sound = collection.verify();
                    assert!(sound.is_err() || collection.len() == whole);
                }
                Err(Error::Corrupt { .. } | Error::NotACollection { .. }) => refused += 1,
                Err(other) => panic!("{end} at {at}: {other}"),
            }
        }
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn headers_that_claim_the_impossible_are_refused() {
    let folder = TempFolder::new("hostile");
    let hostile = |body: &str| {
        let _ = fs::remove_dir_all(&folder.0);
        fs::create_dir_all(&folder.0).unwrap();
        let text = format!("panoply vectors 1 {:08x}\n{body}\n", crc32fast::hash(body.as_bytes()));
        fs::write(folder.0.join("MANIFEST"), text).unwrap();
        open(&folder.0)
    };
    let manifest = |dimension: u64, segments: &str| {
        let rest = r#""metric":"dot","storage":"f32""#;
        format!(r#"{{"name":"a","dimension":{dimension},{rest},"segments":{segments},"next":1,"centroids":null}}"#)
    };
    assert!(matches!(hostile(&manifest(1 << 60, r#"[{"id":0,"lists":false}]"#)), Err(Error::NotACollection { .. })));
    for contradiction in [
        "[]",
        r#"[{"id":0,"lists":false},{"id":0,"lists":false}]"#,
        r#"[{"id":1,"lists":false}]"#,
        r#"[{"id":4294967295,"lists":false}]"#,
        r#"[{"id":0,"lists":true}]"#,
    ] {
        assert!(matches!(hostile(&manifest(4, contradiction)), Err(Error::Corrupt { .. })), "{contradiction}");
    }
    assert!(matches!(hostile("{}"), Err(Error::Corrupt { .. })));
    let missing = hostile(&manifest(4, r#"[{"id":0,"lists":false}]"#));
    assert!(matches!(missing, Err(Error::Io { .. })), "{:?}", missing.err());
    // A record that claims 2^60 bytes is not accepted as a record.
    fs::write(folder.0.join("segment-000000.rows"), []).unwrap();
    let mut log = b"PNPLVLOG\x01\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0".to_vec();
    log.extend_from_slice(&crc32fast::hash(&log).to_le_bytes());
    log.extend_from_slice(&[0; 4]);
    log.extend_from_slice(&(1_u64 << 60).to_le_bytes());
    log.extend_from_slice(&[1; 100]);
    fs::write(folder.0.join("segment-000000.log"), &log).unwrap();
    assert_eq!(open(&folder.0).unwrap().len(), 0);
}

/// The offsets of a log's records.
fn record_starts(log: &[u8]) -> Vec<usize> {
    let (mut starts, mut at) = (Vec::new(), 32);
    while let Some(length) = log.get(at..at + 8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())) {
        if length == 0 {
            break;
        }
        starts.push(at);
        at += 16 + length as usize;
    }
    starts
}

/// After a crash of the machine, records that were not synced may be missing although later ones
/// exist.
#[test]
fn only_what_was_waited_for_counts_as_damaged() {
    for (durable, flushed) in [(true, false), (false, false), (false, true)] {
        let (folder, copy) = (TempFolder::new("waited"), TempFolder::new("waited"));
        let schema = Schema::new("waited", 8, Metric::Dot);
        let options = Options { durable, ..Options::default() };
        let collection = Collection::create(runtime(), &folder.0, schema, options.clone()).unwrap();
        for batch in 0..4 {
            if batch == 3 && flushed {
                collection.flush().unwrap();
            }
            let ids: Vec<String> = (0..5).map(|index| format!("{batch}-{index}")).collect();
            collection.insert_many(&ids, &Random(batch).vectors(5, 8), &[]).unwrap();
        }
        copy_folder(&folder.0, &copy.0);
        let path = file_ending(&copy.0, ".log");
        let mut log = fs::read(&path).unwrap();
        let starts = record_starts(&log);
        log[starts[1]..starts[2]].fill(0);
        fs::write(&path, &log).unwrap();
        let opened = Collection::open(runtime(), &copy.0, options);
        match durable || flushed {
            true => assert!(matches!(opened, Err(Error::Corrupt { .. })), "{durable} {flushed}"),
            false => assert_eq!(opened.unwrap().len(), 5),
        }
    }
}

/// The rows of a collection in memory are never synced; a saved copy is known to be on disk.
#[test]
fn damage_to_a_saved_collection_is_told() {
    let folder = TempFolder::new("saved");
    let schema = Schema::new("saved", 8, Metric::Dot);
    let collection = Collection::in_memory(runtime(), schema, Options::default()).unwrap();
    collection.insert_many(&ids(0..100), &Random(3).vectors(100, 8), &[]).unwrap();
    collection.snapshot(&folder.0).unwrap();
    assert_eq!(open(&folder.0).unwrap().len(), 100);
    let path = file_ending(&folder.0, ".rows");
    let mut rows = fs::read(&path).unwrap();
    rows[40] ^= 1;
    fs::write(&path, rows).unwrap();
    assert!(matches!(open(&folder.0), Err(Error::Corrupt { .. })));
}

/// Regression: a folder with segments and no manifest was taken for the leftovers of a crash, and
/// creating a collection there deleted them.
#[test]
fn a_collection_that_lost_its_manifest_is_not_taken_for_leftovers() {
    let folder = TempFolder::new("lost-manifest");
    let schema = || Schema::new("lost", 2, Metric::Dot);
    let collection = Collection::create(runtime(), &folder.0, schema(), Options::default()).unwrap();
    collection.insert("a", &[1.0, 2.0], Value::Null).unwrap();
    drop(collection);
    let (manifest, aside) = (folder.0.join("MANIFEST"), folder.0.join("aside"));
    fs::rename(&manifest, &aside).unwrap();
    fs::rename(&aside, folder.0.with_extension("aside")).unwrap();
    let opened = Collection::open(runtime(), &folder.0, Options::default());
    assert!(opened.err().unwrap().to_string().contains("manifest is missing"));
    let created = Collection::create(runtime(), &folder.0, schema(), Options::default());
    assert!(matches!(created.err(), Some(Error::AlreadyExists { .. })));
    fs::rename(folder.0.with_extension("aside"), &manifest).unwrap();
    assert_eq!(Collection::open(runtime(), &folder.0, Options::default()).unwrap().len(), 1);
    // Leftovers of a crash during creation or deletion are recognisable by their names.
    fs::rename(&manifest, folder.0.join("MANIFEST.new")).unwrap();
    assert!(Collection::create(runtime(), &folder.0, schema(), Options::default()).unwrap().is_empty());
    Collection::destroy(&folder.0).unwrap();
    assert!(!folder.0.exists());
}

#[test]
fn a_collection_of_a_newer_version_is_named_as_such() {
    let folder = TempFolder::new("newer");
    drop(Collection::create(runtime(), &folder.0, Schema::new("newer", 2, Metric::Dot), Options::default()).unwrap());
    let manifest = folder.0.join("MANIFEST");
    let text = fs::read_to_string(&manifest).unwrap().replacen("vectors 2", "vectors 3", 1);
    fs::write(&manifest, &text).unwrap();
    for opened in [
        Collection::open(runtime(), &folder.0, Options::default()).err().unwrap(),
        Collection::open_read_only(runtime(), &folder.0, Options::default()).err().unwrap(),
        Collection::repair(&folder.0, true).err().unwrap(),
    ] {
        assert!(opened.to_string().contains("newer version"), "{opened}");
    }
    assert_eq!(fs::read_to_string(&manifest).unwrap(), text);
}
