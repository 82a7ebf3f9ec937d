//! A secret part leaves no copy behind: after its last handle is dropped, the memory of the process
//! is searched for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use panoply_core::{Bytes, Error, Object, Result};
use panoply_runtime::{Batching, FallbackPolicy, RunOptions, Runtime, WorkerLimits};

use crate::notary::{Break, Notary, Office, OpenSession, Stamp};
use crate::search::{copies, key, key_byte};

#[test]
#[cfg(target_os = "linux")]
fn a_secret_leaves_no_copy_in_the_process() {
    let (runtime, _) = crate::runtime(2, FallbackPolicy::Retry { times: 1 });
    {
        let key = key(0);
        assert!(copies(0) >= 1, "the search finds a key that is there");
        assert!(!format!("{key:?}").contains(&key_byte(0, 0).to_string()));
        let op = OpenSession { key, with_recipe: true };
        let session = runtime.run_with(op, RunOptions::require(crate::device(0))).wait().unwrap();
        let message = Bytes::from_vec(vec![0x55; 64]);
        let stamped = runtime.run(Stamp { session: session.clone(), message, repeatable: true }).wait().unwrap();
        assert_eq!(stamped.as_slice().unwrap()[0], 0x55 ^ key_byte(0, 0));
        assert!(!runtime.profile().to_text().contains("key"));
    }
    drop(runtime);
    assert_eq!(copies(0), 0);
}

/// The fate of the ops that carry the key.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// They are joined with others.
    Joined,
    /// Their device fails, and another device takes them.
    Moved,
    /// Their callers drop them before they are started, or while they run.
    Dropped,
    /// Their deadlines pass before they are started.
    Late,
    /// Their device is lost, and makes their sessions again.
    Lost,
    /// Their engine panics.
    Panicked,
    /// Their engine does not return, and its thread is replaced.
    Stuck,
    /// The runtime ends without having run them.
    Aborted,
}

const FATES: [Fate; 8] =
    [Fate::Joined, Fate::Moved, Fate::Dropped, Fate::Late, Fate::Lost, Fate::Panicked, Fate::Stuck, Fate::Aborted];

const OPS: u64 = 24;

fn vault(batching: Batching, policy: FallbackPolicy) -> (Arc<Runtime>, Arc<Office>) {
    let office = Arc::new(Office::default());
    let limits = WorkerLimits {
        op_time_max: Duration::from_millis(200),
        reopen_wait_min: Duration::from_millis(1),
        ..WorkerLimits::default()
    };
    let backend = Arc::new(Notary { devices: 2, office: Arc::clone(&office) });
    let builder = Runtime::builder().backend(backend).limits(limits).batching(batching).fallback(policy);
    (Arc::new(builder.build().unwrap()), office)
}

/// Runs an op whose first device fails.
fn open_elsewhere(runtime: &Runtime, office: &Office, open: OpenSession) -> Result<Object> {
    office.fail_next.store(true, Ordering::Relaxed);
    let outcome = runtime.run(open).with_report().wait()?;
    assert!(outcome.report.fallback.is_some(), "it was moved");
    Ok(outcome.output)
}

/// Loses the device of some sessions, then uses the sessions again.
fn lose_and_use(runtime: &Runtime, office: &Office, sessions: &[Result<Object>]) {
    office.lose_next.store(true, Ordering::Relaxed);
    let stamp = |session: &Object| runtime.run(crate::stamp(session)).wait();
    let lost = sessions.iter().flatten().filter(|session| stamp(session).is_err()).count();
    assert!(lost > 0 && office.made.load(Ordering::Relaxed) >= OPS, "{lost}");
    sessions.iter().flatten().for_each(|session| assert!(stamp(session).is_ok(), "it was made again"));
}

/// Runs ops with the key through this fate, and returns how many had an outcome.
fn meet(fate: Fate, test: u32) -> u64 {
    let batching = match fate {
        Fate::Joined => Batching::TimeOrSize { size_max: 8, wait_max: Duration::from_millis(20) },
        _ => Batching::LowLatency,
    };
    let (runtime, office) = vault(batching, FallbackPolicy::Alternate);
    let open = move || OpenSession { key: key(test), with_recipe: true };
    let slow_ms = |ms| office.session_ms.store(ms, Ordering::Relaxed);
    let all = |options: RunOptions| -> Vec<Result<Object>> {
        let pending: Vec<_> = (0..OPS).map(|_| runtime.run_with(open(), options.clone())).collect();
        pending.into_iter().map(|pending| pending.wait()).collect()
    };
    let answers = match fate {
        Fate::Joined => all(RunOptions::default()),
        Fate::Moved => (0..OPS).map(|_| open_elsewhere(&runtime, &office, open())).collect(),
        Fate::Dropped => {
            slow_ms(2);
            let mut pending: Vec<_> = (0..2 * OPS).map(|_| runtime.run(open())).collect();
            pending.drain(..OPS as usize);
            pending.into_iter().map(|pending| pending.wait()).collect()
        }
        Fate::Late => {
            slow_ms(5);
            let answers = all(RunOptions::default().deadline(Instant::now() + Duration::from_millis(20)));
            assert!(answers.iter().any(|answer| matches!(answer, Err(Error::DeadlineExceeded { .. }))));
            answers
        }
        Fate::Lost => {
            let sessions = all(RunOptions::default());
            lose_and_use(&runtime, &office, &sessions);
            sessions
        }
        Fate::Panicked | Fate::Stuck => {
            let kind = if matches!(fate, Fate::Stuck) { Break::Block(600) } else { Break::Panic };
            *office.sessions_break.lock().unwrap() = Some((kind, 2));
            all(RunOptions::default())
        }
        Fate::Aborted => {
            slow_ms(20);
            let pending: Vec<_> = (0..OPS).map(|_| runtime.run(open())).collect();
            runtime.abort();
            pending.into_iter().map(|pending| pending.wait()).collect()
        }
    };
    let answered = answers.len() as u64;
    drop(answers);
    runtime.shutdown(Duration::from_secs(10));
    answered
}

#[test]
#[cfg(target_os = "linux")]
fn a_secret_leaves_no_copy_whatever_becomes_of_its_op() {
    for (test, fate) in (1..).zip(FATES) {
        assert_eq!(meet(fate, test), OPS, "{fate:?}: each op has its outcome");
        // A thread that was stuck releases its values when it returns.
        crate::eventually(&format!("{fate:?} leaves no copy"), || copies(test) == 0);
    }
}
