//! Ops of a foreign type that panic, or do not return, when a thread of the runtime asks them about
//! themselves.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use panoply_core::{Error, Result};
use panoply_runtime::{Batching, FallbackPolicy, RunOptions, Runtime, WorkerLimits, WorkerState};

use crate::notary::{Moody, Notary, Office, Says};
use crate::{device, session, stamp};

fn build(devices: u32, policy: FallbackPolicy, limits: WorkerLimits) -> (Runtime, Arc<Office>) {
    let office = Arc::new(Office::default());
    let backend = Arc::new(Notary { devices, office: Arc::clone(&office) });
    let batching = Batching::TimeOrSize { size_max: 4, wait_max: Duration::from_millis(1) };
    let builder = Runtime::builder().backend(backend).limits(limits).batching(batching).fallback(policy);
    (builder.build().unwrap(), office)
}

fn moody(office: &Arc<Office>, thread: &'static str, dislikes: Says, block_ms: u64) -> Moody {
    Moody { thread, dislikes, block_ms, office: Arc::clone(office) }
}

/// Runs a moody op, and then other ops on every device. All of them must be answered soon.
fn among_others(runtime: &Runtime, op: Moody, devices: u32) -> Result<()> {
    let sessions: Vec<_> = (0..devices).map(|on| session(runtime, on, true)).collect();
    let mut pending = vec![runtime.run_with(op, RunOptions::default())];
    let others: Vec<_> = (0..8).flat_map(|_| sessions.iter().map(|session| runtime.run(stamp(session)))).collect();
    let start = Instant::now();
    while !(pending[0].is_done() && others.iter().all(|other| other.is_done())) {
        assert!(start.elapsed() < Duration::from_secs(15), "an op was never answered: {:?}", runtime.workers());
        std::thread::sleep(Duration::from_millis(1));
    }
    others.into_iter().for_each(|other| assert!(other.wait().is_ok()));
    pending.remove(0).wait().map(drop)
}

#[test]
fn an_op_that_panics_in_the_worker_ends_alone() {
    for dislikes in [Says::Key, Says::Copy] {
        let (runtime, office) = build(2, FallbackPolicy::Retry { times: 1 }, WorkerLimits::default());
        let answer = among_others(&runtime, moody(&office, "panoply-notary", dislikes, 0), 2);
        assert!(matches!(&answer, Err(Error::InvalidArgument { got, .. }) if got.contains("moody")), "{answer:?}");
        assert_eq!(office.provoked.load(Ordering::Relaxed), 1, "{dislikes:?}");
        assert!(runtime.workers().iter().all(|worker| (worker.counters.panics, worker.counters.reopened) == (0, 0)));
    }
}

#[test]
fn an_op_that_panics_when_it_teaches_is_answered() {
    let (runtime, office) = build(1, FallbackPolicy::None, WorkerLimits::default());
    assert!(among_others(&runtime, moody(&office, "panoply-notary", Says::Name, 0), 1).is_ok());
    assert_eq!(office.provoked.load(Ordering::Relaxed), 1);
    let counters = runtime.workers()[0].counters;
    assert_eq!((counters.reopened, counters.panics), (0, 0), "nothing but the lesson is lost");
}

#[test]
fn an_op_that_panics_in_the_relay_ends_alone() {
    let (runtime, office) = build(2, FallbackPolicy::Alternate, WorkerLimits::default());
    let sessions = [session(&runtime, 0, true), session(&runtime, 1, true)];
    office.fail_next.store(true, Ordering::Relaxed);
    let answer = runtime.run(moody(&office, "panoply-relay", Says::Parts, 0)).wait();
    assert!(matches!(&answer, Err(Error::InvalidArgument { got, .. }) if got.contains("moody")), "{answer:?}");
    assert!(office.provoked.load(Ordering::Relaxed) >= 1);
    // The relay goes on.
    office.fail_next.store(true, Ordering::Relaxed);
    let plain = runtime.run(moody(&office, "nobody", Says::Parts, 0)).with_report().wait().unwrap();
    assert!(plain.report.fallback.is_some());
    sessions.iter().for_each(|session| assert!(runtime.run(stamp(session)).wait().is_ok()));
}

#[test]
fn an_op_that_does_not_return_in_the_worker_is_stuck_like_an_engine() {
    let limits = WorkerLimits { op_time_max: Duration::from_millis(150), ..WorkerLimits::default() };
    for dislikes in [Says::Key, Says::Copy] {
        let (runtime, office) = build(1, FallbackPolicy::Retry { times: 1 }, limits.clone());
        let op = moody(&office, "panoply-notary", dislikes, 2000);
        let (start, answer) = (Instant::now(), runtime.run_with(op, RunOptions::require(device(0))).wait());
        assert!(matches!(answer, Err(Error::Timeout { .. })), "{dislikes:?}: {answer:?}");
        assert!(start.elapsed() < Duration::from_millis(1500), "it was answered while its own code was under way");
        assert!(among_others(&runtime, moody(&office, "nobody", dislikes, 0), 1).is_ok());
        let worker = &runtime.workers()[0];
        assert_eq!((worker.counters.replaced, worker.state), (1, WorkerState::Ready), "{dislikes:?}");
    }
}

#[test]
fn an_op_that_does_not_return_when_it_teaches_is_answered_and_its_worker_replaced() {
    let limits = WorkerLimits { op_time_max: Duration::from_millis(150), ..WorkerLimits::default() };
    let (runtime, office) = build(1, FallbackPolicy::None, limits);
    let start = Instant::now();
    assert!(runtime.run(moody(&office, "panoply-notary", Says::Name, 2000)).wait().is_ok());
    assert!(start.elapsed() < Duration::from_millis(1500));
    assert!(among_others(&runtime, moody(&office, "nobody", Says::Name, 0), 1).is_ok());
    assert_eq!(runtime.workers()[0].counters.replaced, 1);
}

#[test]
fn an_op_that_does_not_return_in_the_relay_keeps_no_other_op_from_moving() {
    let limits = WorkerLimits { op_time_max: Duration::from_millis(150), ..WorkerLimits::default() };
    let (runtime, office) = build(2, FallbackPolicy::Alternate, limits);
    office.fail_next.store(true, Ordering::Relaxed);
    let stuck = runtime.run(moody(&office, "panoply-relay", Says::Parts, 1000));
    crate::eventually("the relay asks it", || office.provoked.load(Ordering::Relaxed) > 0);
    let start = Instant::now();
    for _ in 0..4 {
        office.fail_next.store(true, Ordering::Relaxed);
        let moved = runtime.run(moody(&office, "nobody", Says::Parts, 0)).with_report().wait().unwrap();
        assert!(moved.report.fallback.is_some());
    }
    assert!(start.elapsed() < Duration::from_millis(900), "while the first relay was stuck");
    // The stuck op's own code returns at last, and the op goes on.
    assert!(stuck.wait().is_ok());
    assert!(runtime.shutdown(Duration::from_secs(5)).drained);
}

#[test]
fn an_op_that_does_not_return_in_the_relay_keeps_no_other_op_from_its_outcome_when_the_runtime_ends() {
    for abort in [true, false] {
        let (runtime, office) = build(2, FallbackPolicy::Alternate, WorkerLimits::default());
        office.fail_next.store(true, Ordering::Relaxed);
        let _stuck = runtime.run(moody(&office, "panoply-relay", Says::Parts, 20_000));
        crate::eventually("the relay asks it", || office.provoked.load(Ordering::Relaxed) > 0);
        let others: Vec<_> = (0..5)
            .map(|_| {
                office.fail_next.store(true, Ordering::Relaxed);
                let other = runtime.run(moody(&office, "nobody", Says::Parts, 0));
                crate::eventually("it fails", || !office.fail_next.load(Ordering::Relaxed));
                other
            })
            .collect();
        let start = Instant::now();
        if abort {
            runtime.abort()
        } else {
            runtime.shutdown(Duration::from_millis(20))
        };
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        crate::eventually("every other op is answered", || others.iter().all(|other| other.is_done()));
        drop(runtime);
        assert!(start.elapsed() < Duration::from_secs(15), "a runtime that has ended is not ended again");
    }
}

#[test]
fn a_copy_of_an_op_that_does_not_return_when_it_is_dropped_keeps_no_outcome() {
    let limits = WorkerLimits { op_time_max: Duration::from_millis(150), ..WorkerLimits::default() };
    let (runtime, office) = build(1, FallbackPolicy::Retry { times: 1 }, limits);
    let start = Instant::now();
    assert!(runtime.run(moody(&office, "panoply-notary", Says::Goodbye, 2000)).wait().is_ok());
    assert!(start.elapsed() < Duration::from_millis(1500), "the outcome comes before the copy goes");
    crate::eventually("the copy goes", || office.provoked.load(Ordering::Relaxed) > 0);
}
