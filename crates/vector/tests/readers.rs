//! Readers beside a writer, folders with unexpected content, and write-protected media.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::support::{Random, TempFolder, ids, runtime};
use panoply_vector::{Collection, Error, IndexOptions, Metric, Options, Schema, SearchOptions};
use serde_json::{Value, json};

fn read(folder: &TempFolder) -> Result<Collection, Error> {
    Collection::open_read_only(runtime(), &folder.0, Options::default())
}

#[test]
fn readers_see_what_was_acknowledged_and_change_nothing() {
    let (folder, copy) = (TempFolder::new("readers"), TempFolder::new("readers"));
    let schema = Schema::new("readers", 4, Metric::Euclidean);
    let writer = Collection::create(runtime(), &folder.0, schema, Options::default()).unwrap();
    writer.insert_many(&ids(0..50), &Random(1).vectors(50, 4), &[]).unwrap();
    let (first, second) = (read(&folder).unwrap(), read(&folder).unwrap());
    writer.insert("new", &[9.0; 4], json!({ "n": 1 })).unwrap();
    writer.remove("v0").unwrap();
    assert_eq!((first.len(), second.len()), (50, 50));
    first.refresh().unwrap();
    assert_eq!(first.search(&[9.0; 4], &SearchOptions::new(1)).unwrap().hits[0].id, "new");
    assert!(first.get("v0").unwrap().is_none() && second.get("v0").unwrap().is_some());
    assert_eq!((first.len(), read(&folder).unwrap().len(), first.fields()), (50, 50, vec!["n".to_owned()]));
    for refused in [
        first.insert("x", &[1.0; 4], Value::Null),
        first.remove("v1").map(drop),
        first.clear(),
        first.update("v1", None, Some(json!({}))),
        first.compact().map(drop),
        first.build_index(&IndexOptions::default()).map(drop),
        first.reserve(10),
        first.remove_where(&panoply_vector::Filter::parse("n = 1").unwrap()).map(drop),
    ] {
        assert!(matches!(refused, Err(Error::ReadOnly { .. })), "{refused:?}");
    }
    first.flush().unwrap();
    first.verify().unwrap();
    first.snapshot(&copy.0).unwrap();
    assert_eq!(read(&copy).unwrap().len(), 50);
    // An open reader keeps its state while the writer replaces every file.
    writer.compact().unwrap();
    writer.build_index(&IndexOptions { lists: Some(3), ..IndexOptions::default() }).unwrap();
    writer.clear().unwrap();
    assert_eq!(second.search(&[0.0; 4], &SearchOptions::new(100)).unwrap().hits.len(), 50);
    second.refresh().unwrap();
    assert!(second.is_empty());
}

/// One process searches while another imports: each reader sees whole batches, and never fewer than
/// were acknowledged.
#[test]
fn readers_that_open_during_writes_have_whole_batches() {
    let folder = TempFolder::new("during");
    let schema = Schema::new("during", 16, Metric::Dot);
    let options = Options { segment_bytes_max: 64 * 300, ..Options::default() };
    let writer = Collection::create(runtime(), &folder.0, schema, options).unwrap();
    let (acknowledged, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for batch in 0..150 {
                writer.insert_many(&ids(batch * 10..batch * 10 + 10), &Random(1).vectors(10, 16), &[]).unwrap();
                acknowledged.fetch_add(10, Ordering::SeqCst);
                if batch % 40 == 39 {
                    writer.compact().unwrap();
                }
            }
            done.store(true, Ordering::SeqCst);
        });
        let mut opened = 0;
        while !done.load(Ordering::SeqCst) || opened < 5 {
            let before = acknowledged.load(Ordering::SeqCst);
            let reader = read(&folder).unwrap();
            let after = acknowledged.load(Ordering::SeqCst);
            assert!((before..=after + 10).contains(&reader.len()), "{before} {} {after}", reader.len());
            assert!(reader.len().is_multiple_of(10));
            reader.verify().unwrap();
            opened += 1;
        }
    });
}

#[cfg(unix)]
#[test]
fn a_folder_without_a_lock_on_media_that_cannot_be_written_to_is_searched() {
    use std::os::unix::fs::PermissionsExt;
    let folder = TempFolder::new("media");
    let schema = Schema::new("media", 4, Metric::Dot);
    let writer = Collection::create(runtime(), &folder.0, schema, Options::default()).unwrap();
    writer.insert_many(&ids(0..20), &Random(1).vectors(20, 4), &[]).unwrap();
    drop(writer);
    fs::remove_file(folder.0.join("LOCK")).unwrap();
    let allow = |mode: u32| {
        for entry in fs::read_dir(&folder.0).unwrap() {
            fs::set_permissions(entry.unwrap().path(), fs::Permissions::from_mode(mode & 0o666)).unwrap();
        }
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(mode)).unwrap();
    };
    let before: Vec<_> = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    allow(0o555);
    let reader = read(&folder).unwrap();
    assert_eq!(reader.search(&[1.0; 4], &SearchOptions::new(3)).unwrap().hits.len(), 3);
    drop(reader);
    // A dry repair needs no more than that, unless this user may write everywhere and therefore
    // creates the lock.
    if fs::File::create(folder.0.join("probe")).is_err() {
        assert_eq!(Collection::repair(&folder.0, false).unwrap().findings.len(), 0);
    } else {
        fs::remove_file(folder.0.join("probe")).unwrap();
    }
    allow(0o755);
    let after: Vec<_> = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(before, after, "a reader leaves nothing behind");
}

/// Regression: opening a foreign folder cut and zeroed the files that its links pointed to, even if
/// opening failed afterwards.
#[cfg(unix)]
#[test]
fn links_are_not_followed_and_what_they_lead_to_stays() {
    use std::os::unix::fs::symlink;
    let (folder, precious) = (TempFolder::new("links"), TempFolder::new("links"));
    fs::create_dir_all(&precious.0).unwrap();
    let schema = Schema::new("links", 4, Metric::Dot);
    let writer = Collection::create(runtime(), &folder.0, schema, Options::default()).unwrap();
    writer.insert_many(&ids(0..20), &Random(1).vectors(20, 4), &[]).unwrap();
    writer.build_index(&IndexOptions { lists: Some(2), ..IndexOptions::default() }).unwrap();
    drop(writer);
    let names: Vec<_> = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(names.len() >= 7, "{names:?}");
    for name in names {
        let (path, target) = (folder.0.join(&name), precious.0.join(&name));
        fs::rename(&path, &target).unwrap();
        let content = fs::read(&target).unwrap();
        symlink(&target, &path).unwrap();
        if name != "LOCK" {
            assert!(matches!(read(&folder), Err(Error::NotAFile { path: named }) if named == path), "{name:?}");
        }
        let opened = Collection::open(runtime(), &folder.0, Options::default());
        assert!(matches!(opened, Err(Error::NotAFile { path: named }) if named == path), "{name:?}");
        assert_eq!(fs::read(&target).unwrap(), content, "{name:?}");
        // Opening a pipe would wait for its other end.
        fs::remove_file(&path).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let opened = Collection::open(runtime(), &folder.0, Options::default());
        assert!(matches!(opened, Err(Error::NotAFile { .. })), "{name:?}: {:?}", opened.err());
        fs::remove_file(&path).unwrap();
        fs::rename(&target, &path).unwrap();
    }
    // A link at the path of the new manifest is not followed.
    let target = precious.0.join("notes");
    fs::write(&target, "precious").unwrap();
    symlink(&target, folder.0.join("MANIFEST.new")).unwrap();
    let writer = Collection::open(runtime(), &folder.0, Options::default()).unwrap();
    symlink(&target, folder.0.join("MANIFEST.new")).unwrap();
    writer.clear().unwrap();
    drop(writer);
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
    assert!(Collection::open(runtime(), &folder.0, Options::default()).unwrap().is_empty());
}

/// Nothing is cut, created or deleted before everything was found sound.
#[test]
fn a_collection_that_cannot_be_opened_is_left_as_it_is() {
    let folder = TempFolder::new("left-alone");
    let schema = Schema::new("left-alone", 4, Metric::Dot);
    let options = Options { segment_bytes_max: 16 * 15, ..Options::default() };
    let writer = Collection::create(runtime(), &folder.0, schema, options).unwrap();
    for first in (0..40).step_by(10) {
        writer.insert_many(&ids(first..first + 10), &Random(1).vectors(10, 4), &[]).unwrap();
    }
    drop(writer);
    fs::write(folder.0.join("segment-000099.rows"), "left over").unwrap();
    let logs: Vec<_> = fs::read_dir(&folder.0)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "log"))
        .collect();
    let last = logs.iter().max().unwrap();
    let mut log = fs::read(last).unwrap();
    log[40] ^= 1;
    fs::write(last, &log).unwrap();
    let all = || {
        let mut all: Vec<_> = fs::read_dir(&folder.0)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .map(|path| (fs::read(&path).unwrap(), path))
            .collect();
        all.sort();
        all
    };
    let before = all();
    assert!(matches!(Collection::open(runtime(), &folder.0, Options::default()), Err(Error::Corrupt { .. })));
    assert!(all() == before);
}

/// Regression: an empty collection took over its rows file with any content, so a hard link to a
/// foreign file was overwritten.
#[test]
#[cfg(unix)]
fn a_file_with_another_name_is_not_written_to() {
    let folder = TempFolder::new("hard-links");
    let schema = Schema::new("links", 2, Metric::Dot);
    drop(Collection::create(runtime(), &folder.0, schema, Options::default()).unwrap());
    let precious = TempFolder::new("precious");
    std::fs::write(&precious.0, vec![7; 100_000]).unwrap();
    let rows = folder.0.join("segment-000000.rows");
    std::fs::remove_file(&rows).unwrap();
    std::fs::hard_link(&precious.0, &rows).unwrap();
    let refused = Collection::open(runtime(), &folder.0, Options::default());
    assert!(matches!(refused.err(), Some(Error::SharedFile { names: 2, .. })));
    assert!(matches!(Collection::repair(&folder.0, true), Err(Error::SharedFile { .. })));
    assert!(Collection::open_read_only(runtime(), &folder.0, Options::default()).unwrap().is_empty());
    assert_eq!(std::fs::read(&precious.0).unwrap(), vec![7; 100_000]);
    std::fs::remove_file(&precious.0).unwrap();
    Collection::open(runtime(), &folder.0, Options::default()).unwrap().insert("a", &[1.0, 2.0], Value::Null).unwrap();
}

/// Regression: a reader left out a complete write that no mark followed, as after a kill in the
/// middle of it, and the next writer kept it. A writer also has to mark it: the next mark of a
/// small write said that all rows before it had reached the disk.
#[test]
fn a_write_that_a_crash_interrupted_is_settled_by_whoever_opens_first() {
    const RECORD_MARK: &[u8] = b"GLVZ";
    let (folder, crashed) = (TempFolder::new("settled"), TempFolder::new("settled"));
    let schema = Schema::new("settled", 64, Metric::Dot);
    let writer = Collection::create(runtime(), &folder.0, schema, Options::default()).unwrap();
    writer.insert_many(&ids(0..10), &Random(1).vectors(10, 64), &[]).unwrap();
    // Too large to have its rows in the log as well.
    writer.insert_many(&ids(10..2010), &Random(2).vectors(2000, 64), &[]).unwrap();
    let copy = |from: &TempFolder, to: &TempFolder| {
        let _ = fs::remove_dir_all(&to.0);
        fs::create_dir_all(&to.0).unwrap();
        for entry in fs::read_dir(&from.0).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, to.0.join(path.file_name().unwrap())).unwrap();
        }
    };
    copy(&folder, &crashed);
    let log = crashed.0.join("segment-000000.log");
    let marks = |log: &[u8]| log.windows(4).filter(|four| *four == RECORD_MARK).count();
    let mut bytes = fs::read(&log).unwrap();
    let last = bytes.windows(4).rposition(|four| four == RECORD_MARK).unwrap();
    bytes[last - 12..].fill(0);
    fs::write(&log, &bytes).unwrap();
    assert_eq!(marks(&bytes), 3, "two writes, and the mark of the first");
    assert_eq!(read(&crashed).unwrap().len(), 2010);
    assert_eq!(fs::read(&log).unwrap(), bytes, "a reader changes nothing");
    let next = Collection::open(runtime(), &crashed.0, Options::default()).unwrap();
    assert_eq!((next.len(), read(&crashed).unwrap().len()), (2010, 2010));
    assert_eq!(marks(&fs::read(&log).unwrap()), 4, "the writer has marked the write");
}
