//! The runtime's guarantees while devices fail on command.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_conformance::virtual_device::{Fault, Script, VirtualBackend, VirtualControl};
use panoply_core::op::compute::{ComputeOp, Transfer, Transpose};
use panoply_core::{
    Absence, Api, Backend, DType, DeviceId, DeviceInfo, Engine, Error, ErrorKind, FinishedOp, Health, Item, Location,
    MemoryStats, Op, OpenOptions, Result, Support, Tensor, Value,
};
use panoply_cpu::CpuBackend;
use panoply_runtime::{BuildError, RunOptions, Runtime, WorkerLimits, WorkerState};

fn limits() -> WorkerLimits {
    WorkerLimits {
        op_time_max: Duration::from_millis(300),
        reopen_wait_min: Duration::from_millis(1),
        reopen_wait_max: Duration::from_millis(4),
        ..WorkerLimits::default()
    }
}

fn runtime(script: Script, limits: WorkerLimits) -> (Runtime, Arc<VirtualControl>) {
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new())).device(script);
    let control = backend.control(0).unwrap();
    (Runtime::builder().backend(Arc::new(backend)).limits(limits).build().unwrap(), control)
}

fn matrix() -> Tensor {
    Tensor::from_vec((0..6).map(|value| value as f32).collect(), [2, 3]).unwrap()
}

fn op() -> Transpose {
    Transpose::new(&matrix())
}

fn expect_right(answer: panoply_core::Result<Tensor>) {
    assert_eq!(answer.unwrap().as_slice::<f32>().unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
}

#[test]
fn each_fault_is_a_typed_error_and_the_next_op_succeeds() {
    // A generous limit: a panic that prints its backtrace is slow on a busy machine.
    let (runtime, control) = runtime(Script::new(), WorkerLimits { op_time_max: Duration::from_secs(1), ..limits() });
    type ErrorCheck = fn(&Error) -> bool;
    let faults: [(Fault, ErrorCheck); 8] = [
        (Fault::Error, |error| matches!(error, Error::DeviceFault { .. })),
        (Fault::OutOfMemory, |error| matches!(error, Error::OutOfMemory { .. })),
        (Fault::Lost, |error| matches!(error, Error::DeviceLost { .. })),
        (Fault::Panic, |error| matches!(error, Error::EnginePanicked { message, .. } if message.contains("script"))),
        (Fault::Forget, |error| matches!(error, Error::DeviceFault { .. })),
        (Fault::Hang, |error| matches!(error, Error::Timeout { .. })),
        (Fault::Block(Duration::from_millis(2500)), |error| matches!(error, Error::Timeout { .. })),
        (Fault::Lost, |error| error.kind() == ErrorKind::Device),
    ];
    for (fault, expected) in faults {
        control.inject(fault);
        let error = runtime.run(op()).wait().unwrap_err();
        assert!(expected(&error), "{fault:?} gave {error:?}");
        expect_right(runtime.run(op()).wait());
    }
    control.inject(Fault::Twice);
    expect_right(runtime.run(op()).wait());
    expect_right(runtime.run(op()).wait());
    let report = &runtime.workers()[0];
    assert_eq!((report.counters.stray_answers, report.counters.panics, report.counters.replaced), (1, 1, 1));
    assert_eq!(report.state, WorkerState::Ready);
    assert!(report.counters.reopened >= 4);
}

#[test]
fn a_wrong_answer_reaches_the_caller_as_the_device_gave_it() {
    let (runtime, control) = runtime(Script::new(), limits());
    control.inject(Fault::WrongAnswer);
    let wrong = runtime.run(op()).wait().unwrap();
    assert_eq!(wrong.as_slice::<f32>().unwrap()[5], -5.0);
}

#[test]
fn a_full_queue_is_busy_for_try_run_and_a_wait_for_run() {
    let limits = WorkerLimits { queue_depth_max: 4, batch_max: 1, in_flight_max: 1, ..limits() };
    let (runtime, _) = runtime(Script::new().latency(Duration::from_millis(2)), limits);
    let mut accepted = Vec::new();
    let busy = loop {
        match runtime.try_run(op()) {
            Ok(pending) => accepted.push(pending),
            Err(error) => break error,
        }
        assert!(accepted.len() < 100);
    };
    assert!(matches!(busy, Error::Busy { queue_depth_max: 4, .. }), "{busy:?}");
    assert_eq!(busy.kind(), ErrorKind::Capacity);
    for _ in 0..12 {
        accepted.push(runtime.run(op()));
    }
    accepted.into_iter().for_each(|pending| expect_right(pending.wait()));
}

#[test]
fn callers_that_wait_for_room_get_in_however_many_others_try() {
    let limits = WorkerLimits { queue_depth_max: 2, batch_max: 1, in_flight_max: 1, ..limits() };
    let (runtime, _) = runtime(Script::new().latency(Duration::from_micros(100)), limits);
    let end = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Two callers that try again and again, and would take every slot that becomes free.
        for _ in 0..2 {
            scope.spawn(|| {
                while !end.load(std::sync::atomic::Ordering::Relaxed) {
                    let tried: Vec<_> = (0..4).filter_map(|_| runtime.try_run(op()).ok()).collect();
                    tried.into_iter().for_each(|pending| expect_right(pending.wait()));
                }
            });
        }
        let call = || (0..20).for_each(|_| expect_right(runtime.run(op()).wait()));
        let waiters: Vec<_> = (0..6).map(|_| scope.spawn(call)).collect();
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        end.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn ops_that_wait_for_room_are_answered_in_the_order_in_which_they_came() {
    struct Note(usize, Arc<std::sync::Mutex<Vec<usize>>>);
    impl std::task::Wake for Note {
        fn wake(self: Arc<Self>) {
            self.1.lock().unwrap().push(self.0);
        }
    }
    let limits = WorkerLimits { queue_depth_max: 2, batch_max: 1, in_flight_max: 1, ..limits() };
    let (runtime, control) = runtime(Script::new(), limits);
    control.inject(Fault::Slow(Duration::from_millis(150)));
    let answered = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut pending = vec![Box::pin(runtime.run(op()))];
    // Once the device has the first op, two get into the queue, and the others find it full.
    while runtime.workers()[0].queued > 0 {
        std::thread::yield_now();
    }
    pending.extend((1..12).map(|_| Box::pin(runtime.run(op()))));
    // Ops that found the queue full wait from here on, and are not polled again before they are
    // done.
    for (number, op) in pending.iter_mut().enumerate() {
        let waker = std::task::Waker::from(Arc::new(Note(number, Arc::clone(&answered))));
        if op.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_ready() {
            waker.wake();
        }
    }
    let full = runtime.workers()[0].waiting > 0;
    assert!(!full || matches!(runtime.try_run(op()), Err(Error::Busy { .. })), "nobody gets past those who wait");
    let start = Instant::now();
    while answered.lock().unwrap().len() < pending.len() && start.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(*answered.lock().unwrap(), (0..12).collect::<Vec<_>>());
}

#[test]
fn awaited_ops_need_no_executor_of_ours() {
    let limits = WorkerLimits { queue_depth_max: 2, batch_max: 1, in_flight_max: 1, ..limits() };
    let (runtime, _) = runtime(Script::new().latency(Duration::from_micros(300)), limits);
    block_on(async {
        let pending: Vec<_> = (0..20).map(|_| runtime.run(op())).collect();
        for op in pending {
            expect_right(op.await);
        }
        let outcome = runtime.run(op()).with_report().await.unwrap();
        assert_eq!(outcome.report.device, DeviceId { api: Api::SIMULATED, index: 0 });
        assert!(outcome.report.ran >= Duration::from_micros(300));
        assert_eq!(outcome.report.bytes_moved, 48);
    });
}

#[test]
fn deadlines_hold_for_blocked_and_for_awaited_callers() {
    let slow = WorkerLimits { op_time_max: Duration::from_secs(5), in_flight_max: 1, ..limits() };
    let (runtime, control) = runtime(Script::new(), slow);
    let soon = || RunOptions { deadline: Some(Instant::now() + Duration::from_millis(20)), ..RunOptions::default() };
    let past = RunOptions { deadline: Some(Instant::now() - Duration::from_millis(1)), ..RunOptions::default() };
    assert!(matches!(runtime.run_with(op(), past).wait(), Err(Error::DeadlineExceeded { .. })));
    control.inject(Fault::Slow(Duration::from_millis(900)));
    let start = Instant::now();
    let first = runtime.run(op());
    let blocked = runtime.run_with(op(), soon()).wait();
    assert!(matches!(blocked, Err(Error::DeadlineExceeded { .. })), "{blocked:?}");
    let awaited = block_on(async { runtime.run_with(op(), soon()).await });
    assert!(matches!(awaited, Err(Error::DeadlineExceeded { .. })), "{awaited:?}");
    assert!(start.elapsed() < Duration::from_millis(850));
    expect_right(first.wait());
}

#[test]
fn a_dropped_future_cancels_what_has_not_started() {
    let limits = WorkerLimits { batch_max: 1, in_flight_max: 1, op_time_max: Duration::from_secs(10), ..limits() };
    let (runtime, control) = runtime(Script::new(), limits);
    control.inject(Fault::Slow(Duration::from_millis(250)));
    let first = runtime.run(op());
    let rest: Vec<_> = (0..10).map(|_| runtime.run(op())).collect();
    drop(rest);
    expect_right(first.wait());
    expect_right(runtime.run(op()).wait());
    let counters = runtime.workers()[0].counters;
    assert_eq!((counters.accepted, counters.completed, counters.cancelled), (12, 2, 10));
}

#[test]
fn outputs_stay_on_the_device_and_their_memory_comes_home() {
    let (runtime, control) = runtime(Script::new().resident().memory_bytes(64), limits());
    let device = DeviceId { api: Api::SIMULATED, index: 0 };
    let turned = runtime.run(op()).wait().unwrap();
    assert_eq!(turned.location(), Location::Device(device));
    assert!(matches!(turned.host_elements::<f32>(), Err(Error::NotOnHost { .. })));
    assert_eq!(control.counters().live_bytes, 24);
    let back = runtime.run(Transpose::new(&turned)).wait().unwrap();
    assert!(matches!(runtime.run(op()).wait(), Err(Error::OutOfMemory { asked: 24, free: 16, .. })));
    drop(turned);
    let fetched = runtime.run(Transfer::to_host(&back)).wait().unwrap();
    assert_eq!(fetched.as_slice::<f32>().unwrap(), matrix().as_slice::<f32>().unwrap());
    drop(back);
    expect_right(runtime.run(Transfer::to_host(&runtime.run(op()).wait().unwrap())).wait());
    runtime.shutdown(Duration::from_secs(5));
    assert_eq!(control.counters().live_bytes, 0);
}

#[test]
fn a_buffer_of_a_lost_device_is_an_error_not_a_crash() {
    let (runtime, control) = runtime(Script::new().resident(), limits());
    let turned = runtime.run(op()).wait().unwrap();
    control.inject(Fault::Lost);
    assert!(runtime.run(op()).wait().is_err());
    let error = runtime.run(Transfer::to_host(&turned)).wait().unwrap_err();
    assert!(matches!(error, Error::DeviceFault { .. }), "{error:?}");
}

#[test]
fn a_device_that_cannot_be_opened_again_is_given_up_with_its_reason() {
    let limits = WorkerLimits { reopen_attempts_max: 2, ..limits() };
    let (runtime, control) = runtime(Script::new().gone_after_opens(1), limits);
    expect_right(runtime.run(op()).wait());
    control.inject(Fault::Lost);
    assert!(runtime.run(op()).wait().is_err());
    let start = Instant::now();
    while runtime.workers()[0].state != WorkerState::Failed {
        assert!(start.elapsed() < Duration::from_secs(5));
        std::thread::sleep(Duration::from_millis(1));
    }
    let error = runtime.run(op()).wait().unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    let here = RunOptions { device: Some(DeviceId { api: Api::SIMULATED, index: 0 }), ..RunOptions::default() };
    let error = runtime.run_with(op(), here).wait().unwrap_err();
    assert!(matches!(&error, Error::DeviceUnavailable { reason, .. } if reason.contains("gone")), "{error:?}");
}

#[test]
fn opening_is_tried_again() {
    let (runtime, control) = runtime(Script::new().failing_opens(3), limits());
    expect_right(runtime.run(op()).wait());
    assert_eq!(control.counters().opened, 1);
}

#[test]
fn shutdown_drains_and_abort_does_not() {
    // All ops together take longer than the limit for one op.
    let (draining, _) = runtime(Script::new().latency(Duration::from_millis(2)), limits());
    let pending: Vec<_> = (0..250).map(|_| draining.run(op())).collect();
    let shutdown = draining.shutdown(Duration::from_secs(10));
    assert_eq!((shutdown.drained, shutdown.threads_left), (true, 0));
    pending.into_iter().for_each(|pending| expect_right(pending.wait()));
    assert!(matches!(draining.run(op()).wait(), Err(Error::Unsupported { .. } | Error::ShuttingDown)));

    let (aborting, _) = runtime(Script::new().latency(Duration::from_millis(30)), limits());
    let pending: Vec<_> = (0..50).map(|_| aborting.run(op())).collect();
    aborting.abort();
    let answers: Vec<_> = pending.into_iter().map(|pending| pending.wait()).collect();
    assert!(answers.iter().any(|answer| matches!(answer, Err(Error::ShuttingDown))));
    assert!(answers.iter().all(|answer| matches!(answer, Ok(_) | Err(Error::ShuttingDown))));
}

#[test]
fn shutdown_is_bounded_even_when_the_engine_is_stuck() {
    let (runtime, control) = runtime(Script::new(), WorkerLimits { op_time_max: Duration::from_secs(60), ..limits() });
    control.inject(Fault::Block(Duration::from_secs(3)));
    let pending: Vec<_> = (0..5).map(|_| runtime.run(op())).collect();
    std::thread::sleep(Duration::from_millis(20));
    let start = Instant::now();
    let shutdown = runtime.shutdown(Duration::from_millis(50));
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!((shutdown.drained, shutdown.threads_left), (false, 1));
    for pending in pending {
        assert!(matches!(pending.wait(), Err(Error::ShuttingDown)));
    }
}

#[test]
fn wrong_devices_and_limits_are_refused_at_once() {
    let (runtime, _) = runtime(Script::new(), limits());
    let nowhere = RunOptions { device: Some(DeviceId { api: Api::CUDA, index: 7 }), ..RunOptions::default() };
    let error = runtime.run_with(op(), nowhere).wait().unwrap_err();
    assert!(matches!(&error, Error::NoSuchDevice { known, .. } if known == "simulated:0"), "{error:?}");
    let bad = Transpose::with_order(&matrix(), &[0, 0]);
    assert_eq!(runtime.run(bad).wait().unwrap_err().kind(), ErrorKind::Caller);
    let none = Runtime::builder().build().err().unwrap();
    assert!(matches!(none, BuildError::NoDevice { .. }));
    let cpu = Arc::new(CpuBackend::new());
    for queue_depth_max in [0, (1 << 20) + 1, usize::MAX] {
        let limits = WorkerLimits { queue_depth_max, ..WorkerLimits::default() };
        let backend = Arc::clone(&cpu) as Arc<dyn Backend>;
        let refused = Runtime::builder().backend(backend).limits(limits).build().err();
        assert!(matches!(refused, Some(BuildError::BadLimit { what: "queue_depth_max", .. })), "{queue_depth_max}");
    }
}

#[test]
fn the_cpu_answers_through_the_whole_runtime() {
    let runtime = Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap();
    for _ in 0..100 {
        expect_right(runtime.run(op()).wait());
    }
    let empty = Tensor::zeros(DType::U8, [0, 3]).unwrap();
    assert_eq!(runtime.run(Transpose::new(&empty)).wait().unwrap().shape().dims(), [3, 0]);
}

/// A minimal executor: polls on this thread and parks in between.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = std::task::Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = std::task::Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        std::thread::park();
    }
}

/// A device whose copies to the host do not arrive: each answer is the tensor on the device.
struct Astray(VirtualBackend);

impl Backend for Astray {
    fn api(&self) -> Api {
        self.0.api()
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        self.0.discover()
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        self.0.supports(device, op)
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        Ok(Box::new(AstrayEngine(self.0.open(device, options)?, Vec::new())))
    }
}

struct AstrayEngine(Box<dyn Engine>, Vec<FinishedOp>);

impl Engine for AstrayEngine {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        let (copies, others) = std::mem::take(batch).into_iter().partition::<Vec<_>, _>(|item| {
            matches!(&item.op, Op::Compute(ComputeOp::Transfer(Transfer { to: Location::Host, .. })))
        });
        for item in copies {
            let mut input = None;
            item.op.for_each_tensor(&mut |tensor| input = Some(tensor.clone()));
            self.1.push(FinishedOp::alone(item, Ok(Value::Tensor(input.unwrap()))));
        }
        self.0.submit(&mut { others });
    }

    fn poll(&mut self, finished: &mut Vec<FinishedOp>, wait_max: Duration) -> usize {
        finished.append(&mut self.1);
        self.0.poll(finished, if finished.is_empty() { wait_max } else { Duration::ZERO })
    }

    fn memory(&mut self) -> MemoryStats {
        self.0.memory()
    }

    fn health(&mut self) -> Health {
        self.0.health()
    }
}

#[test]
fn an_engine_whose_copies_never_arrive_ends_the_op() {
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new()));
    let backend = backend.device(Script::new().resident()).device(Script::new().resident());
    let runtime = Runtime::builder().backend(Arc::new(Astray(backend))).limits(limits()).build().unwrap();
    let device = |index| DeviceId { api: Api::SIMULATED, index };
    let soon = |pending: panoply_runtime::Pending<Tensor>| {
        let start = Instant::now();
        while !pending.is_done() {
            assert!(start.elapsed() < Duration::from_secs(5), "an op is brought for ever: {:?}", runtime.workers());
            std::thread::sleep(Duration::from_millis(1));
        }
        pending.wait()
    };
    // An output that must come to the host, and an input that another device needs.
    let delivered = soon(runtime.run_with(op(), RunOptions::require(device(0)).to_host()));
    let resident = soon(runtime.run_with(op(), RunOptions::require(device(0)))).unwrap();
    assert_eq!(resident.location(), Location::Device(device(0)));
    let fetched = soon(runtime.run_with(Transpose::new(&resident), RunOptions::require(device(1))));
    for answer in [delivered, fetched] {
        let error = answer.unwrap_err();
        assert!(error.to_string().contains("its transfer brought"), "{error}");
    }
    assert!(runtime.workers().iter().all(|worker| worker.state == WorkerState::Ready));
}
