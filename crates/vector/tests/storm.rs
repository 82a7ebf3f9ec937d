//! Many segments, and callers that give up, panic or shut the runtime down.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};

use crate::support::{Random, TempFolder, ids, runtime};
use panoply_cpu::CpuBackend;
use panoply_runtime::Runtime;
use panoply_vector::{Collection, IndexOptions, Metric, Options, Schema, SearchOptions};
use serde_json::Value;

/// Regression: each segment kept two files open, so the default limit of a thousand open files was
/// reached at 500 segments.
#[test]
#[cfg(unix)]
fn more_segments_than_files_that_may_be_open() {
    const FILES_MAX: usize = 120;
    const WITHIN_LIMIT: &str = "PANOPLY_TEST_WITHIN_FILE_LIMIT";
    if std::env::var_os(WITHIN_LIMIT).is_none() {
        let own = std::env::current_exe().unwrap();
        let mut limited = std::process::Command::new("sh");
        limited.arg("-c").arg(format!("ulimit -n {FILES_MAX} && exec \"$0\" more_segments_than_files")).arg(own);
        let output = limited.env(WITHIN_LIMIT, "1").output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let folder = TempFolder::new("segments");
    let options = Options { segment_bytes_max: 1, ..Options::default() };
    let schema = Schema::new("segments", 2, Metric::Dot);
    let collection = Collection::create(runtime(), &folder.0, schema, options.clone()).unwrap();
    for id in ids(0..FILES_MAX) {
        collection.insert(&id, &[1.0, id.len() as f32], Value::Null).unwrap();
    }
    assert!(collection.stats().segments >= FILES_MAX);
    let check = |collection: &Collection| {
        let found = collection.search(&[1.0, 0.0], &SearchOptions::new(FILES_MAX)).unwrap();
        assert_eq!(found.hits.into_iter().map(|hit| hit.id).collect::<Vec<_>>(), ids(10..FILES_MAX));
    };
    collection.remove_many(&ids(0..10)).unwrap();
    check(&collection);
    drop(collection);
    check(&Collection::open_read_only(runtime(), &folder.0, options.clone()).unwrap());
    let indexed = Collection::open(runtime(), &folder.0, options).unwrap();
    indexed.build_index(&IndexOptions::default()).unwrap();
    indexed.insert("more", &[0.5, 0.0], Value::Null).unwrap();
    assert!(indexed.remove("more").unwrap());
    check(&indexed);
    drop(indexed);
    let joined = Collection::open(runtime(), &folder.0, Options::default()).unwrap();
    joined.compact().unwrap();
    assert!(joined.stats().segments < 10);
    check(&joined);
}

struct Bomb;

impl Wake for Bomb {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics, as this test wants");
    }
}

#[test]
fn callers_that_give_up_or_panic_harm_nobody() {
    let schema = Schema::new("storm", 8, Metric::Cosine);
    let collection = Collection::in_memory(runtime(), schema, Options::default()).unwrap();
    collection.insert_many(&ids(0..2000), &Random(1).vectors(2000, 8), &[]).unwrap();
    collection.build_index(&IndexOptions::default()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..6_u64 {
            let (collection, stop) = (&collection, &stop);
            scope.spawn(move || {
                let mut random = Random(thread + 10);
                let bomb = Waker::from(Arc::new(Bomb));
                for round in 0..300 {
                    let query = random.vectors(1, 8);
                    let options = [SearchOptions::new(5), SearchOptions::new(5).nprobe(3)][round % 2].clone();
                    let mut search = collection.search_async(&query, &options);
                    let mut insert = collection.upsert_async(&format!("t{thread}-{round}"), &query, Value::Null);
                    match random.below(3) {
                        // Dropped without a poll.
                        0 => drop((search, insert)),
                        // Dropped after a poll, with a waker that panics.
                        1 => {
                            let context = &mut Context::from_waker(&bomb);
                            let _ = Pin::new(&mut search).poll(context);
                            let _ = Pin::new(&mut insert).poll(context);
                        }
                        _ => {
                            insert.wait().unwrap();
                            assert_eq!(search.wait().unwrap().hits.len(), 5);
                            let found = collection.search(&query, &SearchOptions::new(1)).unwrap();
                            assert!(found.hits[0].score > 0.999, "{found:?}");
                        }
                    }
                }
                stop.store(true, Ordering::Relaxed);
            });
        }
    });
    assert!(stop.load(Ordering::Relaxed));
    collection.flush().unwrap();
    // Changes are completed although no caller waits for them.
    assert_eq!(collection.len(), 2000 + 6 * 300);
}

#[test]
fn a_runtime_that_is_shut_down_ends_searches_with_an_error() {
    for _ in 0..5 {
        let own = Arc::new(Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap());
        let schema = Schema::new("shutdown", 16, Metric::Euclidean);
        let collection = Collection::in_memory(Arc::clone(&own), schema, Options::default()).unwrap();
        collection.insert_many(&ids(0..5000), &Random(1).vectors(5000, 16), &[]).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let query = [0.5; 16];
                    for _ in 0..10_000 {
                        let task = collection.search_async(&query, &SearchOptions::new(3));
                        let both = (collection.search(&query, &SearchOptions::new(3)), task.wait());
                        if both.0.is_err() && both.1.is_err() {
                            return;
                        }
                    }
                    panic!("the runtime is gone and searches go on");
                });
            }
            std::thread::sleep(std::time::Duration::from_millis(30));
            let _ = own.shutdown(std::time::Duration::ZERO);
        });
        // Operations that need no device still work.
        collection.insert("late", &[0.0; 16], Value::Null).unwrap();
        assert_eq!(collection.len(), 5001);
    }
}
