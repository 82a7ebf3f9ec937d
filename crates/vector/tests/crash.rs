//! A writer that is killed at random instants loses no acknowledged write, and leaves no incomplete
//! write. Every later writer and reader finds the same state as the first reader after the kill.
//!
//! The test starts itself as the writer. Both sides know the same endless script of changes; the
//! writer reports each change that returned. After it has been killed, the collection must hold
//! exactly the acknowledged changes, or those and all of the next change, which was in progress. An
//! encrypted collection is killed as well. `PANOPLY_VECTOR_KILLS` sets the number of kills of each.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{Random, TempFolder, runtime};
use panoply_store::MasterKey;
use panoply_vector::{Collection, IndexOptions, Metric, Options, Schema};
use serde_json::{Value, json};

const KILLS: u64 = 200;
const KILLS_ENCRYPTED: u64 = 60;
const KILLS_WANTED: &str = "PANOPLY_VECTOR_KILLS";
const DIMENSION: usize = 64;
const FOLDER: &str = "PANOPLY_CRASH_FOLDER";
const FIRST: &str = "PANOPLY_CRASH_FIRST";
const TEST: &str = "crash::killed_writers_lose_nothing_that_was_acknowledged";
const TEST_ENCRYPTED: &str = "crash::killed_writers_of_encrypted_collections_lose_nothing";

type Model = BTreeMap<String, (Vec<f32>, Value)>;

fn options(encrypted: bool) -> Options {
    let key = encrypted.then(|| MasterKey::from_bytes(vec![3; 32]).unwrap());
    // Small segments, so that many begin and end.
    Options { segment_bytes_max: 600 << 10, key, ..Options::default() }
}

/// Applies the change with this number to the model, and to the collection if one is given.
fn change(number: u64, model: &mut Model, collection: Option<&Collection>) {
    let mut random = Random(number.wrapping_mul(0x1234_5678_9abc_def1));
    let kind = random.below(100);
    let count = if kind == 0 { 1500 } else { 1 + random.below(6) as usize };
    let fresh: Vec<String> = (0..count).map(|index| format!("{number}-{index}")).collect();
    let known: Vec<String> = if model.is_empty() {
        Vec::new()
    } else {
        (0..count).map(|_| model.keys().nth(random.below(model.len() as u64) as usize).unwrap().clone()).collect()
    };
    let unique: Vec<String> = known.into_iter().collect::<std::collections::BTreeSet<_>>().into_iter().collect();
    let put = |ids: &[String], random: &mut Random, model: &mut Model, upsert: bool| {
        let vectors = random.vectors(ids.len(), DIMENSION);
        let metadata: Vec<Value> = ids.iter().map(|id| json!({ "change": number, "id": id })).collect();
        if let Some(collection) = collection {
            let write = if upsert {
                collection.upsert_many(ids, &vectors, &metadata)
            } else {
                collection.insert_many(ids, &vectors, &metadata)
            };
            write.unwrap();
        }
        for ((id, vector), metadata) in ids.iter().zip(vectors.chunks(DIMENSION)).zip(metadata) {
            model.insert(id.clone(), (vector.to_vec(), metadata));
        }
    };
    match kind {
        0..45 => put(&fresh, &mut random, model, false),
        45..60 => put(&[&unique[..], &fresh[..]].concat(), &mut random, model, true),
        60..80 => {
            if let Some(collection) = collection {
                assert_eq!(collection.remove_many(&unique).unwrap(), unique.len());
            }
            unique.iter().for_each(|id| drop(model.remove(id)));
        }
        80..90 => {
            if let Some(id) = unique.first() {
                change_metadata(number, id, model, collection);
            }
        }
        90..94 => {
            if let Some(collection) = collection {
                collection.compact().unwrap();
            }
        }
        94..96 if !model.is_empty() => {
            if let Some(collection) = collection {
                let lists = Some(4.min(model.len()));
                collection.build_index(&IndexOptions { lists, rounds: 2, ..IndexOptions::default() }).unwrap();
            }
        }
        96..97 => {
            if let Some(collection) = collection {
                collection.clear().unwrap();
            }
            model.clear();
        }
        _ => {
            if let Some(collection) = collection {
                collection.flush().unwrap();
            }
        }
    }
}

/// Replaces the metadata of a record, or sets one field of it if the number is even.
fn change_metadata(number: u64, id: &str, model: &mut Model, collection: Option<&Collection>) {
    let metadata = json!({ "updated": number });
    let own = &mut model.get_mut(id).unwrap().1;
    let merges = number % 2 == 0;
    match collection {
        Some(collection) if merges => {
            collection.set_fields(id, metadata.as_object().unwrap().clone()).unwrap();
        }
        Some(collection) => collection.update(id, None, Some(metadata.clone())).unwrap(),
        None => {}
    }
    if merges {
        own["updated"] = json!(number);
    } else {
        *own = metadata;
    }
}

/// Makes changes until it is killed, beginning with change `first`.
fn write_until_killed(folder: &Path, first: u64, encrypted: bool) -> ! {
    let collection = Collection::open(runtime(), folder, options(encrypted)).unwrap();
    let mut model: Model = contents(&collection);
    let mut out = std::io::stdout();
    for number in first.. {
        change(number, &mut model, Some(&collection));
        out.write_all(format!("ack {number}\n").as_bytes()).unwrap();
        out.flush().unwrap();
    }
    unreachable!("numbers do not end")
}

fn contents(collection: &Collection) -> Model {
    collection.iter().map(|entry| (entry.id, (entry.vector, entry.metadata))).collect()
}

#[test]
fn killed_writers_lose_nothing_that_was_acknowledged() {
    kill_often(false, KILLS);
}

#[test]
fn killed_writers_of_encrypted_collections_lose_nothing() {
    kill_often(true, KILLS_ENCRYPTED);
}

fn kill_often(encrypted: bool, kills: u64) {
    if let (Ok(folder), Ok(first)) = (std::env::var(FOLDER), std::env::var(FIRST)) {
        write_until_killed(Path::new(&folder), first.parse().unwrap(), encrypted);
    }
    let kills = std::env::var(KILLS_WANTED).ok().map_or(kills, |kills| kills.parse().unwrap());
    let folder = TempFolder::new("crash");
    let schema = Schema::new("crash", DIMENSION, Metric::Cosine);
    drop(Collection::create(runtime(), &folder.0, schema, options(encrypted)).unwrap());
    let (mut random, mut model, mut next) = (Random(77), Model::new(), 0);
    let mut under_way_was_kept = 0;
    for kill in 0..kills {
        let later = Duration::from_micros(random.below(3000));
        let acknowledged = run_and_kill(&folder.0, next, encrypted, random.below(12), later);
        (next..next + acknowledged).for_each(|number| change(number, &mut model, None));
        next += acknowledged;
        let read = || contents(&Collection::open_read_only(runtime(), &folder.0, options(encrypted)).unwrap());
        // Regression: a reader left out the change that was under way, and the next writer kept it.
        let first = read();
        let collection = Collection::open(runtime(), &folder.0, options(encrypted)).unwrap();
        let found = contents(&collection);
        assert!(first == found, "after kill {kill}: a reader had {} records, a writer {}", first.len(), found.len());
        if kill % 4 == 0 {
            assert!(read() == found, "after kill {kill}: a reader beside the next writer differs");
        }
        if found != model {
            change(next, &mut model, None);
            next += 1;
            under_way_was_kept += 1;
            assert!(
                found == model,
                "after kill {kill}, change {next}: {} records, {} expected",
                found.len(),
                model.len()
            );
        }
        assert_eq!(collection.len(), model.len());
        for id in model.keys().take(20) {
            assert_eq!(collection.get(id).unwrap().unwrap().vector, model[id].0);
        }
        if kill % 20 == 0 {
            collection.verify().unwrap();
            drop(collection);
            assert!(read() == found, "after kill {kill}: a reader after the next writer differs");
        }
    }
    assert!(next > kills, "only {next} changes were made");
    println!("{kills} kills, {next} changes acknowledged or kept, {under_way_was_kept} kept that were under way");
}

/// Starts a writer, waits for `acknowledgements` acknowledged changes, kills the writer after the
/// further time `later`, and returns the number of all changes that it acknowledged.
fn run_and_kill(folder: &Path, first: u64, encrypted: bool, acknowledgements: u64, later: Duration) -> u64 {
    let mut writer = Command::new(std::env::current_exe().unwrap())
        .args([if encrypted { TEST_ENCRYPTED } else { TEST }, "--exact", "--nocapture"])
        .env(FOLDER, folder)
        .env(FIRST, first.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
    let mut count = 0;
    let mut last = None;
    while count < acknowledgements {
        let Some(Ok(line)) = lines.next() else { panic!("the writer ended by itself") };
        if let Some(number) = acknowledged(&line) {
            (count, last) = (count + 1, Some(number));
        }
    }
    std::thread::sleep(later);
    writer.kill().unwrap();
    writer.wait().unwrap();
    for line in lines.map_while(Result::ok) {
        if let Some(number) = acknowledged(&line) {
            (count, last) = (count + 1, Some(number));
        }
    }
    assert!(last.is_none_or(|last| last == first + count - 1), "changes are acknowledged in order");
    count
}

fn acknowledged(line: &str) -> Option<u64> {
    // The first line follows the test harness's output without a line break.
    line.rsplit_once("ack ")?.1.parse().ok()
}
