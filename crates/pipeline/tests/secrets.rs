//! A secret part that a pipeline hands to an op leaves no copy behind: after its last handle is
//! dropped, the memory of the process is searched for it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use panoply_pipeline::Pipeline;
use panoply_runtime::{FallbackPolicy, Runtime, WorkerLimits};

#[allow(dead_code)] // The runtime's tests use all of it.
#[path = "../../runtime/tests/parts/notary.rs"]
mod notary;
#[allow(dead_code)] // As above.
#[path = "../../runtime/tests/parts/search.rs"]
mod search;

use notary::{Notary, Office, OpenSession};
use search::{copies, key};

const OPS: u64 = 24;

/// How long a test waits for what must happen. Only a failing test waits that long.
const WAIT_MAX: Duration = Duration::from_secs(120);

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < WAIT_MAX, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn vault() -> (Arc<Runtime>, Arc<Office>) {
    let office = Arc::new(Office::default());
    let limits = WorkerLimits {
        op_time_max: Duration::from_millis(200),
        reopen_wait_min: Duration::from_millis(1),
        ..WorkerLimits::default()
    };
    let backend = Arc::new(Notary { devices: 2, office: Arc::clone(&office) });
    let builder = Runtime::builder().backend(backend).limits(limits).fallback(FallbackPolicy::Alternate);
    (Arc::new(builder.build().unwrap()), office)
}

#[test]
fn a_secret_leaves_no_copy_when_a_pipeline_makes_its_op() {
    let (runtime, _) = vault();
    let open = || OpenSession { key: key(1), with_recipe: true };
    let numbers = Pipeline::builder().source(0..OPS);
    let sessions = numbers.op("open", Arc::clone(&runtime), move |_| open()).in_flight(4).collect();
    let (sessions, _) = sessions.run().unwrap();
    assert_eq!(sessions.len() as u64, OPS);
    assert!(copies(1) > 0, "the search finds a key that is there");
    drop(sessions);
    runtime.shutdown(Duration::from_secs(10));
    drop(runtime);
    eventually("no copy is left", || copies(1) == 0);
}

#[test]
fn a_secret_leaves_no_copy_when_its_pipeline_is_cancelled() {
    let (runtime, office) = vault();
    let open = || OpenSession { key: key(2), with_recipe: true };
    office.session_ms.store(2, Ordering::Relaxed);
    let sessions = Pipeline::builder().source(0_u64..).map("key", move |_| open());
    let sessions = sessions.op("open", Arc::clone(&runtime), OpenSession::clone).in_flight(8).collect();
    let running = sessions.start().unwrap();
    eventually("sessions are made", || office.made.load(Ordering::Relaxed) >= OPS);
    drop(running);
    runtime.shutdown(Duration::from_secs(10));
    drop(runtime);
    eventually("no copy is left", || copies(2) == 0);
}
