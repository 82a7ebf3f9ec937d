//! Device objects and their recipes: when recipes are run again, for how long, how often, and on
//! which device.

use std::sync::atomic::Ordering;
use std::time::Duration;

use panoply_core::sink::sink;
use panoply_core::{Bytes, Error, Object};
use panoply_runtime::{FallbackPolicy, RunOptions, Runtime, WorkerLimits, WorkerState};

use crate::notary::{Break, Count, Echo};
use crate::{device, eventually, limited, runtime, session, stamp};

fn lose(runtime: &Runtime, office: &crate::Office, session: &Object) {
    office.lose_next.store(true, Ordering::Relaxed);
    let lost = runtime.run(stamp(session)).wait();
    assert!(matches!(lost, Err(Error::DeviceLost { .. })), "{lost:?}");
}

fn serves(runtime: &Runtime, session: &Object) {
    let stamped = runtime.run(stamp(session)).wait().unwrap();
    assert_eq!(stamped.as_slice().unwrap(), [1 ^ 7, 2 ^ 9, 3 ^ 7]);
}

#[test]
fn each_recipe_has_a_time_limit_of_its_own() {
    let limits = WorkerLimits { op_time_max: Duration::from_millis(400), ..WorkerLimits::default() };
    let (runtime, office) = limited(1, FallbackPolicy::None, limits);
    let sessions: Vec<Object> = (0..6).map(|_| session(&runtime, 0, true)).collect();
    // Six sessions take three times the limit of one.
    office.session_ms.store(200, Ordering::Relaxed);
    lose(&runtime, &office, &sessions[0]);
    sessions.iter().for_each(|session| serves(&runtime, session));
    let counters = runtime.workers()[0].counters;
    assert_eq!((counters.replaced, counters.reopened), (0, 1));
    assert_eq!(office.made.load(Ordering::Relaxed), 12, "each was made again once");
}

#[test]
fn an_object_that_comes_out_of_many_ops_is_made_again_once() {
    let (runtime, office) = runtime(1, FallbackPolicy::None);
    let first = session(&runtime, 0, true);
    let echoes: Vec<Object> = (0..10).map(|_| runtime.run(Echo(first.clone())).wait().unwrap()).collect();
    lose(&runtime, &office, &first);
    echoes.iter().for_each(|session| serves(&runtime, session));
    assert_eq!(office.made.load(Ordering::Relaxed), 2);
}

#[test]
fn objects_that_were_sent_through_a_sink_are_made_again() {
    let (runtime, office) = runtime(1, FallbackPolicy::None);
    let (sink, mut source) = sink(4);
    let key = Bytes::secret(vec![7, 9]).unwrap();
    let pending = runtime.run(Count { up_to: 3, sink, key: Some(key) });
    let sessions: Vec<Object> =
        std::iter::from_fn(|| source.wait()).map(|value| value.into_object().unwrap()).collect();
    assert_eq!((pending.wait().unwrap().as_slice().unwrap(), sessions.len()), ([3].as_slice(), 3));
    lose(&runtime, &office, &sessions[0]);
    sessions.iter().for_each(|session| serves(&runtime, session));
}

#[test]
fn a_recipe_that_no_engine_survives_is_given_up_and_the_device_is_not() {
    let limits = WorkerLimits { op_time_max: Duration::from_millis(200), ..WorkerLimits::default() };
    for kind in [Break::Panic, Break::Lose, Break::Block(1000), Break::Forget] {
        let (runtime, office) = limited(1, FallbackPolicy::None, limits.clone());
        let session = session(&runtime, 0, true);
        *office.sessions_break.lock().unwrap() = Some((kind, u32::MAX));
        lose(&runtime, &office, &session);
        eventually("the device works again", || runtime.workers()[0].state == WorkerState::Ready);
        let error = runtime.run(stamp(&session)).wait().unwrap_err();
        let reason = if kind == Break::Forget { "did not answer" } else { "engines did not survive" };
        assert!(matches!(&error, Error::ObjectLost { .. }) && error.to_string().contains(reason), "{kind:?}: {error}");
        *office.sessions_break.lock().unwrap() = None;
        let fresh = crate::session(&runtime, 0, true);
        serves(&runtime, &fresh);
    }
}

#[test]
fn a_recipe_that_one_engine_did_not_survive_is_tried_again() {
    for kind in [Break::Panic, Break::Lose] {
        let (runtime, office) = runtime(1, FallbackPolicy::None);
        let session = session(&runtime, 0, true);
        *office.sessions_break.lock().unwrap() = Some((kind, 2));
        lose(&runtime, &office, &session);
        serves(&runtime, &session);
    }
}

#[test]
fn objects_follow_a_device_that_is_found_again() {
    let limits = WorkerLimits { reopen_attempts_max: 1, ..WorkerLimits::default() };
    for gone in [true, false] {
        let (runtime, office) = limited(2, FallbackPolicy::Alternate, limits.clone());
        let (with, without) = (session(&runtime, 0, true), session(&runtime, 0, false));
        if gone {
            office.absent.store(true, Ordering::Relaxed);
            runtime.rediscover().unwrap();
        } else {
            office.refuse_open.store(true, Ordering::Relaxed);
            lose(&runtime, &office, &with);
        }
        eventually("the device is given up", || {
            matches!(runtime.workers()[0].state, WorkerState::Failed | WorkerState::Stopped)
        });
        for session in [&with, &without] {
            let error = runtime.run(stamp(session)).wait().unwrap_err();
            let clear = matches!(&error, Error::ObjectLost { .. }) && error.to_string().contains("given up");
            assert!(clear, "gone {gone}: {error}");
        }
        office.absent.store(false, Ordering::Relaxed);
        office.refuse_open.store(false, Ordering::Relaxed);
        assert!(!runtime.rediscover().unwrap().is_empty());
        serves(&runtime, &with);
        let on_it = runtime.run_with(stamp(&with), RunOptions::require(device(0))).with_report().wait().unwrap();
        assert_eq!(on_it.report.device, device(0));
        let error = runtime.run(stamp(&without)).wait().unwrap_err();
        assert!(matches!(error, Error::ObjectLost { .. }), "gone {gone}: {error}");
        // The device is lost once more on the new lane, whose engine now holds the objects.
        lose(&runtime, &office, &with);
        serves(&runtime, &with);
    }
}
