//! A process that is stopped and continued, as by Ctrl-Z or a debugger, for longer than any op may take: nobody was stuck. Alone in
//! its process, which it stops.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use panoply_core::Bytes;
use panoply_core::sink::sink;
use panoply_runtime::{FallbackPolicy, Runtime, WorkerLimits};

#[allow(dead_code)] // Part of it.
#[path = "parts/notary.rs"]
mod notary;

use notary::{Count, Notary, Office, OpenSession, Stamp};

#[test]
fn a_process_that_was_stopped_has_no_stuck_workers() {
    let limits = WorkerLimits { op_time_max: Duration::from_millis(400), ..WorkerLimits::default() };
    let office = Arc::new(Office::default());
    let backend = Arc::new(Notary { devices: 2, office: Arc::clone(&office) });
    let runtime = Runtime::builder().backend(backend).limits(limits).fallback(FallbackPolicy::None).build().unwrap();
    let key = Bytes::secret(vec![7, 9]).unwrap();
    let session = runtime.run(OpenSession { key, with_recipe: false }).wait().unwrap();
    let (sink, mut source) = sink(1);
    // An op under way keeps the worker inside its engine nearly all the time, in calls that take a part of what they may.
    office.poll_naps.store(80, Ordering::Relaxed);
    let pending = runtime.run(Count { up_to: 3, sink, key: None });
    let pid = std::process::id();
    for _ in 0..3 {
        let script = format!("kill -STOP {pid}; sleep 0.9; kill -CONT {pid}");
        let start = Instant::now();
        let Ok(mut shell) = Command::new("sh").arg("-c").arg(script).spawn() else {
            println!("skipped: there is no shell to stop this process");
            return;
        };
        shell.wait().unwrap();
        assert!(start.elapsed() >= Duration::from_millis(800));
        // Long enough for the supervisor to look.
        std::thread::sleep(Duration::from_millis(300));
        let stamp = Stamp { session: session.clone(), message: Bytes::from_vec(vec![1]), repeatable: true };
        assert!(runtime.run(stamp).wait().is_ok(), "the session is still there: {:?}", runtime.workers());
    }
    assert_eq!((0..3).filter_map(|_| source.wait()).count(), 3);
    assert_eq!(pending.wait().unwrap().as_slice().unwrap(), [3]);
    for worker in runtime.workers() {
        let counters = worker.counters;
        assert_eq!((counters.reopened, counters.replaced, counters.failed), (0, 0, 0), "{worker:?}");
    }
}
