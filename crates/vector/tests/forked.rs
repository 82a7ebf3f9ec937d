//! A forked process has none of a collection's threads. The collection refuses calls there, with
//! the reason, and can be dropped without a wait.
#![cfg(unix)]
#![allow(unsafe_code)] // A real fork.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

#[cfg(target_os = "linux")]
#[path = "../../pipeline/tests/fork_inside/mod.rs"]
mod fork_inside;
mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use panoply_vector::{Collection, Error, Filter, IndexOptions, Metric, Options, Schema, SearchOptions};
use serde_json::Value;
use support::{TempFolder, ids, runtime};

/// The longest that a child may take. A wait for a thread that does not exist never ends.
const CHILD_TIME_MAX: Duration = Duration::from_secs(20);

/// Runs `body` in a fork and returns its answer; `None` where it does not end.
fn in_child(body: impl FnOnce() -> bool) -> Option<bool> {
    // SAFETY: the child runs `body` on its only thread, and leaves without running the parent's
    // destructors.
    match unsafe { libc::fork() } {
        0 => {
            let right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
            // SAFETY: it ends the process, and does nothing else.
            unsafe { libc::_exit(if right { 7 } else { 8 }) }
        }
        child => {
            assert!(child > 0, "no fork");
            let start = Instant::now();
            let mut status = 0;
            // SAFETY: `status` is a place for a number, and the child is this process's own.
            while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
                if start.elapsed() > CHILD_TIME_MAX {
                    // SAFETY: as above.
                    unsafe { libc::kill(child, libc::SIGKILL) };
                    // SAFETY: as above.
                    unsafe { libc::waitpid(child, &raw mut status, 0) };
                    return None;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Some(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7)
        }
    }
}

fn forked<T>(answer: &Result<T, Error>) -> bool {
    matches!(answer, Err(Error::Device(panoply_core::Error::Forked { made_in, called_in, .. })) if made_in != called_in)
}

#[test]
fn a_collection_refuses_everything_in_a_fork_and_is_dropped_at_once() {
    let folder = TempFolder::new("forked");
    let schema = Schema::new("forked", 2, Metric::Dot);
    let collection = Collection::create(runtime(), &folder.0, schema, Options::default()).unwrap();
    collection.insert("one", &[1.0, 0.0], Value::Null).unwrap();
    let (many, filter) = (ids(0..2000), Filter::equals("a", 1_i64).unwrap());
    let mut under_way = Some(collection.insert_many_async(&many, &vec![0.5; 4000], &[]));
    let mut both = Some((collection.clone(), collection));
    let right = in_child(|| {
        let (first, second) = both.take().unwrap();
        let writes = forked(&first.insert("two", &[0.0, 1.0], Value::Null))
            && forked(&first.remove("one"))
            && forked(&first.remove_where(&filter))
            && forked(&first.remove_where_async(&filter).wait())
            && forked(&first.clear_async().wait())
            && forked(&first.flush());
        let reads = forked(&first.get("one")) && forked(&first.search(&[1.0, 0.0], &SearchOptions::new(1)));
        let keeps = forked(&first.compact())
            && forked(&first.build_index(&IndexOptions::default()))
            && forked(&first.make_resident())
            && forked(&first.make_resident_async().wait())
            && forked(&first.verify());
        let under_way = under_way.take().unwrap();
        let lost = under_way.is_done() && forked(&under_way.wait());
        drop((first, second));
        writes && reads && keeps && lost
    });
    assert_eq!(right, Some(true));
    under_way.unwrap().wait().unwrap();
    let (first, second) = both.unwrap();
    first.insert("three", &[0.0, 1.0], Value::Null).unwrap();
    drop(first);
    assert_eq!(second.search(&[0.0, 1.0], &SearchOptions::new(1)).unwrap().hits[0].id, "three", "the parent goes on");
    assert!(Collection::open(runtime(), &folder.0, Options::default()).is_err(), "the parent still holds its lock");
    drop(second);
    assert_eq!(Collection::open(runtime(), &folder.0, Options::default()).unwrap().len(), 2002);
}

/// Regression: a child that a signal handler had forked while a search waited behind another one
/// waited for ever.
#[test]
#[cfg(target_os = "linux")]
fn a_search_behind_another_one_ends() {
    use std::sync::Arc;

    use fork_inside::{End, end, fork_inside};
    use panoply_conformance::virtual_device::{Script, VirtualBackend};
    use panoply_runtime::Runtime;
    use panoply_vector::Residency;

    // The only device answers nothing before it is aborted.
    let script = Script::new().latency(Duration::from_secs(3600));
    let backend = VirtualBackend::new(Arc::new(panoply_cpu::CpuBackend::new())).device(script);
    let runtime = Arc::new(Runtime::builder().backend(Arc::new(backend)).build().unwrap());
    let options = Options { residency: Residency::Host, ..Options::default() };
    let schema = Schema::new("behind", 2, Metric::Dot);
    let collection = Collection::in_memory(Arc::clone(&runtime), schema, options).unwrap();
    collection.insert("one", &[1.0, 0.0], Value::Null).unwrap();
    let search = || collection.search(&[1.0, 0.0], &SearchOptions::new(1));
    std::thread::scope(|scope| {
        let first = scope.spawn(search);
        // From then on the first search leads, and every other one waits behind it.
        while runtime.workers().iter().all(|worker| worker.counters.accepted == 0) {
            assert!(!first.is_finished(), "the device has answered");
            std::thread::yield_now();
        }
        let wait = || {
            let found = search();
            end(forked(&found), found.map(|found| found.hits.len()))
        };
        let (child, parent) = fork_inside(wait, || _ = runtime.abort());
        assert_eq!(child, Some(true));
        assert!(matches!(parent, End::Otherwise(_)), "{parent:?}");
        assert!(first.join().unwrap().is_err());
    });
}

#[test]
fn forks_amid_writes_never_hang() {
    let schema = Schema::new("busy", 2, Metric::Dot);
    let collection = Collection::in_memory(runtime(), schema, Options::default()).unwrap();
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0_u64.. {
                if end.load(Ordering::SeqCst) {
                    return;
                }
                let metadata = serde_json::json!({ format!("field {}", round % 5000): round });
                collection.upsert(&format!("{}", round % 100), &[0.5, 0.5], metadata).unwrap();
            }
        });
        for _ in 0..100 {
            let right = in_child(|| {
                let known = collection.len() <= 100 && collection.iter().count() <= 100;
                known && collection.fields().len() <= 5000 && collection.stats().records <= 100
            });
            assert_eq!(right, Some(true));
        }
        end.store(true, Ordering::SeqCst);
    });
}
