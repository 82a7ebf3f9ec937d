//! Callers' wakers and destructors that do not return, on the worker's own thread: the worker
//! counts as stuck, as it does inside its engine, and every other op is served.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use panoply_core::op::compute::Transpose;
use panoply_core::{Error, Tensor};
use panoply_cpu::CpuBackend;
use panoply_runtime::{FallbackPolicy, HealthRules, Pending, Pools, RunOptions, Runtime, WorkerLimits, WorkerState};

use crate::{Call, Control, OP_TIME_MAX, STUCK_MAX, StuckBackend, op, serve};

/// Foreign code that does not return until it is released.
#[derive(Default)]
pub(crate) struct Gate {
    pub(crate) entered: AtomicU64,
    pub(crate) open: AtomicBool,
}

impl Gate {
    fn pass(&self) {
        self.entered.fetch_add(1, Ordering::SeqCst);
        let start = Instant::now();
        while !self.open.load(Ordering::SeqCst) && start.elapsed() < STUCK_MAX {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Memory whose destructor does not return.
struct Owner([f32; 6], Arc<Gate>);

impl AsRef<[f32]> for Owner {
    fn as_ref(&self) -> &[f32] {
        &self.0
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.1.pass();
    }
}

/// A waker that does not return.
struct Wakes(Arc<Gate>);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.pass();
    }
}

fn runtime(reopen_attempts_max: u32) -> (Runtime, Arc<Control>) {
    let control = Arc::new(Control::default());
    let limits = WorkerLimits {
        op_time_max: OP_TIME_MAX,
        batch_max: 1,
        in_flight_max: 1,
        reopen_wait_min: Duration::from_millis(1),
        reopen_wait_max: Duration::from_millis(2),
        reopen_attempts_max,
        stuck_threads_max: 4,
        ..WorkerLimits::default()
    };
    let rules = HealthRules { look_every: Duration::from_secs(60), error_percent_max: 100.0, ..HealthRules::default() };
    let backend = Arc::new(StuckBackend(CpuBackend::new(), Arc::clone(&control)));
    let builder = Runtime::builder()
        .pools(Pools::none())
        .backend(backend)
        .limits(limits)
        .health(rules)
        .fallback(FallbackPolicy::None);
    (builder.build().unwrap(), control)
}

/// Keeps the worker inside the engine with one op, so that later ops wait in the queue.
pub(crate) fn occupy(runtime: &Runtime, control: &Control) -> Pending<Tensor> {
    control.get_stuck(Call::Submit, false);
    let pending = runtime.run(op());
    until("the worker is inside the engine", || control.stuck.load(Ordering::SeqCst) > 0);
    pending
}

pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(10), "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Number of threads of all runtimes of this process; 0 if the system does not report it.
pub(crate) fn threads_of_runtimes() -> usize {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    let name = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
    tasks.flatten().map(name).filter(|name| name.starts_with("panoply-")).count()
}

/// An op whose caller's waker does not return.
pub(crate) fn awaited(runtime: &Runtime, gate: &Arc<Gate>) -> std::pin::Pin<Box<Pending<Tensor>>> {
    awaited_with(runtime, gate, RunOptions::default())
}

/// [`awaited`] with options.
pub(crate) fn awaited_with(
    runtime: &Runtime,
    gate: &Arc<Gate>,
    options: RunOptions,
) -> std::pin::Pin<Box<Pending<Tensor>>> {
    let awaited = awaited_unless_done(runtime, gate, options);
    assert!(awaited.is_some(), "it was done at once");
    awaited.unwrap()
}

/// [`awaited_with`]; `None` if the outcome arrives at once.
pub(crate) fn awaited_unless_done(
    runtime: &Runtime,
    gate: &Arc<Gate>,
    options: RunOptions,
) -> Option<std::pin::Pin<Box<Pending<Tensor>>>> {
    let mut pending = Box::pin(runtime.run_with(op(), options));
    let waker = Waker::from(Arc::new(Wakes(Arc::clone(gate))));
    pending.as_mut().poll(&mut Context::from_waker(&waker)).is_pending().then_some(pending)
}

#[test]
fn a_destructor_of_a_cancelled_op_that_does_not_return_is_noticed() {
    let (runtime, control) = runtime(10);
    let (gate, first) = (Arc::new(Gate::default()), occupy(&runtime, &control));
    let input = Tensor::from_owner::<f32, _>(Owner([0.0; 6], Arc::clone(&gate)), [2, 3]).unwrap();
    drop(runtime.run(Transpose::new(&input)));
    drop(input);
    let behind = runtime.run(op());
    control.let_go(1);
    until("the worker drops the cancelled op", || gate.entered.load(Ordering::SeqCst) > 0);
    until("the op behind it is answered", || behind.is_done());
    assert!(behind.wait().is_ok());
    let _ = first.wait();
    assert!(runtime.workers()[0].counters.replaced >= 1);
    gate.open.store(true, Ordering::SeqCst);
    serve(&runtime);
    assert!(runtime.shutdown(Duration::from_secs(5)).drained);
}

#[test]
fn a_waker_of_an_op_that_was_lost_with_its_engine_is_noticed() {
    let (runtime, control) = runtime(10);
    let (gate, first) = (Arc::new(Gate::default()), occupy(&runtime, &control));
    let lost = awaited(&runtime, &gate);
    let behind = runtime.run(op());
    // The next submission panics: the engine is lost with the op, which is answered outside of any
    // engine call.
    control.lose_next.store(true, Ordering::SeqCst);
    control.let_go(1);
    until("the worker wakes the caller", || gate.entered.load(Ordering::SeqCst) > 0);
    until("the op behind it is answered", || behind.is_done());
    assert!(lost.is_done() && behind.wait().is_ok());
    let _ = first.wait();
    assert!(runtime.workers()[0].counters.replaced >= 1);
    gate.open.store(true, Ordering::SeqCst);
    serve(&runtime);
}

#[test]
fn a_waker_that_does_not_return_while_a_device_is_given_up_keeps_no_other_op_from_its_outcome() {
    let (runtime, control) = runtime(0);
    let (gate, first) = (Arc::new(Gate::default()), occupy(&runtime, &control));
    let lost = runtime.run(op());
    let blocks = awaited(&runtime, &gate);
    let behind: Vec<_> = (0..5).map(|_| runtime.run(op())).collect();
    control.lose_next.store(true, Ordering::SeqCst);
    control.let_go(1);
    until("every op is answered", || blocks.is_done() && behind.iter().all(|op| op.is_done()));
    for answer in behind.into_iter().map(Pending::wait) {
        assert!(matches!(answer, Err(Error::DeviceUnavailable { .. })), "{answer:?}");
    }
    assert!(gate.entered.load(Ordering::SeqCst) > 0);
    drop((first, lost));
    assert_eq!(runtime.workers()[0].state, WorkerState::Failed);
    gate.open.store(true, Ordering::SeqCst);
}

#[test]
fn a_waker_that_does_not_return_keeps_no_supervisor() {
    let (runtime, control) = runtime(10);
    let gate = Arc::new(Gate::default());
    // The op's own call into the engine is stuck. The supervisor answers it, and its waker does not
    // return either.
    control.get_stuck(Call::Submit, false);
    let stuck = awaited(&runtime, &gate);
    until("the supervisor answers it", || gate.entered.load(Ordering::SeqCst) > 0);
    assert!(stuck.is_done());
    serve(&runtime);
    // Another stuck worker is still noticed.
    control.get_stuck(Call::Submit, false);
    let answer = runtime.run(op()).wait();
    assert!(matches!(answer, Err(Error::Timeout { .. })), "{answer:?}");
    assert!(runtime.workers()[0].counters.replaced >= 2);
    gate.open.store(true, Ordering::SeqCst);
    control.let_go(2);
}

#[test]
fn a_shutdown_ends_though_a_waker_does_not_return() {
    for stuck_first in [true, false] {
        let (runtime, control) = runtime(10);
        let gate = Arc::new(Gate::default());
        let first = occupy(&runtime, &control);
        let (blocks, behind) = (awaited(&runtime, &gate), runtime.run(op()));
        if !stuck_first {
            // The worker itself wakes the caller of an op that succeeds.
            control.let_go(1);
            until("the waker is called", || gate.entered.load(Ordering::SeqCst) > 0);
        }
        let start = Instant::now();
        let shutdown = runtime.shutdown(Duration::from_millis(50));
        assert!(start.elapsed() < Duration::from_secs(8), "it took {:?}", start.elapsed());
        until("every op is answered", || first.is_done() && blocks.is_done() && behind.is_done());
        assert!(!shutdown.drained && shutdown.threads_left <= 2, "{shutdown:?}");
        gate.open.store(true, Ordering::SeqCst);
        control.let_go(1);
    }
}

#[test]
fn absurd_time_limits_leave_no_op_without_an_outcome() {
    for op_time_max in [Duration::from_nanos(1), Duration::from_micros(50), Duration::MAX] {
        let limits = WorkerLimits {
            op_time_max,
            reopen_wait_min: Duration::ZERO,
            reopen_wait_max: Duration::from_millis(1),
            reopen_attempts_max: u32::MAX,
            stuck_threads_max: u32::MAX,
            ..WorkerLimits::default()
        };
        let control = Arc::new(Control::default());
        let backend = Arc::new(StuckBackend(CpuBackend::new(), Arc::clone(&control)));
        let builder = Runtime::builder().backend(backend).limits(limits).fallback(FallbackPolicy::Retry { times: 2 });
        let runtime = builder.build().unwrap();
        let ops: Vec<_> = (0..200).map(|_| runtime.run(op())).collect();
        until("every op has an outcome", || ops.iter().all(|op| op.is_done()));
        let right = ops.into_iter().filter_map(|op| op.wait().ok()).count();
        assert!(op_time_max < Duration::MAX || right == 200, "{right} were right");
        let start = Instant::now();
        runtime.shutdown(Duration::from_secs(2));
        assert!(start.elapsed() < Duration::from_secs(8));
    }
}
