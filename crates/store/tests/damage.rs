//! Whatever somebody does to the files of a store is found out: bytes that are altered or cut, files that are swapped, renamed, taken from
//! another store or put back as they were.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use panoply_store::{Error, Options, Store};
use support::{Random, TempFolder, copy, create, files, is_intact, key, open, options, read, runtime};

/// A small store with objects of several chunks and extents, appended to, rotated, and with a history.
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

/// What is found when a store is opened and all of it is read.
fn judge(folder: &Path) -> Result<(), Error> {
    let store = open(folder)?;
    let found = store.verify(&mut |_, _| ()).unwrap();
    found.damaged.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
}

/// Whether it is refused, and as what: everything that damage may be called.
fn expect_found_out(judged: Result<(), Error>, what: impl Fn() -> String) {
    match judged {
        Err(Error::Damaged { .. } | Error::WrongKey { .. } | Error::KeyKind { .. } | Error::NotAStore { .. }) => {}
        other => panic!("{}: {other:?}", what()),
    }
}

#[test]
fn every_altered_byte_is_found_out() {
    let folder = TempFolder::new("flip");
    filled(&folder.0);
    let mut places = 0;
    for file in files(&folder.0) {
        let bytes = fs::read(&file).unwrap();
        for place in 0..bytes.len() {
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
    assert!(places > 1500, "{places}");
}

#[test]
fn every_cut_is_found_out() {
    let folder = TempFolder::new("cut");
    filled(&folder.0);
    for file in files(&folder.0) {
        let bytes = fs::read(&file).unwrap();
        for len in 0..bytes.len() {
            fs::write(&file, &bytes[..len]).unwrap();
            expect_found_out(judge(&folder.0), || format!("{} cut to {len}", file.display()));
        }
        let is_log = file.to_string_lossy().contains("catalog-");
        if !bytes.is_empty() && !is_log {
            fs::write(&file, [&bytes[..], &[0]].concat()).unwrap();
            expect_found_out(judge(&folder.0), || format!("{} with a byte more", file.display()));
        }
        if !bytes.is_empty() {
            fs::remove_file(&file).unwrap();
            expect_found_out(judge(&folder.0), || format!("{} deleted", file.display()));
        }
        fs::write(&file, &bytes).unwrap();
    }
    judge(&folder.0).unwrap();
}

/// Pieces of one file in each other's place, and files in each other's place, also those of another store with the same key.
#[test]
fn swapped_pieces_and_files_are_found_out() {
    let (folder, other) = (TempFolder::new("swap"), TempFolder::new("swap-other"));
    filled(&folder.0);
    filled(&other.0);
    for file in files(&folder.0) {
        let bytes = fs::read(&file).unwrap();
        for size in [16, 44, 116, 216] {
            let mut pieces: Vec<&[u8]> = bytes.chunks(size).collect();
            for at in 1..pieces.len() {
                pieces.swap(at - 1, at);
                if pieces.concat() != bytes {
                    fs::write(&file, pieces.concat()).unwrap();
                    expect_found_out(judge(&folder.0), || format!("{}: piece {at} of {size}", file.display()));
                }
                pieces.swap(at - 1, at);
            }
        }
        fs::write(&file, &bytes).unwrap();
    }
    let data = files(&folder.0.join("data"));
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
    for (own, foreign) in files(&folder.0).iter().zip(files(&other.0)) {
        let bytes = fs::read(own).unwrap();
        if !bytes.is_empty() {
            fs::copy(foreign, own).unwrap();
            expect_found_out(judge(&folder.0), || format!("{} of another store", own.display()));
            fs::write(own, bytes).unwrap();
        }
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

/// A record that was written and never counted is no record, also where it has the place and the length of one that counts.
#[test]
fn a_record_that_never_counted_cannot_take_the_place_of_one_that_does() {
    let folder = TempFolder::new("ghost");
    let mut store = create(&folder.0);
    store.put("first", &mut &b"1"[..], false).unwrap();
    let head = fs::read(folder.0.join("HEAD")).unwrap();
    store.put("ghost", &mut &b"2"[..], false).unwrap();
    drop(store);
    // As a crash leaves it between the log and the head.
    fs::write(folder.0.join("HEAD"), &head).unwrap();
    let ghost = fs::read(log(&folder.0)).unwrap();
    let mut store = open(&folder.0).unwrap();
    assert!(store.get("ghost").is_none() && store.get("first").is_some());
    store.put("truth", &mut &b"3"[..], false).unwrap();
    drop(store);
    assert_eq!(fs::read(log(&folder.0)).unwrap().len(), ghost.len());
    fs::write(log(&folder.0), &ghost).unwrap();
    expect_found_out(judge(&folder.0), || "the ghost was taken".to_owned());
}

/// What a crash leaves behind is no damage: it is cut off or deleted.
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
        // Readers leave everything as it is.
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

/// An older copy of all files is in order; only the anchor knows better.
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
    // The head alone, and everything.
    let head = fs::read(folder.0.join("HEAD")).unwrap();
    fs::copy(old.0.join("HEAD"), folder.0.join("HEAD")).unwrap();
    assert!(matches!(opened(), Err(Error::RolledBack { expected: 3, got: 2, .. })));
    fs::write(folder.0.join("HEAD"), head).unwrap();
    assert_eq!(read(&opened().unwrap(), "balance").unwrap(), b"000");
    copy(&old.0, &folder.0);
    assert!(matches!(opened(), Err(Error::RolledBack { expected: 3, got: 2, .. })));
    // Another history of the same length is another one as well.
    open(&folder.0).unwrap().put("balance", &mut &b"999"[..], true).unwrap();
    assert!(matches!(opened(), Err(Error::RolledBack { expected: 3, got: 3, .. })));
    assert!(open(&folder.0).is_ok(), "without an anchor nobody knows");
    fs::write(&anchor.0, "nonsense").unwrap();
    assert!(matches!(opened(), Err(Error::Damaged { .. })));
    fs::remove_file(&anchor.0).unwrap();
    assert!(opened().unwrap().had_no_anchor(), "nobody can tell what was before");
    assert!(!opened().unwrap().had_no_anchor());
    fs::remove_file(&anchor.0).unwrap();
}

/// The anchor of a store that cannot be written is told, and changes nothing else.
#[test]
fn an_anchor_that_cannot_be_written_is_told() {
    let folder = TempFolder::new("no-anchor");
    let anchor = Some(PathBuf::from("/proc/no such folder/anchor"));
    let mut store = Store::create(runtime(), &folder.0, &key(1), Options { anchor, ..options() }).unwrap();
    assert!(store.anchor_problem().is_some());
    store.put("a", &mut &b"a"[..], false).unwrap();
    assert_eq!(read(&store, "a").unwrap(), b"a");
}

/// Nothing of a chunk that is not authentic is handed out, and nothing behind it.
#[test]
fn damage_in_the_middle_hands_out_nothing_of_its_batch() {
    let folder = TempFolder::new("middle");
    let mut store = create(&folder.0);
    store.put("a", &mut &Random(8).bytes(900)[..], false).unwrap();
    let file = files(&folder.0.join("data")).remove(0);
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
