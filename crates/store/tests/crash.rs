//! A writer that is killed at random instants loses no acknowledged change, and leaves no partial
//! change.
//!
//! The test starts itself as the writer. Both sides know the same endless script of changes; the
//! writer prints a line after each change that returned. After the kill, the store must hold
//! exactly the result of the acknowledged changes, or that and the whole next change, which was in
//! progress. `PANOPLY_STORE_KILLS` sets the number of kills.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use crate::support;
use std::collections::{BTreeMap, HashSet};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{Random, TempFolder, files, is_intact, runtime};
use panoply_store::{Error, MasterKey, Options, Store};

const KILLS_DEFAULT: u64 = 40;
const KILLS: &str = "PANOPLY_STORE_KILLS";
const FOLDER: &str = "PANOPLY_STORE_CRASH_FOLDER";
const FIRST: &str = "PANOPLY_STORE_CRASH_FIRST";
const KEY: &str = "PANOPLY_STORE_CRASH_KEY";
const TEST: &str = "crash::killed_writers_lose_nothing_that_was_acknowledged";

/// The expected state of a store: its objects, and the number of its key.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    objects: BTreeMap<String, Vec<u8>>,
    key: u64,
}

fn key(number: u64) -> MasterKey {
    MasterKey::from_bytes([number.to_le_bytes(); 4].concat()).unwrap()
}

/// Path of the anchor: beside the store, where the next run finds it.
fn anchor(folder: &Path) -> PathBuf {
    folder.with_extension("anchor")
}

fn open(folder: &Path, key_number: u64) -> Result<Store, Error> {
    // Small limits: extents of several chunks, objects of several extents.
    let options = Options {
        chunk_bytes: 4 << 10,
        extent_bytes_max: 64 << 10,
        anchor: Some(anchor(folder)),
        ..support::options()
    };
    match folder.join("HEAD").exists() {
        true => Store::open(runtime(), folder, &key(key_number), options),
        false => Store::create(runtime(), folder, &key(key_number), options),
    }
}

/// A store with more objects than this removes some: every kill is followed by a check of all of
/// them.
const OBJECTS_MAX: u64 = 40;

/// Applies the change with this number to the model, and to the store if given.
fn change(number: u64, model: &mut Model, store: Option<&mut Store>) {
    let mut random = Random(number.wrapping_mul(0x1234_5678_9abc_def1));
    let count = model.objects.len() as u64;
    // No objects are added beyond the limit.
    let kind = if count > OBJECTS_MAX { 30 + random.below(50) } else { random.below(100) };
    let len = if random.below(10) == 0 { 200_000 } else { random.below(9000) } as usize;
    let fresh = format!("new/{number}");
    let known = (count > 0).then(|| model.objects.keys().nth(random.below(count) as usize).unwrap().clone());
    match (kind, known) {
        (0..30, _) | (30..85, None) => put(&[fresh], len, false, &mut random, model, store),
        (30..45, Some(known)) => put(&[known], len, true, &mut random, model, store),
        (45..60, Some(known)) => {
            let content = random.bytes(len);
            store.into_iter().for_each(|store| drop(store.append(&known, &mut &content[..]).unwrap()));
            model.objects.get_mut(&known).unwrap().extend(content);
        }
        (60..80, Some(known)) => {
            store.into_iter().for_each(|store| store.remove(&known).unwrap());
            model.objects.remove(&known);
        }
        (80..90, Some(known)) => put(&[known, fresh, format!("more/{number}")], len, true, &mut random, model, store),
        _ => {
            model.key += 1;
            store.into_iter().for_each(|store| store.rotate(&key(model.key)).unwrap());
        }
    }
}

/// Puts objects as one batch.
fn put(names: &[String], len: usize, replace: bool, random: &mut Random, model: &mut Model, store: Option<&mut Store>) {
    let contents: Vec<Vec<u8>> = names.iter().map(|_| random.bytes(len)).collect();
    if let Some(store) = store {
        let mut batch = store.batch().unwrap();
        for (name, content) in names.iter().zip(&contents) {
            batch.put(name, &mut &content[..], replace).unwrap();
        }
        batch.commit().unwrap();
    }
    model.objects.extend(names.iter().cloned().zip(contents));
}

/// Makes changes until it is killed, beginning with number `first`.
fn write_until_killed(folder: &Path, first: u64, key_number: u64) -> ! {
    let mut store = open(folder, key_number).unwrap();
    // Only names are needed: the objects' content affects no change.
    let names = store.entries().map(|entry| (entry.name, Vec::new()));
    let mut model = Model { objects: names.collect(), key: key_number };
    let mut out = std::io::stdout();
    out.write_all(b"ready\n").unwrap();
    for number in first.. {
        change(number, &mut model, Some(&mut store));
        out.write_all(format!("ack {number}\n").as_bytes()).unwrap();
        out.flush().unwrap();
    }
    unreachable!("numbers do not end")
}

fn contents(store: &Store) -> BTreeMap<String, Vec<u8>> {
    store.entries().map(|entry| (entry.name.clone(), support::read(store, &entry.name).unwrap())).collect()
}

/// Reads the store's content. Its key is the model's, or that of the change in progress.
fn found(folder: &Path, model: &Model) -> Model {
    let (store, key) = match open(folder, model.key) {
        Err(Error::WrongKey { .. }) => (open(folder, model.key + 1).unwrap(), model.key + 1),
        opened => (opened.unwrap(), model.key),
    };
    assert!(is_intact(&store));
    let (anchor, above) = (anchor(folder), folder.parent().unwrap());
    let anchor = anchor.file_name().unwrap().to_str().unwrap();
    let is_left = |name: &str| name.starts_with(anchor) && name != anchor;
    let names = std::fs::read_dir(above).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = names.filter(|name| name.to_str().is_some_and(is_left)).collect();
    assert!(left.is_empty(), "new anchors of the killed writer: {left:?}");
    let extents: usize = store.entries().map(|entry| entry.extents).sum();
    assert_eq!(files(folder).len(), 4 + extents, "no file is left that nobody names");
    Model { objects: contents(&store), key }
}

#[test]
fn killed_writers_lose_nothing_that_was_acknowledged() {
    if let (Ok(folder), Ok(first), Ok(key)) = (std::env::var(FOLDER), std::env::var(FIRST), std::env::var(KEY)) {
        write_until_killed(Path::new(&folder), first.parse().unwrap(), key.parse().unwrap());
    }
    let kills = std::env::var(KILLS).ok().map_or(KILLS_DEFAULT, |kills| kills.parse().unwrap());
    let folder = TempFolder::new("crash");
    drop(open(&folder.0, 0).unwrap());
    let (mut random, mut model, mut next) = (Random(77), Model::default(), 0);
    let mut under_way_was_kept = 0;
    let mut salts = HashSet::new();
    for kill in 0..kills {
        let later = Duration::from_micros(random.below(6000));
        let acknowledged = run_and_kill(&folder.0, next, model.key, random.below(9), later);
        (next..next + acknowledged).for_each(|number| change(number, &mut model, None));
        next += acknowledged;
        let found = found(&folder.0, &model);
        if found != model {
            change(next, &mut model, None);
            next += 1;
            under_way_was_kept += 1;
            assert!(found == model, "after kill {kill}, change {next}: what is there was never made");
        }
        expect_new_salts(&folder.0, &mut salts);
    }
    std::fs::remove_file(anchor(&folder.0)).unwrap();
    assert!(next > kills, "only {next} changes were made");
    println!("{kills} kills, {next} changes acknowledged or kept, {under_way_was_kept} kept that were under way");
}

/// Reads the random bytes in front of the head's state: they differ in every head ever written, so
/// no key seals twice.
fn expect_new_salts(folder: &Path, seen: &mut HashSet<(u64, Vec<u8>)>) {
    let head = std::fs::read(folder.join("HEAD")).unwrap();
    let keyring = 16 + 16 + 29 + 16;
    let len = u32::from_le_bytes(head[keyring..keyring + 4].try_into().unwrap()) as usize;
    let state = keyring + 4 + len + 4;
    let salt = head[state..state + 32].to_vec();
    let hash = head.iter().fold(0_u64, |hash, byte| hash.wrapping_mul(31).wrapping_add(u64::from(*byte)));
    assert!(seen.iter().all(|(known, other)| *other != salt || *known == hash), "two heads under one key");
    seen.insert((hash, salt));
}

/// Starts a writer and kills it some time after it has acknowledged `acknowledgements` changes.
/// Returns the number of all acknowledged changes.
fn run_and_kill(folder: &Path, first: u64, key: u64, acknowledgements: u64, later: Duration) -> u64 {
    let mut writer = Command::new(std::env::current_exe().unwrap())
        .args([TEST, "--exact", "--nocapture"])
        .env(FOLDER, folder)
        .env(FIRST, first.to_string())
        .env(KEY, key.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(writer.stdout.take().unwrap()).lines();
    let mut count = 0;
    let mut is_ready = false;
    while !is_ready || count < acknowledgements {
        let Some(Ok(line)) = lines.next() else { panic!("the writer ended by itself") };
        is_ready |= line.ends_with("ready");
        count += u64::from(is_acknowledged(&line, first + count));
    }
    std::thread::sleep(later);
    writer.kill().unwrap();
    writer.wait().unwrap();
    for line in lines.map_while(Result::ok) {
        count += u64::from(is_acknowledged(&line, first + count));
    }
    count
}

/// Whether the line acknowledges a change, which must be `next`.
fn is_acknowledged(line: &str, next: u64) -> bool {
    let number = line.strip_prefix("ack ").map(|number| number.parse::<u64>().unwrap());
    assert!(number.is_none_or(|number| number == next), "changes are acknowledged in order");
    number.is_some()
}
