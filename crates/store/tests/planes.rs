//! Arrays of numbers are stored in planes, and stores from before there were planes open as they did.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod support;

use std::path::Path;

use panoply_store::{MasterKey, Options, Store};
use support::{Random, TempFolder, key, runtime};

/// So many numbers between one and two, as little-endian bytes.
fn numbers<const WIDTH: usize>(count: usize, number: impl Fn(u64) -> [u8; WIDTH]) -> Vec<u8> {
    let mut random = Random(7);
    (0..count).flat_map(|_| number(random.next())).collect()
}

fn floats(count: usize) -> Vec<u8> {
    numbers(count, |random| (1.0 + (random >> 40) as f32 / (1 << 24) as f32).to_le_bytes())
}

fn read(store: &Store, name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    store.read(name, &mut out).unwrap();
    out
}

#[test]
fn numbers_become_shorter_and_come_back() {
    let folder = TempFolder::new("planes");
    let mut store = Store::create(runtime(), &folder.0, &key(1), Options::default()).unwrap();
    let doubles = numbers(70_000, |random| (1.0 + (random >> 12) as f64 / (1_u64 << 52) as f64).to_le_bytes());
    let halves = numbers(200_000, |random| (0x3c00 | random as u16 & 0xff).to_le_bytes());
    // The last chunk is no whole number of numbers.
    let objects = [
        ("floats", [floats(300_000), vec![1, 2, 3]].concat(), 0.73),
        ("doubles", doubles, 0.88),
        ("halves", halves, 0.52),
    ];
    for (name, content, left_max) in &objects {
        let entry = store.put(name, &mut &content[..], false).unwrap();
        assert!(
            (entry.stored as f64) < content.len() as f64 * left_max,
            "{name} {} of {}",
            entry.stored,
            content.len()
        );
    }
    store.append("floats", &mut &floats(100_000)[..]).unwrap();
    store.rotate(&key(2)).unwrap();
    drop(store);
    let store = Store::open_read_only(runtime(), &folder.0, &key(2), Options::default()).unwrap();
    let mut contents: Vec<(&str, Vec<u8>)> = objects.into_iter().map(|(name, content, _)| (name, content)).collect();
    contents[0].1.extend(floats(100_000));
    for (name, content) in &contents {
        assert!(read(&store, name) == *content, "{name}");
        let len = content.len() as u64;
        for range in [0..1, 262_143..262_145, 262_144..262_144, 5..300_001, len - 3..len, 0..len] {
            let mut out = Vec::new();
            store.read_range(name, range.clone(), &mut out).unwrap();
            assert!(out == content[range.start as usize..range.end as usize], "{name} {range:?}");
        }
    }
    assert!(store.verify(&mut |_, _| ()).unwrap().damaged.is_empty());
}

#[test]
fn what_is_flipped_in_planes_is_found() {
    let folder = TempFolder::new("planes-flipped");
    let options = Options { chunk_bytes: 16 << 10, ..Options::default() };
    let mut store = Store::create(runtime(), &folder.0, &key(1), options).unwrap();
    store.put("a", &mut &floats(10_000)[..], false).unwrap();
    let file = std::fs::read_dir(folder.0.join("data")).unwrap().next().unwrap().unwrap().path();
    let whole = std::fs::read(&file).unwrap();
    let mut random = Random(3);
    // The index is at the end: three entries of 36 bytes, and the tag.
    let index = whole.len() - (3 * 36 + 16)..whole.len();
    let places = index.chain((0..200).map(|_| random.below(whole.len() as u64) as usize)).collect::<Vec<_>>();
    for place in places {
        let mut other = whole.clone();
        other[place] ^= 1 << (place % 8);
        std::fs::write(&file, other).unwrap();
        let mut out = Vec::new();
        assert!(store.read("a", &mut out).is_err(), "{place}");
        assert_eq!(store.verify(&mut |_, _| ()).unwrap().damaged.len(), 1);
        // What came before was authentic.
        assert!(floats(10_000).starts_with(&out));
    }
    std::fs::write(&file, whole).unwrap();
    assert!(read(&store, "a") == floats(10_000));
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|entry| (entry.path(), entry.file_name())).unwrap();
        match path.is_dir() {
            true => copy(&path, &to.join(name)),
            false => drop(std::fs::copy(&path, to.join(name)).unwrap()),
        }
    }
}

/// A store that was written by the version before.
#[test]
fn stores_from_before_there_were_planes_open() {
    let folder = TempFolder::new("before-planes");
    copy(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/before-planes"), &folder.0);
    let key = MasterKey::from_bytes((0..32).collect()).unwrap();
    let mut store = Store::open(runtime(), &folder.0, &key, Options::default()).unwrap();
    let text: Vec<u8> = (0..2000).flat_map(|line| format!("line {line} of a text\n").into_bytes()).collect();
    let noise: Vec<u8> = (0..1000_u32).map(|place| (place.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    assert!(read(&store, "text") == text && read(&store, "noise") == noise);
    assert!(store.get("text").unwrap().stored < text.len() as u64 / 2);
    assert!(store.verify(&mut |_, _| ()).unwrap().damaged.is_empty());
    store.append("noise", &mut &floats(70_000)[..]).unwrap();
    assert!(read(&store, "noise") == [noise, floats(70_000)].concat());
}
