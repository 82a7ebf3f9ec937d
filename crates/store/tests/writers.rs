//! Two writers in spite of locks: a lost race harms only the loser.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use panoply_store::vault::Kind;
use panoply_store::{Error, PassphraseCost, RepairOptions, Store, Vault};
use support::{Random, TempFolder, copy, create, files, is_intact, key, open, options, read, runtime};

fn names(store: &Store) -> Vec<String> {
    store.entries().map(|entry| entry.name).collect()
}

/// Regression: when `LOCK` was the only lock, deleting it while a writer was in the middle of an
/// object admitted a second writer. The first then overwrote the record of the second, and nothing
/// opened any more.
#[test]
fn deleting_or_replacing_lock_lets_nobody_in() {
    let folder = TempFolder::new("writers-lock");
    let mut first = create(&folder.0);
    first.put("before", &mut &b"before"[..], false).unwrap();
    let mut batch = first.batch().unwrap();
    batch.put("first", &mut &Random(1).bytes(2500)[..], false).unwrap();
    let lock = folder.0.join("LOCK");
    let replace: [&dyn Fn(); 4] =
        [&|| (), &|| fs::write(&lock, "").unwrap(), &|| symlink("/dev/null", &lock).unwrap(), &|| {
            fs::create_dir(&lock).unwrap()
        }];
    for replace in replace {
        let _ = fs::remove_file(&lock).or_else(|_| fs::remove_dir(&lock));
        replace();
        assert!(matches!(open(&folder.0), Err(Error::InUse { .. })));
    }
    batch.commit().unwrap();
    drop(first);
    let store = open(&folder.0).unwrap();
    assert!(names(&store) == ["before", "first"] && is_intact(&store));
}

/// On a network file system the lock of a folder may hold on one host alone. A writer on another
/// host has locked `LOCK` and the log.
#[test]
fn a_lock_of_another_host_is_heeded() {
    let folder = TempFolder::new("writers-host");
    create(&folder.0).put("a", &mut &b"a"[..], false).unwrap();
    let lock = fs::File::options().read(true).write(true).open(folder.0.join("LOCK")).unwrap();
    lock.lock().unwrap();
    assert!(matches!(open(&folder.0), Err(Error::InUse { .. })), "a writer");
    let reader = || Store::open_read_only(runtime(), &folder.0, &key(1), options());
    assert!(matches!(reader(), Err(Error::InUse { .. })), "a reader");
    lock.unlock().unwrap();
    lock.lock_shared().unwrap();
    assert!(matches!(open(&folder.0), Err(Error::InUse { .. })), "a writer beside a reader");
    drop(reader().unwrap());
    lock.unlock().unwrap();
    // `LOCK` is deleted: the log is still locked, and its writer's unfinished file stays.
    fs::remove_file(folder.0.join("LOCK")).unwrap();
    let unfinished = folder.0.join("data").join("ab".repeat(32));
    fs::write(&unfinished, "unfinished").unwrap();
    for log in files(&folder.0).iter().filter(|file| file.to_string_lossy().contains("catalog-")) {
        let held = fs::File::options().read(true).write(true).open(log).unwrap();
        held.lock().unwrap();
        let opened = open(&folder.0);
        assert!(matches!(opened, Err(Error::InUse { .. })) && unfinished.exists(), "{opened:?}");
        let wanted = RepairOptions { apply: true, new_anchor: false };
        let repaired = Store::repair(runtime(), &folder.0, &key(1), &options(), wanted);
        assert!(matches!(repaired, Err(Error::InUse { .. })), "{repaired:?}");
        drop(held);
    }
    drop(open(&folder.0).unwrap());
    assert!(!unfinished.exists());
}

/// An extent that another writer has deleted as left over must not be acknowledged.
#[test]
fn an_extent_that_is_gone_is_not_committed() {
    let folder = TempFolder::new("writers-extent");
    let mut store = create(&folder.0);
    store.put("a", &mut &b"a"[..], false).unwrap();
    let before = files(&folder.0);
    let mut batch = store.batch().unwrap();
    batch.put("b", &mut &Random(1).bytes(2500)[..], false).unwrap();
    let written = files(&folder.0).into_iter().find(|file| !before.contains(file)).unwrap();
    fs::remove_file(written).unwrap();
    let committed = batch.commit();
    assert!(matches!(committed, Err(Error::Overtaken { .. })), "{committed:?}");
    drop(store);
    let store = open(&folder.0).unwrap();
    assert!(names(&store) == ["a"] && is_intact(&store));
}

/// Regression: a forked child has the parent's files open, and kept the store locked as long as it
/// lived.
#[test]
#[allow(unsafe_code)]
fn a_child_does_not_keep_what_its_parent_has_closed() {
    let folder = TempFolder::new("writers-child");
    let mut store = create(&folder.0);
    store.put("a", &mut &b"a"[..], false).unwrap();
    // SAFETY: the child calls nothing but `pause`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        loop {
            // SAFETY: `pause` has no arguments.
            unsafe { libc::pause() };
        }
    }
    drop(store);
    let opened = open(&folder.0).map(|_| ());
    // SAFETY: `child` is the process forked above.
    unsafe { libc::kill(child, libc::SIGKILL) };
    // SAFETY: the same child; the status pointer may be null.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
    opened.unwrap();
}

/// A process that may open the folder may lock it, and so block its owner.
#[test]
fn the_folder_of_a_store_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let folder = TempFolder::new("writers-mode");
    drop(create(&folder.0.join("above/store")));
    let mode = |path: &str| fs::metadata(folder.0.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("above/store"), mode("above/store/data")), (0o700, 0o700));
    assert_ne!(mode("above"), 0o700, "a folder above is like any other");
}

/// The files that a second writer would leave if no lock kept it out, as on a file system without
/// locks.
fn second_writer(folder: &Path, change: impl Fn(&mut Store)) -> TempFolder {
    let other = TempFolder::new("writers-second");
    copy(folder, &other.0);
    let mut store = open(&other.0).unwrap();
    change(&mut store);
    drop(store);
    other
}

/// Installs the files of the second writer: written into the existing files (same inodes), or
/// replacing them.
fn put_in_place(other: &Path, folder: &Path, in_place: bool) {
    for file in files(other) {
        let target = folder.join(file.strip_prefix(other).unwrap());
        if !in_place {
            let _ = fs::remove_file(&target);
        }
        fs::copy(&file, &target).unwrap();
    }
}

#[test]
fn a_writer_that_was_overtaken_changes_nothing() {
    fn put(store: &mut Store) {
        store.put("second", &mut &b"second"[..], false).unwrap();
    }
    fn rotate(store: &mut Store) {
        store.rotate(&key(1)).unwrap();
        put(store);
    }
    for (change, in_place) in [(put as fn(&mut Store), true), (put, false), (rotate, true)] {
        for way in 0..3 {
            let folder = TempFolder::new("writers-overtaken");
            let mut first = create(&folder.0);
            first.put("before", &mut &b"before"[..], false).unwrap();
            let other = second_writer(&folder.0, change);
            let failed = match way {
                0 => {
                    // In the middle of an object.
                    let mut batch = first.batch().unwrap();
                    batch.put("first", &mut &Random(1).bytes(2500)[..], false).unwrap();
                    put_in_place(&other.0, &folder.0, in_place);
                    batch.commit()
                }
                1 => {
                    put_in_place(&other.0, &folder.0, in_place);
                    first.remove("before")
                }
                _ => {
                    put_in_place(&other.0, &folder.0, in_place);
                    first.rotate(&key(2))
                }
            };
            assert!(matches!(failed, Err(Error::Overtaken { .. })), "{failed:?}");
            let undone =
                ["`first` was not stored", "`before` was not removed", "the key of the store was not changed"][way];
            let failed = failed.unwrap_err().to_string();
            let reason = failed.split("; open the store again").next().unwrap();
            assert!(reason.contains(undone) && reason.contains("the store is as the other writer left it"), "{failed}");
            assert!(reason.contains(folder.0.to_str().unwrap()) && reason.len() < failed.len(), "{failed}");
            let refused = first.put("again", &mut &b"again"[..], false);
            assert!(matches!(refused, Err(Error::WritesStopped { .. })), "{refused:?}");
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains(reason) && refused.matches("open the store again").count() == 1, "{refused}");
            drop(first);
            let store = open(&folder.0).unwrap();
            assert_eq!(names(&store), ["before", "second"], "in place {in_place}, way {way}");
            assert!(is_intact(&store) && read(&store, "second").unwrap() == b"second");
        }
    }
}

fn log(folder: &Path) -> PathBuf {
    files(folder).into_iter().find(|file| file.to_string_lossy().contains("catalog-")).unwrap()
}

/// A change that another program makes in a store's folder, and a name for it.
type Alteration = (&'static str, fn(&Path));

/// Each file of the current state is checked before anything is written.
#[test]
fn a_file_that_is_not_as_it_was_left_stops_the_writer() {
    let alter: [Alteration; 6] = [
        ("a longer log", |folder| {
            let log = log(folder);
            fs::write(&log, [fs::read(&log).unwrap(), vec![7]].concat()).unwrap();
        }),
        ("another file in the log's place", |folder| {
            let (log, bytes) = (log(folder), fs::read(log(folder)).unwrap());
            fs::remove_file(&log).unwrap();
            fs::write(&log, bytes).unwrap();
        }),
        ("a log that was deleted", |folder| fs::remove_file(log(folder)).unwrap()),
        ("another end of the log", |folder| {
            let (log, mut bytes) = (log(folder), fs::read(log(folder)).unwrap());
            *bytes.last_mut().unwrap() ^= 1;
            fs::write(&log, bytes).unwrap();
        }),
        ("a head that was deleted", |folder| fs::remove_file(folder.join("HEAD")).unwrap()),
        ("another head", |folder| fs::write(folder.join("HEAD"), "head").unwrap()),
    ];
    for (what, alter) in alter {
        let folder = TempFolder::new("writers-altered");
        let mut store = create(&folder.0);
        store.put("a", &mut &b"a"[..], false).unwrap();
        alter(&folder.0);
        let before: Vec<_> = files(&folder.0).iter().map(|file| fs::read(file).unwrap()).collect();
        let failed = store.put("b", &mut &b"b"[..], false);
        assert!(matches!(failed, Err(Error::Overtaken { .. })), "{what}: {failed:?}");
        drop(store);
        let after = files(&folder.0).into_iter().map(|file| fs::read(file).unwrap());
        assert!(before.iter().all(|bytes| after.clone().any(|other| other == *bytes)), "{what}");
    }
}

/// A reader needs no lock file, and makes none.
#[test]
fn readers_need_no_lock_file() {
    let folder = TempFolder::new("writers-reader");
    create(&folder.0).put("a", &mut &b"a"[..], false).unwrap();
    let _ = fs::remove_file(folder.0.join("LOCK"));
    let before = files(&folder.0);
    let reader = Store::open_read_only(runtime(), &folder.0, &key(1), options()).unwrap();
    assert!(read(&reader, "a").unwrap() == b"a" && files(&folder.0) == before);
}

/// Regression: a folder with the name of a store's file stopped writers, which wanted to delete it
/// as left over.
#[test]
fn folders_that_are_called_like_files_of_a_store_stop_nobody() {
    let folder = TempFolder::new("writers-folders");
    create(&folder.0).put("a", &mut &b"a"[..], false).unwrap();
    let names = [
        format!("data/{}", "ab".repeat(32)),
        format!("catalog-{}", "0c".repeat(16)),
        format!("catalog-{}.copy", "0d".repeat(16)),
        "HEAD.new".to_owned(),
    ];
    for name in &names {
        fs::create_dir(folder.0.join(name)).unwrap();
        fs::write(folder.0.join(name).join("letter"), "dear").unwrap();
    }
    let mut store = open(&folder.0).unwrap();
    store.put("b", &mut &b"b"[..], false).unwrap();
    store.rotate(&key(1)).unwrap();
    assert!(is_intact(&store) && names.iter().all(|name| folder.0.join(name).join("letter").exists()));
}

/// Parent and child of a fork would seal different texts under one nonce, and the child would
/// delete the parent's unfinished files.
#[test]
#[allow(unsafe_code)]
fn a_fork_writes_nothing() {
    let folder = TempFolder::new("writers-fork");
    let mut store = create(&folder.0);
    store.put("a", &mut &b"a"[..], false).unwrap();
    let mut batch = store.batch().unwrap();
    batch.put("b", &mut &Random(1).bytes(2500)[..], false).unwrap();
    let vault = Vault::create(runtime(), &key(1), PassphraseCost::default()).unwrap();
    let mut sealer = vault.sealer("file").unwrap();
    let before = files(&folder.0);
    // SAFETY: the child calls nothing but the functions under test, which take no lock that another
    // thread may have held, and `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let put = matches!(batch.put("c", &mut &b"c"[..], false), Err(Error::Forked { .. }));
        let committed = matches!(batch.commit(), Err(Error::Forked { .. }));
        let removed = matches!(store.remove("a"), Err(Error::Forked { .. }));
        let rotated = matches!(store.rotate(&key(2)), Err(Error::Forked { .. }));
        let sealed = matches!(sealer.seal(0, 0, Kind::Last, b"child"), Err(Error::Forked { .. }));
        // SAFETY: the child ends here, without running any code of its parent.
        unsafe { libc::_exit(i32::from(!(put && committed && removed && rotated && sealed))) };
    }
    let mut status = 0;
    // SAFETY: `status` points to an integer, and `child` is our child process.
    let ended = unsafe { libc::waitpid(child, &mut status, 0) };
    assert!(ended == child && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
    assert_eq!(files(&folder.0), before);
    sealer.seal(0, 0, Kind::Last, b"parent").unwrap();
    batch.commit().unwrap();
    drop(store);
    let store = open(&folder.0).unwrap();
    assert!(names(&store) == ["a", "b"] && is_intact(&store));
}
