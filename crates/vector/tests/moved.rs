//! Folders that are moved, deleted, replaced or made inaccessible while their collection is open,
//! and programs that change their current folder.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

mod support;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use panoply_vector::{Collection, Error, IndexOptions, Metric, Options, Schema, SearchOptions, Task};
use serde_json::json;
use support::{Random, TempFolder, ids, runtime};

/// Small segments, so that most writes create new files.
fn options() -> Options {
    Options { segment_bytes_max: 4096, ..Options::default() }
}

fn create(path: &Path, records: usize, seed: u64) -> Collection {
    let schema = Schema::new("moved", 8, Metric::Euclidean);
    let collection = Collection::create(runtime(), path, schema, options()).unwrap();
    for chunk in 0..records / 50 {
        let (ids, vectors) = (ids(chunk * 50..chunk * 50 + 50), Random(seed + chunk as u64).vectors(50, 8));
        collection.insert_many(&ids, &vectors, &[]).unwrap();
    }
    collection
}

/// Tries every operation that changes files. Each must be refused, while searches go on.
fn try_everything(collection: &Collection) {
    let vectors = Random(9).vectors(200, 8);
    let fresh: Vec<String> = (0..200).map(|number| format!("new{number}")).collect();
    let refused = [
        ("insert", collection.insert("one", &vectors[..8], json!({}))),
        ("insert_many", collection.insert_many(&fresh, &vectors, &[])),
        ("remove", collection.remove("v3").map(drop)),
        ("update", collection.update("v4", None, Some(json!({"a": 1})))),
        ("build_index", collection.build_index(&IndexOptions::default()).map(drop)),
        ("clear", collection.clear()),
        ("compact", collection.compact().map(drop)),
    ];
    for (what, answer) in refused {
        assert!(matches!(answer, Err(Error::Moved { .. })), "{what}: {answer:?}");
    }
    let found = collection.search(&vectors[..8], &SearchOptions::new(5)).unwrap();
    assert_eq!((found.hits.len(), collection.len()), (5, 200));
}

fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), std::fs::read(&path).unwrap())).collect()
}

#[test]
fn a_collection_whose_folder_was_deleted_acknowledges_nothing_and_makes_no_new_one() {
    let folder = TempFolder::new("deleted");
    let collection = create(&folder.0, 200, 1);
    collection.remove("v199").unwrap();
    collection.insert("v199", &[1.0; 8], json!({})).unwrap();
    std::fs::remove_dir_all(&folder.0).unwrap();
    try_everything(&collection);
    drop(collection);
    assert!(!folder.0.exists(), "nothing of it comes back");
}

#[test]
fn a_collection_in_the_place_of_one_that_was_moved_is_not_touched() {
    let (folder, elsewhere) = (TempFolder::new("place"), TempFolder::new("elsewhere"));
    let first = create(&folder.0, 200, 1);
    first.insert("last", &[1.0; 8], json!({})).unwrap();
    first.remove("last").unwrap();
    std::fs::rename(&folder.0, &elsewhere.0).unwrap();
    let second = create(&folder.0, 50, 2);
    let before = files(&folder.0);
    try_everything(&first);
    assert_eq!(files(&folder.0), before);
    drop(first);
    assert_eq!(files(&folder.0), before, "closing the other one changes nothing either");
    second.insert("mine", &[1.0; 8], json!({})).unwrap();
    drop(second);
    assert_eq!(Collection::open(runtime(), &folder.0, options()).unwrap().len(), 51);
    assert_eq!(Collection::open(runtime(), &elsewhere.0, options()).unwrap().len(), 200);
}

#[test]
fn a_folder_that_is_closed_to_everybody_refuses_writes_and_says_why() {
    use std::os::unix::fs::PermissionsExt;
    let folder = TempFolder::new("closed");
    let collection = create(&folder.0, 200, 1);
    let set = |mode| std::fs::set_permissions(&folder.0, std::fs::Permissions::from_mode(mode)).unwrap();
    set(0o000);
    if std::fs::read_dir(&folder.0).is_ok() {
        println!("skipped: this user may read everything");
        return set(0o700);
    }
    let denied = |error: &Error| error.to_string().contains("ermission denied");
    let error = collection.insert("one", &[1.0; 8], json!({})).unwrap_err();
    assert!(denied(&error), "{error}");
    for error in [
        Collection::open(runtime(), &folder.0, options()).err().unwrap(),
        Collection::open_read_only(runtime(), &folder.0, options()).err().unwrap(),
    ] {
        assert!(denied(&error), "{error}");
    }
    assert_eq!(collection.search(&[1.0; 8], &SearchOptions::new(5)).unwrap().hits.len(), 5);
    set(0o700);
    collection.insert("one", &[1.0; 8], json!({})).unwrap();
    drop(collection);
    assert_eq!(Collection::open(runtime(), &folder.0, options()).unwrap().len(), 201);
}

#[test]
fn a_program_may_change_its_current_folder() {
    let (above, other) = (TempFolder::new("above"), TempFolder::new("other"));
    std::fs::create_dir_all(&above.0).unwrap();
    std::fs::create_dir_all(&other.0).unwrap();
    std::env::set_current_dir(&above.0).unwrap();
    let collection = create(Path::new("here"), 100, 1);
    std::env::set_current_dir(&other.0).unwrap();
    collection.insert_many(&ids(100..200), &Random(3).vectors(100, 8), &[]).unwrap();
    collection.build_index(&IndexOptions::default()).unwrap();
    drop(collection);
    assert_eq!(std::fs::read_dir(&other.0).unwrap().count(), 0);
    assert_eq!(Collection::open(runtime(), above.0.join("here"), options()).unwrap().len(), 200);
    std::env::set_current_dir(std::env::temp_dir()).unwrap();
}

/// A waker that does not return until it is released.
#[derive(Default)]
struct Stuck {
    entered: AtomicUsize,
    open: AtomicBool,
}

impl Wake for Stuck {
    fn wake(self: Arc<Self>) {
        self.entered.fetch_add(1, Ordering::SeqCst);
        let start = Instant::now();
        while !self.open.load(Ordering::SeqCst) && start.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn awaited<T>(task: Task<T>, waker: &Waker) -> std::pin::Pin<Box<Task<T>>> {
    let mut task = Box::pin(task);
    let _ = task.as_mut().poll(&mut Context::from_waker(waker));
    task
}

#[test]
fn wakers_that_do_not_return_keep_neither_the_writer_nor_other_searches() {
    let folder = TempFolder::new("wakers");
    let collection = create(&folder.0, 200, 1);
    let stuck = Arc::new(Stuck::default());
    let waker = Waker::from(Arc::clone(&stuck));
    let start = Instant::now();
    let mut tasks = Vec::new();
    while stuck.entered.load(Ordering::SeqCst) < 2 {
        let id = format!("a{}", tasks.len());
        tasks.push(awaited(collection.insert_async(&id, &[1.0; 8], json!({})), &waker));
        let _search = awaited(collection.search_async(&[1.0; 8], &SearchOptions::new(1)), &waker);
        collection.insert(&format!("b{}", tasks.len()), &[2.0; 8], json!({})).unwrap();
        assert_eq!(collection.search(&[1.0; 8], &SearchOptions::new(3)).unwrap().hits.len(), 3);
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    collection.insert("after", &[3.0; 8], json!({})).unwrap();
    drop(collection);
    assert!(start.elapsed() < Duration::from_secs(10), "it was closed while a waker was stuck");
    stuck.open.store(true, Ordering::SeqCst);
}

#[test]
fn a_waker_may_drop_the_last_handle_of_its_collection() {
    struct Last(std::sync::Mutex<Option<Collection>>, AtomicBool);
    impl Wake for Last {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().unwrap().take());
            self.1.store(true, Ordering::SeqCst);
        }
    }
    for round in 0..12 {
        let folder = TempFolder::new("last");
        let collection = create(&folder.0, 100, round);
        let last = Arc::new(Last(std::sync::Mutex::new(None), AtomicBool::new(false)));
        let waker = Waker::from(Arc::clone(&last));
        *last.0.lock().unwrap() = Some(collection.clone());
        // So that a compaction is running as well.
        (0..50).for_each(|number| assert!(collection.remove(&format!("v{number}")).unwrap()));
        let mut task = Box::pin(collection.insert_async("x", &[1.0; 8], json!({})));
        // The task may be done before its first poll; its waker is then never called.
        let was_ready = task.as_mut().poll(&mut Context::from_waker(&waker)).is_ready();
        drop(collection);
        if was_ready || task.is_done() {
            drop(last.0.lock().unwrap().take());
        } else {
            let start = Instant::now();
            while !last.1.load(Ordering::SeqCst) {
                assert!(start.elapsed() < Duration::from_secs(10), "the handle is never dropped");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert!(was_ready || task.wait_done());
        assert_eq!(Collection::open(runtime(), &folder.0, options()).unwrap().len(), 51);
    }
}

/// Waits until a task is done.
trait WaitDone {
    fn wait_done(&self) -> bool;
}

impl<T> WaitDone for Task<T> {
    fn wait_done(&self) -> bool {
        let start = Instant::now();
        while !self.is_done() && start.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.is_done()
    }
}
