//! The lock of a collection: one writer at a time, even if the lock's file is removed or replaced.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod support;

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;

use panoply_vector::{Collection, Error, Metric, Options, Schema};
use serde_json::json;
use support::{Random, TempFolder, ids, runtime};

fn create(path: &Path) -> Collection {
    let collection = Collection::create(runtime(), path, Schema::new("lock", 8, Metric::Dot), Options::default());
    let collection = collection.unwrap();
    collection.insert_many(&ids(0..20), &Random(1).vectors(20, 8), &[]).unwrap();
    collection
}

fn open(path: &Path) -> Result<Collection, Error> {
    Collection::open(runtime(), path, Options::default())
}

/// LOCK alone was locked: deleted, it let a second writer in beside the first.
#[test]
fn deleting_or_replacing_lock_lets_nobody_in() {
    let folder = TempFolder::new("lock");
    let first = create(&folder.0);
    let lock = folder.0.join("LOCK");
    let replace: [&dyn Fn(); 4] =
        [&|| (), &|| fs::write(&lock, "").unwrap(), &|| symlink("/dev/null", &lock).unwrap(), &|| {
            fs::create_dir(&lock).unwrap()
        }];
    for (number, replace) in replace.into_iter().enumerate() {
        let _ = fs::remove_file(&lock).or_else(|_| fs::remove_dir(&lock));
        replace();
        let is_out = |error: Error| matches!(error, Error::InUse { .. } | Error::NotAFile { .. });
        assert!(is_out(open(&folder.0).err().unwrap()), "{number}: opened");
        assert!(is_out(Collection::destroy(&folder.0).unwrap_err()), "{number}: deleted");
        assert!(is_out(Collection::repair(&folder.0, true).unwrap_err()), "{number}: repaired");
        first.insert(&format!("more{number}"), &[1.0; 8], json!({})).unwrap();
    }
    drop(first);
    fs::remove_dir(&lock).unwrap();
    let again = open(&folder.0).unwrap();
    again.verify().unwrap();
    assert_eq!(again.len(), 24);
}

/// On a network file system the lock of a folder may hold on one host only. Here a writer on
/// another host has locked LOCK and the log.
#[test]
fn a_lock_of_another_host_is_heeded() {
    let folder = TempFolder::new("lock-host");
    drop(create(&folder.0));
    let log = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().path());
    let log = log.filter(|path| path.extension().is_some_and(|end| end == "log")).max().unwrap();
    let unfinished = folder.0.join("segment-999999.rows");
    fs::write(&unfinished, "unfinished").unwrap();
    for path in [folder.0.join("LOCK"), log] {
        let held = File::options().read(true).write(true).open(&path).unwrap();
        held.lock().unwrap();
        assert!(matches!(open(&folder.0), Err(Error::InUse { .. })), "{}", path.display());
        assert!(matches!(Collection::repair(&folder.0, true), Err(Error::InUse { .. })), "{}", path.display());
        assert!(matches!(Collection::destroy(&folder.0), Err(Error::InUse { .. })), "{}", path.display());
        assert!(unfinished.exists());
        held.unlock().unwrap();
        let _ = fs::remove_file(folder.0.join("LOCK"));
    }
    assert_eq!(open(&folder.0).unwrap().len(), 20);
    assert!(!unfinished.exists());
}

/// A write to a deleted file is lost, so it must not be acknowledged.
#[test]
fn a_log_that_was_deleted_or_replaced_takes_no_changes() {
    for replaced in [false, true] {
        let folder = TempFolder::new("lock-log");
        let collection = create(&folder.0);
        let log = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().path());
        let log = log.filter(|path| path.extension().is_some_and(|end| end == "log")).max().unwrap();
        let bytes = fs::read(&log).unwrap();
        fs::remove_file(&log).unwrap();
        if replaced {
            fs::write(&log, &bytes).unwrap();
        }
        let answer = collection.insert("one", &[1.0; 8], json!({}));
        assert!(matches!(answer, Err(Error::Moved { .. })), "{answer:?}");
        drop(collection);
        if replaced {
            assert_eq!(open(&folder.0).unwrap().len(), 20);
        }
    }
}

/// Regression: a forked child has the parent's files open, and kept the collection locked as long
/// as it lived.
#[test]
#[allow(unsafe_code)]
fn a_child_does_not_keep_what_its_parent_has_closed() {
    let folder = TempFolder::new("lock-child");
    let collection = create(&folder.0);
    // SAFETY: the child calls nothing but `pause`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: it has no arguments.
            unsafe { libc::pause() };
        }
    }
    drop(collection);
    let opened = open(&folder.0).map(|_| ());
    // SAFETY: the child is ours, and ends here.
    unsafe { libc::kill(child, libc::SIGKILL) };
    // SAFETY: the same child; its status is not asked for.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    opened.unwrap();
}
