//! A full disk is a typed error: no acknowledged change is lost, and removing an object frees
//! space.
//!
//! The test starts itself as another process: on a file system of two megabytes in a mount
//! namespace of its own, if the system permits it, and with a limit on file lengths.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::{Random, TempFolder, files, is_intact, key, open, read, runtime};
use panoply_store::{Error, Options, Store};

const FOLDER: &str = "PANOPLY_STORE_FULL_FOLDER";
const LEN: &str = "PANOPLY_STORE_FULL_LEN";
const CHILD: &str = "fill_until_it_is_full";

/// Fills a file system to its last block with an unrelated file.
fn fill(file: &Path) {
    let mut filler = std::fs::File::options().append(true).create(true).open(file).unwrap();
    for piece in [4096, 512, 1] {
        while filler.write_all(&vec![7; piece]).is_ok() {}
    }
}

/// Child process: a disk without a free block is emptied, although another file takes all space
/// that becomes free.
#[test]
fn empty_a_disk_without_a_free_block() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let folder = Path::new(&folder);
    let filler = folder.with_file_name("filler");
    let mut store = open_or_create(folder);
    let mut random = Random(9);
    // Objects of one block free less space than their removal takes; they are removed with the
    // space of the reserve.
    let names: Vec<String> = (0..40).map(|number| format!("o{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        store.put(name, &mut &random.bytes(if number % 2 == 0 { 300 } else { 20_000 })[..], false).unwrap();
    }
    fill(&filler);
    let put = store.put("more", &mut &random.bytes(10_000)[..], false);
    assert!(matches!(put, Err(Error::DiskFull { .. })), "{put:?}");
    for (number, name) in names.iter().enumerate() {
        store.remove(name).unwrap_or_else(|error| panic!("{number} removed, then: {error}"));
        fill(&filler);
        if number % 7 == 0 {
            drop(store);
            // A damaged copy is rewritten once there is space, and does not prevent freeing space.
            damage_copies(folder);
            store = open_or_create(folder);
            assert!(store.damaged_copies().len() >= 3, "{:?}", store.damaged_copies());
        }
    }
    assert!(is_intact(&store) && store.entries().count() == 0);
    std::fs::remove_file(&filler).unwrap();
    store.put("more", &mut &random.bytes(10_000)[..], false).unwrap();
    drop(store);
    assert_eq!(open_or_create(folder).entries().count(), 1);
    assert_eq!(std::fs::metadata(folder.join("RESERVE")).unwrap().len(), 128 << 10, "it is whole again");
    println!("the child has looked at {} objects", names.len());
}

/// Alters a byte of one copy of head, log and root keys, in place; never back to its original
/// value.
fn damage_copies(folder: &Path) {
    for file in files(folder) {
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        if name == "HEAD" || name == "KEYS" || name.ends_with(".copy") {
            let mut bytes = std::fs::read(&file).unwrap();
            bytes[60] = bytes[60].wrapping_add(1);
            let mut written = std::fs::File::options().write(true).open(&file).unwrap();
            written.write_all(&bytes).unwrap();
        }
    }
}

fn open_or_create(folder: &Path) -> Store {
    match folder.join("HEAD").exists() {
        true => open(folder).unwrap(),
        false => Store::create(runtime(), folder, &key(1), Options { level: None, ..Options::default() }).unwrap(),
    }
}

/// Child process: puts objects until there is no space, and checks everything.
#[test]
fn fill_until_it_is_full() {
    let (Ok(folder), Ok(len)) = (std::env::var(FOLDER), std::env::var(LEN)) else { return };
    let (folder, len) = (Path::new(&folder), len.parse::<usize>().unwrap());
    let options = || Options { level: None, chunk_bytes: 4 << 10, ..Options::default() };
    let mut store = Store::create(runtime(), folder, &key(1), options()).unwrap();
    let (mut random, mut model) = (Random(4), BTreeMap::new());
    let (mut refused, mut number) = (0, 0);
    while refused < 60 {
        number += 1;
        let some = len / 4 + random.below(len as u64) as usize;
        let (name, content) = (format!("o{number}"), random.bytes(some));
        match store.put(&name, &mut &content[..], false) {
            Ok(_) => {
                model.insert(name, content);
                continue;
            }
            Err(Error::DiskFull { .. }) => {
                refused += 1;
                assert!(store.get(&name).is_none());
            }
            Err(other) => panic!("{other:?}"),
        }
        if refused % 10 == 0 && !model.is_empty() {
            // Removing needs little space and frees some; if there is none even for that, nothing
            // changes.
            let name = model.keys().next().unwrap().clone();
            match store.remove(&name) {
                Ok(()) => drop(model.remove(&name)),
                Err(error) => assert!(matches!(error, Error::DiskFull { .. }), "{error:?}"),
            }
            match store.append("o1", &mut &random.bytes(len)[..]) {
                Err(Error::DiskFull { .. } | Error::NoObject { .. }) => {}
                appended => {
                    appended.unwrap();
                    model.insert("o1".to_owned(), read(&store, "o1").unwrap());
                }
            }
        }
    }
    assert!(model.len() > 3, "{} objects", model.len());
    let expect_all = |store: &Store| {
        assert!(is_intact(store));
        let found: BTreeMap<String, Vec<u8>> =
            store.entries().map(|entry| (entry.name.clone(), read(store, &entry.name).unwrap())).collect();
        assert!(found == model, "{} objects, {} expected", found.len(), model.len());
    };
    expect_all(&store);
    let extents: usize = store.entries().map(|entry| entry.extents).sum();
    assert_eq!(files(folder).len(), 4 + extents, "nothing is left of what had no room");
    drop(store);
    expect_all(&open(folder).unwrap());
    println!("the child has looked at {} objects", model.len());
}

fn expect_child(output: Output) {
    let printed = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && printed.contains("the child has looked at"), "{printed}");
}

fn child(name: &str, script: &str, folder: &Path, len: usize) -> Command {
    let mut command = Command::new("sh");
    let program = std::env::current_exe().unwrap();
    command.args(["-c", script, "sh"]).arg(program).args([&format!("full_disk::{name}"), "--exact", "--nocapture"]);
    command.env(FOLDER, folder).env(LEN, len.to_string());
    command
}

#[test]
fn a_full_file_system_loses_nothing() {
    on_small_file_system(CHILD);
}

#[test]
fn a_file_system_without_a_free_block_can_be_emptied() {
    on_small_file_system("empty_a_disk_without_a_free_block");
}

fn on_small_file_system(name: &str) {
    let folder = TempFolder::new(name);
    std::fs::create_dir(&folder.0).unwrap();
    let mount = format!("mount -t tmpfs -o size=2m none {}", folder.0.display());
    let tried = Command::new("unshare").args(["-m", "sh", "-c", &mount]).output();
    match tried {
        Ok(output) if output.status.success() => {}
        other => {
            // Written to the handle directly: output of a passing test is captured.
            let why = format!("skipped {name}: no file system can be mounted in a namespace of its own: {other:?}\n");
            std::io::stderr().write_all(why.as_bytes()).unwrap();
            return;
        }
    }
    let script = format!("exec unshare -m sh -c '{mount} && exec \"$@\"' sh \"$@\"");
    expect_child(child(name, &script, &folder.0.join("store"), 60_000).output().unwrap());
}

#[test]
fn a_limit_on_files_loses_nothing() {
    let folder = TempFolder::new("limit");
    // The limit counts blocks of 512 or 1024 bytes; the signal that comes with it is ignored.
    let script = "trap '' XFSZ; ulimit -f 40; exec \"$@\"";
    expect_child(child(CHILD, script, &folder.0, 40_000).output().unwrap());
}
