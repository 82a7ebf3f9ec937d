//! Arrays of numbers are stored in planes.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use crate::support::{Random, TempFolder, key, runtime};
use panoply_store::{Options, Store};

/// `count` numbers between one and two, as little-endian bytes.
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
    // The last chunk ends inside a number.
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
    let mut data = std::fs::read_dir(folder.0.join("data")).unwrap().map(|entry| entry.unwrap().path());
    let file = data.find(|file| !file.ends_with("KEYS")).unwrap();
    let whole = std::fs::read(&file).unwrap();
    let mut random = Random(3);
    // The index is at the end: a length, a flag, three entries of 36 bytes, the tag; then the
    // number of chunks.
    let index = whole.len() - (9 + 3 * 36 + 16 + 4)..whole.len();
    let places = index.chain((0..200).map(|_| random.below(whole.len() as u64) as usize)).collect::<Vec<_>>();
    for place in places {
        let mut other = whole.clone();
        other[place] ^= 1 << (place % 8);
        std::fs::write(&file, other).unwrap();
        let mut out = Vec::new();
        assert!(store.read("a", &mut out).is_err(), "{place}");
        assert_eq!(store.verify(&mut |_, _| ()).unwrap().damaged.len(), 1);
        // Everything that came before was authentic.
        assert!(floats(10_000).starts_with(&out));
    }
    std::fs::write(&file, whole).unwrap();
    assert!(read(&store, "a") == floats(10_000));
}
