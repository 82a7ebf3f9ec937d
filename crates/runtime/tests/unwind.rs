//! Foreign code panics at every place where the runtime calls it. Every accepted op still has
//! exactly one outcome, and the runtime goes on.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
#![allow(unsafe_code)] // The shared module contains a counting allocator.

mod support;
#[path = "support/traps.rs"]
mod traps;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use panoply_conformance::virtual_device::{Fault, Script, VirtualBackend, VirtualControl};
use panoply_core::op::compute::{Map, Transpose};
use panoply_core::{Error, Tensor};
use panoply_cpu::CpuBackend;
use panoply_runtime::pool::WorkerStatus;
use panoply_runtime::worker::BoxError;
use panoply_runtime::{
    Envelope, FallbackPolicy, HealthRules, PoolOptions, RunOptions, Runtime, Worker, WorkerError, WorkerLimits,
    WorkerPool, WorkerState,
};
use support::{eventually, poll_for, unpark};
use traps::{CallSite, Listener, PLACES, TrappedBackend, Traps};

const OPS: usize = 24;
const PATIENCE: Duration = Duration::from_secs(20);

/// The traps of this process. There is one set, because the listener of events is global.
fn traps() -> Arc<Traps> {
    static TRAPS: OnceLock<Arc<Traps>> = OnceLock::new();
    let make = || {
        let traps = Arc::new(Traps::default());
        tracing::subscriber::set_global_default(Listener(Arc::clone(&traps))).unwrap();
        traps
    };
    Arc::clone(TRAPS.get_or_init(make))
}

fn limits() -> WorkerLimits {
    WorkerLimits {
        queue_depth_max: 8,
        batch_max: 4,
        in_flight_max: 4,
        op_time_max: Duration::from_secs(5),
        reopen_wait_min: Duration::from_micros(100),
        reopen_wait_max: Duration::from_millis(2),
        reopen_attempts_max: 1000,
        stuck_threads_max: 4,
    }
}

fn runtime(scripts: Vec<Script>, traps: &Arc<Traps>, policy: FallbackPolicy) -> (Runtime, Vec<Arc<VirtualControl>>) {
    let count = scripts.len();
    let backend = scripts.into_iter().fold(VirtualBackend::new(Arc::new(CpuBackend::new())), VirtualBackend::device);
    let controls = (0..count).map(|index| backend.control(index).unwrap()).collect();
    let backend = TrappedBackend { inner: Arc::new(backend), traps: Arc::clone(traps) };
    let rules = HealthRules {
        look_every: Duration::from_millis(1),
        open_wait_min: Duration::from_millis(1),
        open_wait_max: Duration::from_millis(2),
        ..HealthRules::default()
    };
    let builder = Runtime::builder().backend(Arc::new(backend)).limits(limits()).health(rules).fallback(policy);
    (builder.build().unwrap(), controls)
}

fn expect_right(answer: panoply_core::Result<Tensor>) {
    assert_eq!(answer.unwrap().as_slice::<f32>().unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
}

/// Waits until the devices serve again, then checks that they do.
fn expect_service(runtime: &Runtime, traps: &Arc<Traps>, place: CallSite) {
    let plain = Tensor::from_slice(&[0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0], [2, 3]).unwrap();
    let served = || (0..8).all(|_| runtime.run(Transpose::new(&plain)).wait().is_ok());
    eventually(&format!("service after a panic at {place:?}"), served);
    let here = RunOptions::default().to_host();
    expect_right(runtime.run_with(Transpose::new(&traps::matrix(traps)), here).wait());
    let ready = || runtime.workers().iter().all(|worker| worker.state == WorkerState::Ready);
    eventually(&format!("every device works again after a panic at {place:?}"), ready);
}

/// Checks that every accepted op is on the books exactly once.
fn expect_balance(runtime: &Runtime, place: CallSite) {
    for worker in runtime.workers() {
        let counters = worker.counters;
        let ended = counters.completed + counters.failed + counters.cancelled + counters.moved;
        assert_eq!(counters.accepted, ended, "{place:?}: {worker:?}");
        assert_eq!((worker.queued, worker.waiting), (0, 0), "{place:?}");
    }
}

/// Runs ops of every kind while calls at one place panic: awaited, with deadlines, dropped, copied
/// to the host, and on failing devices. Returns how many calls panicked.
fn ops_over_a_trap(place: CallSite, times: u32, policy: FallbackPolicy) -> u64 {
    let traps = traps();
    let script = || Script::new().latency(Duration::from_micros(30)).compiles(Duration::from_micros(10)).resident();
    let (runtime, controls) = runtime(vec![script(), script()], &traps, policy);
    let resident = runtime.run(Transpose::new(&traps::matrix(&traps))).wait().unwrap();
    let before = traps.sprung();
    traps.arm(place, times);
    if place == CallSite::Discover {
        // A search that fails says nothing about the existing devices.
        assert_eq!(runtime.rediscover().unwrap(), []);
    }
    let waker = traps::waker(&traps);
    let mut futures = Vec::new();
    for number in 0..OPS {
        if number % 6 == 0 {
            controls[number / 6 % 2].inject([Fault::Error, Fault::Lost][number / 12 % 2]);
        }
        let input = if number % 4 == 3 { resident.clone() } else { traps::matrix(&traps) };
        let deadline = (number % 5 == 0).then(|| Instant::now() + PATIENCE);
        let options = RunOptions { to_host: number % 3 == 0, deadline, ..RunOptions::default() };
        let mut future = Box::pin(runtime.run_with(Transpose::new(&input), options));
        drop(input);
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        if polled.is_pending() && number % 8 != 7 {
            futures.push(future);
        }
    }
    // An op whose caller goes away before its answer: the slot holds the last handle of its waker.
    controls.iter().for_each(|control| control.inject(Fault::Slow(Duration::from_millis(1))));
    let own = traps::waker(&traps);
    let mut abandoned = Box::pin(runtime.run(Transpose::new(&traps::matrix(&traps))));
    let _ = abandoned.as_mut().poll(&mut Context::from_waker(&own));
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (drop(own), drop(abandoned))));
    for mut future in futures {
        let answer = poll_for(&mut future, &waker, PATIENCE);
        assert!(answer.is_some(), "{place:?}: an op was never answered");
        assert_ne!(answer.unwrap().err(), Some(Error::ShuttingDown), "{place:?}: an op was abandoned");
    }
    // A whole batch whose callers wake each other.
    let batch: Vec<_> = (0..8).map(|_| runtime.run(Map::add(&traps::matrix(&traps), &traps::matrix(&traps)))).collect();
    for op in batch {
        assert!(poll_for(&mut Box::pin(op), &waker, PATIENCE).is_some(), "{place:?}: an op was never answered");
    }
    // A waker that panics when its owner drops it affects only its owner.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(waker)));
    traps.disarm();
    expect_service(&runtime, &traps, place);
    drop(resident);
    let shutdown = runtime.shutdown(PATIENCE);
    assert_eq!((shutdown.drained, shutdown.threads_left), (true, 0), "{place:?}");
    expect_balance(&runtime, place);
    traps.sprung() - before
}

/// Places are tested one after the other, since the listener of events is global.
#[test]
fn a_panic_at_any_place_costs_no_op_its_outcome() {
    let mut never = Vec::new();
    for place in PLACES {
        let sprung: u64 = [(1, FallbackPolicy::None), (3, FallbackPolicy::Alternate), (12, FallbackPolicy::Cpu)]
            .map(|(times, policy)| ops_over_a_trap(place, times, policy))
            .iter()
            .sum();
        if sprung == 0 {
            never.push(place);
        }
    }
    // `supports` is asked for a reason only when no device can run an op, and no kernel stays cold
    // for long.
    assert!(
        never.iter().all(|place| matches!(place, CallSite::Supports | CallSite::WarmUp)),
        "never called: {never:?}"
    );
}

/// Extreme limits and rules: the next ops are served, and a shutdown drains.
#[test]
fn odd_limits_stop_no_worker() {
    let rules = HealthRules { look_every: Duration::MAX, ..HealthRules::default() };
    let limits = WorkerLimits {
        op_time_max: Duration::MAX,
        reopen_wait_min: Duration::MAX,
        reopen_wait_max: Duration::MAX,
        ..WorkerLimits::default()
    };
    let backend = Arc::new(CpuBackend::new());
    let runtime = Runtime::builder().backend(backend).health(rules).limits(limits).build().unwrap();
    let plain = Tensor::from_slice(&[0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0], [2, 3]).unwrap();
    for _ in 0..3 {
        let mut op = Box::pin(runtime.run(Transpose::new(&plain)));
        expect_right(poll_for(&mut op, &unpark(), PATIENCE).unwrap());
    }
    assert!(runtime.shutdown(Duration::MAX).drained);
}

#[test]
fn an_absurd_profile_is_refused_and_a_made_up_one_does_no_harm() {
    let runtime = Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap();
    let plain = Tensor::from_slice(&[0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0], [2, 3]).unwrap();
    expect_right(runtime.run(Transpose::new(&plain)).wait());
    let mut profile = runtime.profile();
    let written = profile.to_text();
    for device in &mut profile.devices {
        for op in &mut device.ops {
            (op.run_log2, op.service_log2, op.output_log2) = (1e11, 1e11, 1e11);
        }
    }
    assert!(profile.to_text().parse::<panoply_runtime::Profile>().is_err());
    assert!(written.parse::<panoply_runtime::Profile>().is_ok());
    for absurd in [1e11, f32::NAN, f32::INFINITY, -1e30, 63.0] {
        for op in profile.devices.iter_mut().flat_map(|device| &mut device.ops) {
            (op.work_log2, op.run_log2, op.service_log2, op.output_log2) = (absurd, absurd, absurd, absurd);
        }
        runtime.use_profile(&profile);
        for _ in 0..3 {
            let mut op = Box::pin(runtime.run(Transpose::new(&plain)));
            expect_right(poll_for(&mut op, &unpark(), PATIENCE).expect("an op was never answered"));
        }
    }
    assert!(runtime.shutdown(PATIENCE).drained);
}

/// Drops its value when it is woken.
struct DropsWhenWoken<T>(Mutex<Option<T>>, Arc<AtomicU64>);

impl<T: Send + 'static> Wake for DropsWhenWoken<T> {
    fn wake(self: Arc<Self>) {
        let held = self.0.lock().unwrap().take();
        drop(held);
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_waker_may_drop_the_last_handle_of_the_runtime_on_any_of_its_threads() {
    let plain = Tensor::from_slice(&[0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0], [2, 3]).unwrap();
    // On the worker's thread, on the timers', on the relay's, and on the supervisor's.
    for (fault, deadline_ms, policy) in [
        (Fault::Slow(Duration::from_millis(20)), None, FallbackPolicy::None),
        (Fault::Slow(Duration::from_millis(300)), Some(20), FallbackPolicy::None),
        (Fault::Error, None, FallbackPolicy::Alternate),
        (Fault::Block(Duration::from_millis(600)), None, FallbackPolicy::None),
    ] {
        let backend = VirtualBackend::new(Arc::new(CpuBackend::new())).device(Script::new());
        let control = backend.control(0).unwrap();
        let limits = WorkerLimits { op_time_max: Duration::from_millis(150), ..limits() };
        let limits = if deadline_ms.is_some() { WorkerLimits { op_time_max: PATIENCE, ..limits } } else { limits };
        let builder = Runtime::builder().backend(Arc::new(backend)).limits(limits).fallback(policy);
        let runtime = Arc::new(builder.build().unwrap());
        control.inject(fault);
        let deadline = deadline_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
        let options = RunOptions { deadline, ..RunOptions::default() };
        let mut first = Box::pin(runtime.run_with(Transpose::new(&plain), options));
        let mut behind: Vec<_> = (0..4).map(|_| Box::pin(runtime.run(Transpose::new(&plain)))).collect();
        let woken = Arc::new(AtomicU64::new(0));
        let waker = Waker::from(Arc::new(DropsWhenWoken(Mutex::new(Some(runtime)), Arc::clone(&woken))));
        let start = Instant::now();
        assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "{fault:?}");
        eventually("the waker has returned", || woken.load(Ordering::SeqCst) > 0);
        assert!(poll_for(&mut first, &unpark(), PATIENCE).is_some(), "{fault:?}");
        for op in &mut behind {
            assert!(poll_for(op, &unpark(), PATIENCE).is_some(), "{fault:?}: an op was never answered");
        }
        assert!(start.elapsed() < Duration::from_secs(8), "{fault:?} took {:?}", start.elapsed());
    }
}

#[test]
fn an_op_that_met_a_full_queue_is_done_though_nobody_polls() {
    let limits = WorkerLimits { queue_depth_max: 2, batch_max: 1, in_flight_max: 1, ..limits() };
    let backend =
        VirtualBackend::new(Arc::new(CpuBackend::new())).device(Script::new().latency(Duration::from_millis(1)));
    let runtime = Runtime::builder().backend(Arc::new(backend)).limits(limits).build().unwrap();
    let plain = Tensor::from_slice(&[0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0], [2, 3]).unwrap();
    let pending: Vec<_> = (0..20).map(|_| runtime.run(Transpose::new(&plain))).collect();
    eventually("all of them are done", || pending.iter().all(|op| op.is_done()));
    pending.into_iter().for_each(|op| expect_right(op.wait()));
}

/// The reaction of a program's own worker to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    Fine,
    PanicInHandle,
    PanicWithAPayloadThatPanics,
    FailWithAnErrorThatPanics,
    ReplyThatPanics,
}

/// Panics when it is dropped, or is asked for its text.
#[derive(Debug)]
struct Bomb(bool);

impl Drop for Bomb {
    fn drop(&mut self) {
        if self.0 && !std::thread::panicking() {
            std::panic::resume_unwind(Box::new("dropped"));
        }
    }
}

impl std::fmt::Display for Bomb {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::panic::resume_unwind(Box::new("shown"))
    }
}

impl std::error::Error for Bomb {}

struct OddWorker {
    _bomb: Bomb,
    tick_panics: bool,
}

impl Worker for OddWorker {
    type Message = (Odd, Bomb);
    type Reply = Bomb;

    fn handle(&mut self, envelope: Envelope<(Odd, Bomb)>) -> Result<Bomb, BoxError> {
        match envelope.message.0 {
            Odd::Fine => Ok(Bomb(false)),
            Odd::PanicInHandle => std::panic::resume_unwind(Box::new("handled")),
            Odd::PanicWithAPayloadThatPanics => std::panic::resume_unwind(Box::new(Bomb(true))),
            Odd::FailWithAnErrorThatPanics => Err(Box::new(Bomb(true))),
            Odd::ReplyThatPanics => Ok(Bomb(true)),
        }
    }

    fn tick(&mut self) -> Result<(), BoxError> {
        if std::mem::take(&mut self.tick_panics) { std::panic::resume_unwind(Box::new("ticked")) } else { Ok(()) }
    }

    fn shutdown(&mut self) {
        std::panic::resume_unwind(Box::new("shut down"))
    }
}

#[test]
fn a_programs_own_worker_may_panic_anywhere() {
    let options = PoolOptions {
        tick_every: Some(Duration::MAX),
        restart_wait_min: Duration::from_micros(50),
        restarts_max: 1000,
        ..PoolOptions::default()
    };
    for tick_every in [Duration::MAX, Duration::from_millis(1)] {
        let options = PoolOptions { tick_every: Some(tick_every), ..options.clone() };
        let make = |_| OddWorker { _bomb: Bomb(true), tick_panics: true };
        let pool: WorkerPool<OddWorker> = WorkerPool::start(options, make).unwrap();
        let kinds = [
            Odd::Fine,
            Odd::PanicInHandle,
            Odd::PanicWithAPayloadThatPanics,
            Odd::FailWithAnErrorThatPanics,
            Odd::ReplyThatPanics,
        ];
        for round in 0..20 {
            let odd = kinds[round % kinds.len()];
            // The reply of this message is not taken.
            pool.send((odd, Bomb(round % 2 == 0))).unwrap();
            let reply = pool.request((odd, Bomb(false))).unwrap().wait_for(PATIENCE);
            match reply {
                Ok(bomb) => std::mem::forget(bomb),
                Err(WorkerError::TimedOut { .. }) => panic!("{odd:?} was never answered"),
                Err(_) => assert_ne!(odd, Odd::Fine),
            }
        }
        // Every second message panics when the worker drops it, and the next one is served.
        eventually("it runs", || pool.request((Odd::Fine, Bomb(false))).unwrap().wait_for(Duration::MAX).is_ok());
        // Its tick panics too, so it runs only between two ticks.
        eventually("it runs between ticks", || pool.health()[0].status == WorkerStatus::Running);
        assert_eq!(pool.stop()[0].status, WorkerStatus::Stopped);
    }
}

#[test]
fn messages_that_panic_when_they_are_refused_are_answered_all_the_same() {
    struct Fails;
    impl Worker for Fails {
        type Message = Bomb;
        type Reply = ();
        fn handle(&mut self, envelope: Envelope<Bomb>) -> Result<(), BoxError> {
            std::thread::sleep(Duration::from_millis(20));
            std::mem::forget(envelope.message);
            Err("always".into())
        }
    }
    let options = PoolOptions { restarts_max: 0, queue_depth_max: 64, ..PoolOptions::default() };
    let pool = WorkerPool::start(options, |_| Fails).unwrap();
    let replies: Vec<_> = (0..32).map(|_| pool.request(Bomb(true)).unwrap()).collect();
    for reply in replies {
        let answer = reply.wait_for(PATIENCE);
        assert!(matches!(answer, Err(WorkerError::Failed { .. } | WorkerError::GivenUp { .. })), "{answer:?}");
    }
    assert!(matches!(pool.stop()[0].status, WorkerStatus::GivenUp { .. }));
}

#[test]
fn a_pool_that_waits_for_a_restart_stops_at_once_and_may_be_dropped_by_its_own_worker() {
    struct Once(Option<Arc<WorkerPool<Once>>>);
    impl Worker for Once {
        type Message = Option<Arc<WorkerPool<Once>>>;
        type Reply = ();
        fn handle(&mut self, envelope: Envelope<Self::Message>) -> Result<(), BoxError> {
            match envelope.message {
                Some(pool) => self.0 = Some(pool),
                None if self.0.is_some() => drop(self.0.take()),
                None => return Err("asked to".into()),
            }
            Ok(())
        }
    }
    let options =
        PoolOptions { restart_wait_min: Duration::MAX, restart_wait_max: Duration::MAX, ..PoolOptions::default() };
    let pool = WorkerPool::start(options, |_| Once(None)).unwrap();
    assert!(pool.request(None).unwrap().wait_for(PATIENCE).is_err());
    let start = Instant::now();
    pool.stop();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());

    let pool = Arc::new(WorkerPool::start(PoolOptions::default(), |_| Once(None)).unwrap());
    pool.send(Some(Arc::clone(&pool))).unwrap();
    let last = pool.request(None).unwrap();
    drop(pool);
    assert_eq!(last.wait_for(PATIENCE), Ok(()), "a pool is dropped on its worker's own thread");
    let named = PoolOptions { name: "a\0b".to_owned(), ..PoolOptions::default() };
    assert!(matches!(
        WorkerPool::start(named, |_| Once(None)).err(),
        Some(WorkerError::BadOption { what: "name", .. })
    ));
}
