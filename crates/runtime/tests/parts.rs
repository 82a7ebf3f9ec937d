//! Ops with parts other than tensors: bytes, secrets, device objects and sinks, on devices of a
//! foreign backend.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use panoply_core::sink::sink;
use panoply_core::{Bytes, DeviceId, Error, ErrorKind, Object};
use panoply_runtime::{FallbackPolicy, HealthRules, RunOptions, Runtime, WorkerLimits};

#[path = "parts/answers.rs"]
mod answers;
#[path = "parts/liar.rs"]
mod liar;
#[path = "parts/moods.rs"]
mod moods;
#[path = "parts/notary.rs"]
mod notary;
#[path = "parts/recipes.rs"]
mod recipes;
#[path = "parts/search.rs"]
mod search;
#[path = "parts/secrets.rs"]
mod secrets;

use notary::{Count, NOTARY, Notary, Office, OpenSession, Stamp};

fn runtime(devices: u32, policy: FallbackPolicy) -> (Runtime, Arc<Office>) {
    limited(devices, policy, WorkerLimits::default())
}

fn limited(devices: u32, policy: FallbackPolicy, limits: WorkerLimits) -> (Runtime, Arc<Office>) {
    let office = Arc::new(Office::default());
    let limits = WorkerLimits { reopen_wait_min: Duration::from_millis(1), ..limits };
    let rules = HealthRules { look_every: Duration::from_millis(5), ..HealthRules::default() };
    let backend = Arc::new(Notary { devices, office: Arc::clone(&office) });
    let builder = Runtime::builder().backend(backend).limits(limits).health(rules).fallback(policy);
    (builder.build().unwrap(), office)
}

fn device(index: u32) -> DeviceId {
    DeviceId { api: NOTARY, index }
}

fn session(runtime: &Runtime, on: u32, with_recipe: bool) -> Object {
    let key = Bytes::secret(vec![7, 9]).unwrap();
    runtime.run_with(OpenSession { key, with_recipe }, RunOptions::require(device(on))).wait().unwrap()
}

fn stamp(session: &Object) -> Stamp {
    Stamp { session: session.clone(), message: Bytes::from_vec(vec![1, 2, 3]), repeatable: true }
}

/// How long a test waits for what must happen. Only a failing test waits that long.
const WAIT_MAX: Duration = Duration::from_secs(120);

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < WAIT_MAX, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_op_follows_the_object_that_it_names() {
    let (runtime, office) = runtime(3, FallbackPolicy::Alternate);
    let sessions: Vec<Object> = (0..3).map(|on| session(&runtime, on, true)).collect();
    office.ran_on.lock().unwrap().clear();
    for (on, session) in sessions.iter().enumerate() {
        for _ in 0..20 {
            let outcome = runtime.run(stamp(session)).with_report().wait().unwrap();
            assert_eq!(outcome.output.as_slice().unwrap(), [1 ^ 7, 2 ^ 9, 3 ^ 7]);
            assert_eq!(outcome.report.device, device(on as u32));
        }
    }
    assert_eq!(office.ran_on.lock().unwrap().len(), 60);
    let elsewhere = runtime.run_with(stamp(&sessions[0]), RunOptions::require(device(1))).wait().unwrap_err();
    assert_eq!(elsewhere.kind(), ErrorKind::Caller, "{elsewhere}");
}

#[test]
fn an_object_of_a_device_that_is_not_there_is_nobodys() {
    let (first, _) = runtime(2, FallbackPolicy::Alternate);
    let (second, _) = runtime(1, FallbackPolicy::Alternate);
    let foreign = session(&first, 1, false);
    let error = second.run(stamp(&foreign)).wait().unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    let of_another_engine = session(&first, 0, false);
    let error = second.run(stamp(&of_another_engine)).wait().unwrap_err();
    assert!(matches!(error, Error::ObjectLost { kind: "session", .. }), "{error}");
}

#[test]
fn dropping_the_last_handle_releases_the_state() {
    let (runtime, office) = runtime(1, FallbackPolicy::None);
    let sessions: Vec<Object> = (0..100).map(|_| session(&runtime, 0, true)).collect();
    assert_eq!(office.sessions.load(Ordering::Relaxed), 100);
    let kept = sessions[5].clone();
    drop(sessions);
    // The worker is idle: the engine's health is asked for when the next op comes, or at the
    // engine's own look.
    eventually("99 sessions are released", || {
        runtime.run(stamp(&kept)).wait().unwrap();
        office.sessions.load(Ordering::Relaxed) == 1
    });
}

#[test]
fn a_lost_device_makes_its_objects_again_from_their_recipes() {
    for policy in [FallbackPolicy::None, FallbackPolicy::Retry { times: 3 }, FallbackPolicy::Alternate] {
        let (runtime, office) = runtime(2, policy);
        let (first, second) = (session(&runtime, 0, true), session(&runtime, 0, true));
        office.lose_next.store(true, Ordering::Relaxed);
        let lost = runtime.run(stamp(&first)).wait();
        match policy {
            FallbackPolicy::Retry { .. } => assert!(lost.is_ok(), "{lost:?}"),
            _ => assert!(matches!(lost, Err(Error::DeviceLost { .. })), "{lost:?}"),
        }
        for session in [&first, &second] {
            let stamped = runtime.run(stamp(session)).wait().unwrap();
            assert_eq!(stamped.as_slice().unwrap(), [1 ^ 7, 2 ^ 9, 3 ^ 7]);
        }
        assert_eq!(office.opened.load(Ordering::Relaxed), 3);
        drop((first, second));
        let other = session(&runtime, 0, false);
        eventually("sessions made again are released", || {
            runtime.run(stamp(&other)).wait().unwrap();
            office.sessions.load(Ordering::Relaxed) == 1
        });
    }
}

#[test]
fn an_object_that_cannot_be_made_again_says_so() {
    let (runtime, office) = runtime(1, FallbackPolicy::Retry { times: 2 });
    let (without, with) = (session(&runtime, 0, false), session(&runtime, 0, true));
    office.refuse_sessions.store(true, Ordering::Relaxed);
    office.lose_next.store(true, Ordering::Relaxed);
    let error = runtime.run(stamp(&without)).wait().unwrap_err();
    assert!(matches!(error, Error::ObjectLost { kind: "session", .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Device);
    let error = runtime.run(stamp(&with)).wait().unwrap_err();
    assert!(error.to_string().contains("no more sessions"), "{error}");
    office.refuse_sessions.store(false, Ordering::Relaxed);
    let fresh = session(&runtime, 0, true);
    assert!(runtime.run(stamp(&fresh)).wait().is_ok(), "the device itself works");
}

#[test]
fn what_is_not_repeatable_runs_once_whatever_the_policy() {
    for policy in [FallbackPolicy::Retry { times: 5 }, FallbackPolicy::Alternate] {
        let (runtime, office) = runtime(2, policy);
        let session = session(&runtime, 0, true);
        let before = office.runs.load(Ordering::Relaxed);
        office.fail_next.store(true, Ordering::Relaxed);
        let error = runtime.run(Stamp { repeatable: false, ..stamp(&session) }).wait().unwrap_err();
        assert!(matches!(error, Error::DeviceFault { .. }), "{error}");
        assert_eq!(office.runs.load(Ordering::Relaxed), before + 1);
        office.fail_next.store(true, Ordering::Relaxed);
        let again = runtime.run(stamp(&session)).wait();
        assert_eq!(again.is_ok(), matches!(policy, FallbackPolicy::Retry { .. }), "{again:?}");
    }
}

#[test]
fn a_sink_takes_many_values_and_the_op_ends_once() {
    let (runtime, _) = runtime(1, FallbackPolicy::Retry { times: 2 });
    let (sink, mut source) = sink(3);
    let pending = runtime.run(Count { up_to: 50, sink, key: None });
    let mut received = Vec::new();
    while let Some(value) = source.wait() {
        received.extend_from_slice(value.into_bytes().unwrap().as_slice().unwrap());
        if received.len() == 5 {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    assert_eq!(received, (0..50).collect::<Vec<u8>>());
    assert_eq!(pending.wait().unwrap().as_slice().unwrap(), [50]);
}

#[test]
fn a_source_that_is_dropped_ends_the_op() {
    let (runtime, _) = runtime(1, FallbackPolicy::None);
    let (sink, mut source) = sink(1);
    let pending = runtime.run(Count { up_to: 200, sink, key: None });
    assert!(source.wait().is_some());
    drop(source);
    assert!(pending.wait().unwrap().as_slice().unwrap()[0] < 200);
}

#[test]
fn a_session_that_takes_its_time_is_not_hung_and_holds_up_nobody() {
    let limits = WorkerLimits { op_time_max: Duration::from_millis(600), ..WorkerLimits::default() };
    let (runtime, _) = limited(1, FallbackPolicy::None, limits);
    let session = session(&runtime, 0, true);
    let (sink, mut source) = sink(1);
    let pending = runtime.run(Count { up_to: 3, sink, key: None });
    // Its values are not taken for several times the time limit of any other op: first with the
    // device to itself, then among other ops.
    std::thread::sleep(Duration::from_millis(1500));
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1500) {
        assert!(runtime.run(stamp(&session)).wait().is_ok());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!pending.is_done());
    assert_eq!((0..3).filter_map(|_| source.wait()).count(), 3);
    assert_eq!(pending.wait().unwrap().as_slice().unwrap(), [3]);
    let counters = runtime.workers()[0].counters;
    assert_eq!((counters.reopened, counters.replaced, counters.failed), (0, 0, 0));
}

#[test]
fn cost_classes_are_learned_and_written_down_apart() {
    let (runtime, _) = runtime(1, FallbackPolicy::None);
    let session = session(&runtime, 0, true);
    for repeatable in [true, false] {
        (0..10).for_each(|_| drop(runtime.run(Stamp { repeatable, ..stamp(&session) }).wait().unwrap()));
    }
    let profile = runtime.profile();
    let classes: Vec<&str> =
        profile.devices[0].ops.iter().filter(|op| op.op == "stamp").map(|op| op.class.0.as_str()).collect();
    assert_eq!(classes, ["again", "once"]);
    assert_eq!(profile.to_text().parse(), Ok(profile));
}
