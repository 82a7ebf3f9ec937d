//! A HEAD of an earlier time alone: the log goes on behind it, and no commit of the log is lost.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Random, TempFolder, copy, create, files, is_intact, key, open, options, read, runtime};
use panoply_store::{Error, MasterKey, Options, Repair, RepairOptions, Store};

const LOOK: RepairOptions = RepairOptions { apply: false, new_anchor: false };
const APPLY: RepairOptions = RepairOptions { apply: true, new_anchor: false };
const ANCHOR: RepairOptions = RepairOptions { apply: true, new_anchor: true };

type Contents = BTreeMap<String, Vec<u8>>;

fn contents(store: &Store) -> Contents {
    assert!(is_intact(store));
    store.entries().map(|entry| (entry.name.clone(), read(store, &entry.name).unwrap())).collect()
}

fn reader(folder: &Path) -> panoply_store::Result<Store> {
    Store::open_read_only(runtime(), folder, &key(1), options())
}

fn repair(folder: &Path, key: &MasterKey, wanted: RepairOptions) -> panoply_store::Result<Repair> {
    Store::repair(runtime(), folder, key, &options(), wanted)
}

fn logs(folder: &Path) -> Vec<PathBuf> {
    files(folder).into_iter().filter(|file| file.to_string_lossy().contains("catalog-")).collect()
}

fn says_so(errors: &[Error], newest: u64, generation: u64) -> bool {
    let is_it = |error: &Error| matches!(error, Error::OlderHead { expected, got, .. } if (*expected, *got) == (newest, generation));
    errors.iter().any(is_it)
}

/// Makes changes of every kind. Returns the head after each change, in order, and the final
/// contents.
fn changed(folder: &Path) -> (Vec<Vec<u8>>, Contents) {
    let mut random = Random(9);
    let mut store = create(folder);
    let mut heads = Vec::new();
    let mut note = |_: &mut Store| heads.push(fs::read(folder.join("HEAD")).unwrap());
    store.put("a", &mut &random.bytes(500)[..], false).unwrap();
    note(&mut store);
    store.put("b", &mut &random.bytes(1900)[..], false).unwrap();
    note(&mut store);
    store.append("a", &mut &random.bytes(300)[..]).unwrap();
    note(&mut store);
    store.put("b", &mut &random.bytes(70)[..], true).unwrap();
    note(&mut store);
    store.remove("a").unwrap();
    note(&mut store);
    store.put("c", &mut &random.bytes(10)[..], false).unwrap();
    note(&mut store);
    (heads, contents(&store))
}

#[test]
fn a_store_with_an_older_head_has_its_newest_commit() {
    let (folder, work) = (TempFolder::new("older"), TempFolder::new("older-work"));
    let (heads, expected) = changed(&folder.0);
    let newest = heads.len() as u64 + 1;
    for (number, head) in heads.iter().enumerate() {
        let generation = number as u64 + 2;
        let is_told = newest > generation + 1;
        let again = || {
            copy(&folder.0, &work.0);
            fs::write(work.0.join("HEAD"), head).unwrap();
        };
        again();
        let before = files(&work.0);
        let store = reader(&work.0).unwrap();
        assert!(contents(&store) == expected && store.generation() == newest, "head {number}");
        assert_eq!(says_so(store.damaged_copies(), newest, generation), is_told, "{:?}", store.damaged_copies());
        drop(store);
        assert!(files(&work.0) == before && fs::read(work.0.join("HEAD")).unwrap() == *head);
        let mut store = open(&work.0).unwrap();
        assert!(contents(&store) == expected, "head {number}");
        assert_eq!(says_so(store.damaged_copies(), newest, generation), is_told);
        store.put("d", &mut &b"d"[..], false).unwrap();
        drop(store);
        let store = open(&work.0).unwrap();
        assert!(store.damaged_copies().is_empty() && store.entries().count() == expected.len() + 1);
        drop(store);
        for wanted in [APPLY, ANCHOR] {
            again();
            let looked = repair(&work.0, &key(1), LOOK).unwrap();
            assert_eq!(says_so(&looked.findings, newest, generation), is_told, "{looked:?}");
            assert_eq!((looked.objects, looked.lost.len(), looked.files_aside), (expected.len() as u64, 0, 0));
            let applied = repair(&work.0, &key(1), wanted).unwrap();
            assert_eq!((applied.applied, applied.lost.len(), applied.files_aside), (is_told, 0, 0), "{applied:?}");
            let store = open(&work.0).unwrap();
            assert!(contents(&store) == expected && store.damaged_copies().is_empty(), "head {number}");
        }
    }
}

/// The anchor remembers the newest commit: it is satisfied as soon as the store has that again.
#[test]
fn an_anchor_that_remembers_the_newest_commit_is_satisfied() {
    let (folder, anchor) = (TempFolder::new("older-anchor"), TempFolder::new("older-anchor-file"));
    let (heads, expected) = changed(&folder.0);
    let anchored = || Options { anchor: Some(anchor.0.clone()), ..options() };
    drop(Store::open(runtime(), &folder.0, &key(1), anchored()).unwrap());
    let remembered = fs::read(&anchor.0).unwrap();
    fs::write(folder.0.join("HEAD"), &heads[0]).unwrap();
    let report = Store::repair(runtime(), &folder.0, &key(1), &anchored(), LOOK).unwrap();
    assert_eq!(report.is_anchored, Some(true), "{report:?}");
    assert!(contents(&Store::open(runtime(), &folder.0, &key(1), anchored()).unwrap()) == expected);
    assert_eq!(fs::read(&anchor.0).unwrap(), remembered);
    fs::remove_file(&anchor.0).unwrap();
}

/// The log was written again after the older head: that head names files that are gone, or that
/// were put back with it.
#[test]
fn a_log_that_goes_on_in_other_files_is_found() {
    for (way, puts_logs_back) in [(0, false), (0, true), (1, false), (2, false)] {
        let (folder, old) = (TempFolder::new("older-log"), TempFolder::new("older-log-old"));
        let (_, mut expected) = changed(&folder.0);
        copy(&folder.0, &old.0);
        let mut store = match way {
            0 => {
                fs::remove_file(&logs(&folder.0)[1]).unwrap();
                open(&folder.0).unwrap()
            }
            _ => open(&folder.0).unwrap(),
        };
        if way > 0 {
            store.rotate(&key(way)).unwrap();
        }
        store.put("later", &mut &b"later"[..], false).unwrap();
        store.append("later", &mut &b" and later"[..]).unwrap();
        expected.insert("later".to_owned(), b"later and later".to_vec());
        drop(store);
        fs::copy(old.0.join("HEAD"), folder.0.join("HEAD")).unwrap();
        if puts_logs_back {
            for log in logs(&old.0) {
                fs::copy(&log, folder.0.join(log.file_name().unwrap())).unwrap();
            }
        }
        let what = format!("way {way}, logs put back: {puts_logs_back}");
        let before = files(&folder.0);
        let refused = open(&folder.0).map(|_| ()).unwrap_err();
        assert!(matches!(refused, Error::OlderHead { .. } | Error::Damaged { .. }), "{what}: {refused}");
        assert!(way > 0 || matches!(refused, Error::OlderHead { .. }), "{what}: {refused}");
        assert_eq!(files(&folder.0), before, "{what}: nothing has changed");
        let newest_key = key(way.max(1));
        if way == 2 {
            let refused = repair(&folder.0, &key(1), APPLY).map(|_| ());
            assert!(matches!(refused, Err(Error::WrongKey { .. })), "the key before: {refused:?}");
            assert_eq!(files(&folder.0), before);
        }
        let applied = repair(&folder.0, &newest_key, APPLY).unwrap();
        assert!(applied.applied && applied.lost.is_empty() && applied.files_aside == 0, "{what}: {applied:?}");
        let store = Store::open(runtime(), &folder.0, &newest_key, options()).unwrap();
        assert!(contents(&store) == expected && store.damaged_copies().is_empty(), "{what}: {applied:?}");
    }
}
