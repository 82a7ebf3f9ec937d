//! A full disk is a typed error: nothing that was acknowledged is lost, and there is room again once something is removed.
//!
//! The test starts itself as another process: on a file system of two megabytes in a mount namespace of its own, where the system lets
//! it, and with a limit on the length of files.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use panoply_store::{Error, Options, Store};
use support::{Random, TempFolder, files, is_intact, key, open, read, runtime};

const FOLDER: &str = "PANOPLY_STORE_FULL_FOLDER";
const LEN: &str = "PANOPLY_STORE_FULL_LEN";
const CHILD: &str = "fill_until_it_is_full";

/// The other process: puts objects until there is no room, and looks at everything.
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
            // Removing needs little room, and gives some back; where there is none for that either, nothing changes.
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
    assert_eq!(files(folder).len(), 3 + extents, "nothing is left of what had no room");
    drop(store);
    expect_all(&open(folder).unwrap());
    println!("the child has looked at {} objects", model.len());
}

fn expect_child(output: Output) {
    let printed = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && printed.contains("the child has looked at"), "{printed}");
}

fn child(script: &str, folder: &Path, len: usize) -> Command {
    let mut command = Command::new("sh");
    let program = std::env::current_exe().unwrap();
    command.args(["-c", script, "sh"]).arg(program).args([CHILD, "--exact", "--nocapture"]);
    command.env(FOLDER, folder).env(LEN, len.to_string());
    command
}

#[test]
fn a_full_file_system_loses_nothing() {
    let folder = TempFolder::new("full");
    std::fs::create_dir(&folder.0).unwrap();
    let mount = format!("mount -t tmpfs -o size=2m none {}", folder.0.display());
    let tried = Command::new("unshare").args(["-m", "sh", "-c", &mount]).output();
    match tried {
        Ok(output) if output.status.success() => {}
        other => {
            println!("skipped: no file system can be mounted in a namespace of its own: {other:?}");
            return;
        }
    }
    let script = format!("exec unshare -m sh -c '{mount} && exec \"$@\"' sh \"$@\"");
    expect_child(child(&script, &folder.0.join("store"), 60_000).output().unwrap());
}

#[test]
fn a_limit_on_files_loses_nothing() {
    let folder = TempFolder::new("limit");
    // The limit counts blocks of 512 or 1024 bytes; the signal that comes with it is ignored.
    let script = "trap '' XFSZ; ulimit -f 40; exec \"$@\"";
    expect_child(child(script, &folder.0, 40_000).output().unwrap());
}
