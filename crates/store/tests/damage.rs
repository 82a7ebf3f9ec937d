//! Every manipulation of a store's files is detected: altered or truncated bytes, and files that
//! are swapped, renamed, taken from another store or rolled back.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Random, TempFolder, copy, create, files, is_intact, key, open, options, read, runtime};
use panoply_conformance::few_or_all;
use panoply_store::{Error, Options, Store};

/// A small store with objects of several chunks and extents, an append, a key rotation, and a
/// history.
fn filled(folder: &Path) {
    let mut store = create(folder);
    let mut random = Random(5);
    store.put("one", &mut &random.bytes(30)[..], false).unwrap();
    store.put("three", &mut &random.bytes(250)[..], false).unwrap();
    store.put("gone", &mut &random.bytes(30)[..], false).unwrap();
    store.rotate(&key(1)).unwrap();
    store.put("empty", &mut &b""[..], false).unwrap();
    store.append("one", &mut &random.bytes(120)[..]).unwrap();
    store.remove("gone").unwrap();
}

/// Opens a store and reads all of it; returns the first error.
fn judge(folder: &Path) -> Result<(), Error> {
    let store = open(folder)?;
    let found = store.verify(&mut |_, _| ()).unwrap();
    found.damaged.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
}

/// Asserts that the store was refused with one of the errors for damage.
fn expect_found_out(judged: Result<(), Error>, what: impl Fn() -> String) {
    match judged {
        Err(Error::Damaged { .. } | Error::WrongKey { .. } | Error::KeyKind { .. } | Error::UnknownFormat { .. }) => {}
        other => panic!("{}: {other:?}", what()),
    }
}

/// Odd and not the size of a field, so that the places lie differently in each record.
const SHORT_STEP: usize = 5;

/// The data files. Damage to head, log and root keys, which have copies, is tested in `repair.rs`.
fn data(folder: &Path) -> Vec<PathBuf> {
    files(&folder.join("data")).into_iter().filter(|file| !file.ends_with("KEYS")).collect()
}

#[test]
fn every_altered_byte_is_found_out() {
    let folder = TempFolder::new("flip");
    filled(&folder.0);
    let mut places = 0;
    for file in data(&folder.0) {
        let bytes = fs::read(&file).unwrap();
        for place in (0..bytes.len()).step_by(few_or_all(SHORT_STEP, 1)) {
            let mut altered = bytes.clone();
            altered[place] ^= 1 << (place % 8);
            fs::write(&file, &altered).unwrap();
            expect_found_out(judge(&folder.0), || format!("{} at byte {place}", file.display()));
            places += 1;
        }
        fs::write(&file, &bytes).unwrap();
        judge(&folder.0).unwrap();
    }
    println!("{places} bytes altered, one at a time");
    assert!(places > few_or_all(1500 / SHORT_STEP, 1500), "{places}");
}

#[test]
fn every_cut_is_found_out() {
    let folder = TempFolder::new("cut");
    filled(&folder.0);
    for file in data(&folder.0) {
        let bytes = fs::read(&file).unwrap();
        for len in (0..bytes.len()).step_by(few_or_all(SHORT_STEP, 1)) {
            fs::write(&file, &bytes[..len]).unwrap();
            expect_found_out(judge(&folder.0), || format!("{} cut to {len}", file.display()));
        }
        fs::write(&file, [&bytes[..], &[0]].concat()).unwrap();
        expect_found_out(judge(&folder.0), || format!("{} with a byte more", file.display()));
        fs::remove_file(&file).unwrap();
        expect_found_out(judge(&folder.0), || format!("{} deleted", file.display()));
        fs::write(&file, &bytes).unwrap();
    }
    judge(&folder.0).unwrap();
}

/// Swaps pieces within a file, and files with each other, including files of another store with the
/// same key.
#[test]
fn swapped_pieces_and_files_are_found_out() {
    let (folder, other) = (TempFolder::new("swap"), TempFolder::new("swap-other"));
    filled(&folder.0);
    filled(&other.0);
    // Both copies of the log are altered alike: a single one would be repaired from the other.
    let logs: Vec<PathBuf> =
        files(&folder.0).into_iter().filter(|file| file.to_string_lossy().contains("catalog-")).collect();
    let groups = || data(&folder.0).into_iter().map(|file| vec![file]).chain([logs.clone()]);
    let write = |group: &[PathBuf], bytes: &[u8]| group.iter().for_each(|file| fs::write(file, bytes).unwrap());
    for group in groups() {
        let (file, bytes) = (&group[0], fs::read(&group[0]).unwrap());
        for size in [16, 44, 116, 216] {
            let mut pieces: Vec<&[u8]> = bytes.chunks(size).collect();
            for at in 1..pieces.len() {
                pieces.swap(at - 1, at);
                if pieces.concat() != bytes {
                    write(&group, &pieces.concat());
                    expect_found_out(judge(&folder.0), || format!("{}: piece {at} of {size}", file.display()));
                }
                pieces.swap(at - 1, at);
            }
        }
        write(&group, &bytes);
    }
    let data = data(&folder.0);
    for (first, second) in data.iter().flat_map(|first| data.iter().map(move |second| (first, second))) {
        if first != second {
            swap(first, second);
            expect_found_out(judge(&folder.0), || "two extents were swapped".to_owned());
            swap(first, second);
        }
    }
    // The same extents, with the ids in front swapped as well.
    let (a, b) = (fs::read(&data[0]).unwrap(), fs::read(&data[1]).unwrap());
    fs::write(&data[0], [&a[..48], &b[48..]].concat()).unwrap();
    expect_found_out(judge(&folder.0), || "the chunks of another object".to_owned());
    fs::write(&data[0], &a).unwrap();
    let foreign: Vec<(Vec<PathBuf>, PathBuf)> = groups()
        .zip(self::data(&other.0).into_iter().chain([log(&other.0)]))
        .chain([(vec![folder.0.join("HEAD")], other.0.join("HEAD"))])
        .collect();
    for (own, foreign) in foreign {
        let bytes = fs::read(&own[0]).unwrap();
        write(&own, &fs::read(foreign).unwrap());
        expect_found_out(judge(&folder.0), || format!("{} of another store", own[0].display()));
        write(&own, &bytes);
    }
    judge(&folder.0).unwrap();
}

fn swap(first: &Path, second: &Path) {
    let (a, b) = (fs::read(first).unwrap(), fs::read(second).unwrap());
    fs::write(first, b).unwrap();
    fs::write(second, a).unwrap();
}

fn log(folder: &Path) -> PathBuf {
    files(folder).into_iter().find(|file| file.to_string_lossy().contains("catalog-")).unwrap()
}

/// A record that was written but never counted is ignored, even if it has the position and length
/// of one that counts.
#[test]
fn a_record_that_never_counted_cannot_take_the_place_of_one_that_does() {
    let (folder, other) = (TempFolder::new("ghost"), TempFolder::new("ghost-other"));
    let mut store = create(&folder.0);
    store.put("first", &mut &b"1"[..], false).unwrap();
    drop(store);
    copy(&folder.0, &other.0);
    open(&other.0).unwrap().put("ghost", &mut &b"2"[..], false).unwrap();
    let ghost = fs::read(log(&other.0)).unwrap();
    // The record of a commit whose data is gone did not count.
    let before = fs::read(log(&folder.0)).unwrap();
    fs::write(log(&folder.0), &ghost).unwrap();
    let mut store = open(&folder.0).unwrap();
    assert!(store.get("ghost").is_none() && store.get("first").is_some());
    assert_eq!(fs::read(log(&folder.0)).unwrap(), before);
    store.put("truth", &mut &b"3"[..], false).unwrap();
    drop(store);
    assert_eq!(fs::read(log(&folder.0)).unwrap().len(), ghost.len());
    let copy = log(&folder.0).with_extension("copy");
    fs::write(log(&folder.0), &ghost).unwrap();
    fs::write(copy, &ghost).unwrap();
    expect_found_out(judge(&folder.0), || "the ghost was taken".to_owned());
}

/// Leftovers of a crash are not damage: they are cut off or deleted.
#[test]
fn torn_ends_and_leftovers_are_cleared_away() {
    let folder = TempFolder::new("torn");
    filled(&folder.0);
    let before = files(&folder.0);
    let whole = fs::read(log(&folder.0)).unwrap();
    for tail in [&b"x"[..], &[0; 300], &whole] {
        fs::write(log(&folder.0), [&whole[..], tail].concat()).unwrap();
        fs::write(folder.0.join("HEAD.new"), "half a he").unwrap();
        fs::write(folder.0.join("data").join("ab".repeat(32)), "half an extent").unwrap();
        fs::write(folder.0.join(format!("catalog-{}", "0c".repeat(16))), "another log").unwrap();
        // Readers change nothing.
        let reader = Store::open_read_only(runtime(), &folder.0, &key(1), options()).unwrap();
        assert!(is_intact(&reader) && files(&folder.0).len() == before.len() + 3);
        drop(reader);
        judge(&folder.0).unwrap();
        assert_eq!((files(&folder.0), fs::read(log(&folder.0)).unwrap()), (before.clone(), whole.clone()));
    }
    fs::write(folder.0.join("letter.txt"), "dear").unwrap();
    judge(&folder.0).unwrap();
    assert!(folder.0.join("letter.txt").exists(), "what is not the store's stays");
}

/// An older copy of all files is intact; only the anchor detects it.
#[test]
fn an_older_copy_is_found_out_by_the_anchor() {
    let (folder, old, anchor) = (TempFolder::new("back"), TempFolder::new("back-old"), TempFolder::new("back-anchor"));
    let anchored = || Options { anchor: Some(anchor.0.clone()), ..options() };
    let opened = || Store::open(runtime(), &folder.0, &key(1), anchored());
    let mut store = Store::create(runtime(), &folder.0, &key(1), anchored()).unwrap();
    store.put("balance", &mut &b"100"[..], false).unwrap();
    copy(&folder.0, &old.0);
    store.put("balance", &mut &b"000"[..], true).unwrap();
    drop(store);
    let same = opened().unwrap();
    assert!(read(&same, "balance").unwrap() == b"000" && !same.had_no_anchor());
    drop(same);
    // First the head alone, which loses nothing; then everything.
    fs::copy(old.0.join("HEAD"), folder.0.join("HEAD")).unwrap();
    assert_eq!(read(&opened().unwrap(), "balance").unwrap(), b"000");
    copy(&old.0, &folder.0);
    assert!(matches!(opened(), Err(Error::RolledBack { expected: 3, got: 2, .. })));
    // Another history of the same length is detected as well.
    open(&folder.0).unwrap().put("balance", &mut &b"999"[..], true).unwrap();
    assert!(matches!(opened(), Err(Error::RolledBack { expected: 3, got: 3, .. })));
    // So is a copy that was continued: its generation is higher, but its log does not contain the
    // point that the anchor remembers.
    open(&folder.0).unwrap().put("more", &mut &b"999"[..], true).unwrap();
    open(&folder.0).unwrap().rotate(&key(1)).unwrap();
    assert!(matches!(opened(), Err(Error::RolledBack { expected: 3, got: 5, .. })));
    assert!(open(&folder.0).is_ok(), "without an anchor nobody knows");
    fs::write(&anchor.0, "nonsense").unwrap();
    assert!(matches!(opened(), Err(Error::DamagedAnchor { .. })));
    fs::remove_file(&anchor.0).unwrap();
    assert!(opened().unwrap().had_no_anchor(), "nobody can tell what was before");
    assert!(!opened().unwrap().had_no_anchor());
    fs::remove_file(&anchor.0).unwrap();
}

/// Regression: an anchor was found only by the store's path, so a link to the store had none.
#[test]
#[cfg(unix)]
fn an_anchor_is_found_by_the_id_of_the_store() {
    let (folder, old, link) = (TempFolder::new("id"), TempFolder::new("id-old"), TempFolder::new("id-link"));
    let anchors = TempFolder::new("id-anchors");
    fs::create_dir(&anchors.0).unwrap();
    let anchored = || Options { anchor_folder: Some(anchors.0.clone()), ..options() };
    let mut store = Store::create(runtime(), &folder.0, &key(1), anchored()).unwrap();
    store.put("balance", &mut &b"100"[..], false).unwrap();
    copy(&folder.0, &old.0);
    store.put("balance", &mut &b"000"[..], true).unwrap();
    drop(store);
    std::os::unix::fs::symlink(&folder.0, &link.0).unwrap();
    let opened = |path: &Path| Store::open(runtime(), path, &key(1), anchored()).map(|store| store.had_no_anchor());
    assert!(!opened(&link.0).unwrap() && !opened(&folder.0).unwrap());
    // The path of the older copy does not matter.
    assert!(matches!(opened(&old.0), Err(Error::RolledBack { expected: 3, got: 2, .. })));
    copy(&old.0, &folder.0);
    for path in [&folder.0, &link.0] {
        assert!(matches!(opened(path), Err(Error::RolledBack { expected: 3, got: 2, .. })));
    }
    // A rewritten log continues the history of the log before it.
    fs::remove_dir_all(&anchors.0).unwrap();
    fs::create_dir(&anchors.0).unwrap();
    assert!(opened(&folder.0).unwrap());
    let mut store = open(&folder.0).unwrap();
    (0..3).for_each(|_| store.rotate(&key(1)).unwrap());
    drop(store);
    assert!(!opened(&folder.0).unwrap());
    fs::remove_file(&link.0).unwrap();
}

/// An anchor that cannot be written is reported, and changes nothing else.
#[test]
fn an_anchor_that_cannot_be_written_is_told() {
    let folder = TempFolder::new("no-anchor");
    let anchor = Some(PathBuf::from("/proc/no such folder/anchor"));
    let mut store = Store::create(runtime(), &folder.0, &key(1), Options { anchor, ..options() }).unwrap();
    assert!(store.anchor_problem().is_some());
    store.put("a", &mut &b"a"[..], false).unwrap();
    assert_eq!(read(&store, "a").unwrap(), b"a");
}

/// No byte of an inauthentic chunk, or behind it, is handed out.
#[test]
fn damage_in_the_middle_hands_out_nothing_of_its_batch() {
    let folder = TempFolder::new("middle");
    let mut store = create(&folder.0);
    store.put("a", &mut &Random(8).bytes(900)[..], false).unwrap();
    let file = data(&folder.0).remove(0);
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).unwrap();
    let mut out = Vec::new();
    assert!(matches!(store.read("a", &mut out), Err(Error::Damaged { .. })));
    assert!(out.is_empty());
    store.read_range("a", 0..100, &mut out).unwrap();
    assert_eq!(out.len(), 100, "what is authentic by itself can be read");
    let found = store.verify(&mut |_, _| ()).unwrap();
    assert_eq!((found.intact, found.damaged[0].0.as_str()), (0, "a"));
}
