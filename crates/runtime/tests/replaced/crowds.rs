//! Many callers of one device, several of which have wakers or destructors that do not return:
//! every op has its outcome, every blocked caller gets it, and a shutdown ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use panoply_core::Tensor;
use panoply_cpu::CpuBackend;
use panoply_runtime::{FallbackPolicy, HealthRules, Pending, RunOptions, Runtime, WorkerLimits};

use super::callers::{Gate, awaited, awaited_unless_done, awaited_with, occupy, threads_of_runtimes, until};
use crate::{Call, Control, OP_TIME_MAX, StuckBackend, op};

fn runtime(limits: WorkerLimits) -> (Arc<Runtime>, Arc<Control>) {
    let control = Arc::new(Control::default());
    let limits = WorkerLimits {
        op_time_max: limits.op_time_max.min(OP_TIME_MAX),
        reopen_wait_min: Duration::from_millis(1),
        reopen_wait_max: Duration::from_millis(2),
        ..limits
    };
    let rules = HealthRules { look_every: Duration::from_secs(60), error_percent_max: 100.0, ..HealthRules::default() };
    let backend = Arc::new(StuckBackend(CpuBackend::new(), Arc::clone(&control)));
    let builder = Runtime::builder().backend(backend).limits(limits).health(rules).fallback(FallbackPolicy::None);
    (Arc::new(builder.build().unwrap()), control)
}

/// Callers that block until they have their outcomes.
fn blocked(runtime: &Arc<Runtime>, count: usize) -> Vec<std::thread::JoinHandle<()>> {
    let caller = || {
        let pending = runtime.run(op());
        std::thread::spawn(move || drop(pending.wait()))
    };
    (0..count).map(|_| caller()).collect()
}

type BoxedPending = std::pin::Pin<Box<Pending<Tensor>>>;

fn all_done(awaited: &[BoxedPending], blocked: &[std::thread::JoinHandle<()>]) -> bool {
    awaited.iter().all(|op| op.is_done()) && blocked.iter().all(std::thread::JoinHandle::is_finished)
}

#[test]
fn wakers_that_do_not_return_keep_nobody_who_was_inside_the_same_engine() {
    let (runtime, control) = runtime(WorkerLimits::default());
    let gate = Arc::new(Gate::default());
    let first = occupy(&runtime, &control);
    let stuck: Vec<BoxedPending> = (0..5).map(|_| awaited(&runtime, &gate)).collect();
    let callers = blocked(&runtime, 5);
    control.get_stuck(Call::Submit, false);
    control.let_go.store(1, Ordering::SeqCst);
    until("every op is answered", || all_done(&stuck, &callers));
    drop(first);
    gate.open.store(true, Ordering::SeqCst);
    control.let_go(2);
}

#[test]
fn wakers_that_do_not_return_keep_nobody_whose_device_is_given_up() {
    let limits = WorkerLimits { batch_max: 1, in_flight_max: 1, reopen_attempts_max: 0, ..WorkerLimits::default() };
    let (runtime, control) = runtime(limits);
    let gate = Arc::new(Gate::default());
    let first = occupy(&runtime, &control);
    let lost = runtime.run(op());
    let stuck: Vec<BoxedPending> = (0..5).map(|_| awaited(&runtime, &gate)).collect();
    let callers = blocked(&runtime, 5);
    control.lose_next.store(true, Ordering::SeqCst);
    control.let_go(1);
    until("every op is answered", || all_done(&stuck, &callers));
    drop((first, lost));
    gate.open.store(true, Ordering::SeqCst);
}

#[test]
fn a_waker_that_does_not_return_keeps_nobody_who_is_answered_at_the_same_time() {
    for stuck_at in [0, 2, 5] {
        let (runtime, control) = runtime(WorkerLimits::default());
        let gate = Arc::new(Gate::default());
        let first = occupy(&runtime, &control);
        let mut callers = blocked(&runtime, stuck_at);
        let stuck = vec![awaited(&runtime, &gate)];
        callers.extend(blocked(&runtime, 12 - stuck_at));
        // Long enough that all of them have parked.
        std::thread::sleep(Duration::from_millis(50));
        control.let_go(1);
        until("every op is answered", || all_done(&stuck, &callers));
        drop(first);
        gate.open.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_shutdown_ends_though_wakers_of_those_who_wait_for_room_do_not_return() {
    let limits = WorkerLimits { batch_max: 1, in_flight_max: 1, queue_depth_max: 2, ..WorkerLimits::default() };
    let (runtime, control) = runtime(limits);
    let gate = Arc::new(Gate::default());
    let first = occupy(&runtime, &control);
    let queued: Vec<Pending<Tensor>> = (0..2).map(|_| runtime.run(op())).collect();
    let stuck: Vec<BoxedPending> = (0..3).map(|_| awaited(&runtime, &gate)).collect();
    let callers = blocked(&runtime, 3);
    let ends = std::thread::spawn({
        let runtime = Arc::clone(&runtime);
        move || runtime.shutdown(Duration::from_millis(50))
    });
    until("the shutdown ends", || ends.is_finished());
    until("every op is answered", || all_done(&stuck, &callers));
    until("those in the queue too", || queued.iter().all(|op| op.is_done()) && first.is_done());
    gate.open.store(true, Ordering::SeqCst);
    control.let_go(1);
}

#[test]
fn a_shutdown_ends_though_the_waker_of_a_deadline_does_not_return() {
    let (runtime, control) = runtime(WorkerLimits::default());
    let gate = Arc::new(Gate::default());
    let first = occupy(&runtime, &control);
    let options = RunOptions::default().deadline(Instant::now() + Duration::from_secs(3600));
    let stuck: Vec<BoxedPending> = (0..3).map(|_| awaited_with(&runtime, &gate, options.clone())).collect();
    let ends = std::thread::spawn({
        let runtime = Arc::clone(&runtime);
        move || runtime.shutdown(Duration::from_millis(50))
    });
    until("the shutdown ends", || ends.is_finished());
    until("every op is answered", || all_done(&stuck, &[]) && first.is_done());
    gate.open.store(true, Ordering::SeqCst);
    control.let_go(1);
}

#[test]
fn a_thousand_wakers_that_do_not_return_keep_few_threads_and_no_outcome() {
    let op_time_max = Duration::from_millis(40);
    let (runtime, control) = runtime(WorkerLimits { queue_depth_max: 1024, op_time_max, ..WorkerLimits::default() });
    let gate = Arc::new(Gate::default());
    let first = occupy(&runtime, &control);
    let options = RunOptions::default().deadline(Instant::now() + Duration::from_millis(20));
    let before = threads_of_runtimes();
    let crowd = (0..1000).filter_map(|_| awaited_unless_done(&runtime, &gate, options.clone()));
    let stuck: Vec<BoxedPending> = crowd.collect();
    assert!(stuck.len() > 50);
    // Deadlines ring, late ops are dropped, and the device is given up: each time wakers are
    // called.
    until("deadlines ring", || gate.entered.load(Ordering::SeqCst) > 2);
    control.let_go.store(1, Ordering::SeqCst);
    until("every op is answered", || all_done(&stuck, &[]) && first.is_done());
    let kept = || threads_of_runtimes().saturating_sub(before);
    let mut most = 0;
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(7) {
        most = most.max(kept());
        std::thread::sleep(Duration::from_millis(5));
    }
    // Timers, errands and the device's own threads: each kind has its bound. Other tests have
    // threads, too.
    assert!(most < 3 * 17 + 24, "{most} threads");
    gate.open.store(true, Ordering::SeqCst);
    until("the threads come back", || kept() < 24);
}
