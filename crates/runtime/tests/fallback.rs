//! The handling of ops whose devices fail: the four policies, the circuit breaker, batches, and a
//! device that is killed again and again.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_conformance::virtual_device::{Fault, Rates, Script, VirtualBackend, VirtualControl};
use panoply_core::op::compute::{MatMul, Transpose};
use panoply_core::{Api, DeviceId, Error, ErrorKind, Outcome, Tensor};
use panoply_cpu::CpuBackend;
use panoply_runtime::{Batching, BuildError, Circuit, FallbackPolicy, HealthRules, RunOptions, Runtime, WorkerLimits};

const FIRST: DeviceId = DeviceId { api: Api::SIMULATED, index: 0 };

fn limits() -> WorkerLimits {
    WorkerLimits {
        op_time_max: Duration::from_millis(500),
        reopen_wait_min: Duration::from_millis(1),
        reopen_wait_max: Duration::from_millis(4),
        reopen_attempts_max: 1000,
        ..WorkerLimits::default()
    }
}

/// Virtual devices, and the CPU behind them.
fn runtime(scripts: impl IntoIterator<Item = Script>) -> (Runtime, Vec<Arc<VirtualControl>>) {
    let backend = scripts.into_iter().fold(VirtualBackend::new(Arc::new(CpuBackend::new())), VirtualBackend::device);
    let controls = (0..).map_while(|index| backend.control(index)).collect();
    // No circuit opens: these tests check only the policies.
    let rules = HealthRules { errors_min: 1000, ..HealthRules::default() };
    let builder = Runtime::builder().backend(Arc::new(backend)).backend(Arc::new(CpuBackend::new()));
    let runtime = builder.limits(limits()).health(rules).build().unwrap();
    (runtime, controls)
}

fn op() -> Transpose {
    Transpose::new(&Tensor::from_vec((0..6).map(|value| value as f32).collect(), [2, 3]).unwrap())
}

fn expect_right(output: &Tensor) {
    assert_eq!(output.as_slice::<f32>().unwrap(), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
}

#[test]
fn each_policy_does_what_it_says() {
    let (runtime, controls) = runtime([Script::new(), Script::new()]);
    let on_first = |policy| RunOptions::prefer(FIRST).fallback(policy);
    let run = |options: RunOptions| runtime.run_with(op(), options).with_report().wait();

    controls[0].inject(Fault::Error);
    let error = run(on_first(FallbackPolicy::None)).unwrap_err();
    assert!(matches!(error, Error::DeviceFault { device: FIRST, .. }), "{error:?}");

    controls[0].inject(Fault::Error);
    let Outcome { output, report } = run(on_first(FallbackPolicy::Retry { times: 1 })).unwrap();
    expect_right(&output);
    let fallback = report.fallback.unwrap();
    assert_eq!((report.device, report.attempts, fallback.from), (FIRST, 2, FIRST));
    assert_eq!(fallback.cause.kind(), ErrorKind::Device);

    (0..3).for_each(|_| controls[0].inject(Fault::Error));
    let error = run(on_first(FallbackPolicy::Retry { times: 2 })).unwrap_err();
    assert!(matches!(error, Error::DeviceFault { .. }), "three failures are one too many: {error:?}");

    controls[0].inject(Fault::OutOfMemory);
    let Outcome { output, report } = run(on_first(FallbackPolicy::Alternate)).unwrap();
    expect_right(&output);
    assert_ne!(report.device, FIRST);
    assert!(matches!(report.fallback.unwrap().cause, Error::OutOfMemory { .. }));

    controls[0].inject(Fault::Lost);
    let Outcome { output, report } = run(on_first(FallbackPolicy::Cpu)).unwrap();
    expect_right(&output);
    assert_eq!((report.device.api, report.attempts), (Api::CPU, 2));

    controls[0].inject(Fault::Error);
    let pinned = runtime.run_with(op(), RunOptions::require(FIRST)).wait();
    assert!(matches!(pinned, Err(Error::DeviceFault { .. })), "a required device has no stand-in: {pinned:?}");
    let counters = runtime.workers()[0].counters;
    assert!(counters.fallbacks >= 3, "{counters:?}");
}

#[test]
fn a_hung_or_panicking_engine_hands_its_ops_on() {
    let (runtime, controls) = runtime([Script::new()]);
    let opened_again = || {
        let worker = &runtime.workers()[0];
        (worker.state == panoply_runtime::WorkerState::Ready)
            .then_some(worker.counters.reopened + worker.counters.replaced)
    };
    for fault in [Fault::Hang, Fault::Panic, Fault::Forget, Fault::Block(Duration::from_millis(1500))] {
        let before = runtime.workers()[0].counters;
        controls[0].inject(fault);
        let outcome = runtime.run_with(op(), RunOptions::prefer(FIRST)).with_report().wait().unwrap();
        expect_right(&outcome.output);
        assert_eq!(outcome.report.device.api, Api::CPU, "{fault:?}");
        assert_eq!(outcome.report.fallback.unwrap().from, FIRST, "{fault:?}");
        // The op is answered before the device is noticed as lost: only another opening proves that
        // it is back.
        let start = Instant::now();
        while opened_again().is_none_or(|times| times <= before.reopened + before.replaced) {
            assert!(start.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_faulty_device_is_left_alone_and_taken_back() {
    let script = Script::new().random_faults(1, Rates { error: 1_000_000, ..Rates::default() }, Duration::ZERO);
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new())).device(script);
    let control = backend.control(0).unwrap();
    let rules = HealthRules { open_wait_min: Duration::from_millis(500), ..HealthRules::default() };
    let builder = Runtime::builder().backend(Arc::new(backend)).backend(Arc::new(CpuBackend::new()));
    let runtime = builder.limits(limits()).health(rules).build().unwrap();
    let run = || runtime.run_with(op(), RunOptions::prefer(FIRST)).with_report().wait().unwrap().report;
    let start = Instant::now();
    while runtime.workers()[0].health.circuit == Circuit::Closed {
        run();
        assert!(start.elapsed() < Duration::from_secs(10));
    }
    let barred = (0..10).filter(|_| run().fallback.is_none()).count();
    assert!(barred >= 6, "while the circuit is open ops go elsewhere at once: {barred} of 10");
    control.heal();
    while runtime.workers()[0].health.circuit != Circuit::Closed {
        run();
        assert!(start.elapsed() < Duration::from_secs(20), "the circuit sticks");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(run().device, FIRST);
}

#[test]
fn a_device_killed_a_hundred_times_under_load_loses_nothing() {
    let (runtime, controls) = runtime([Script::new().latency(Duration::from_micros(20)), Script::new()]);
    let (mut asked, mut fallbacks) = (0, 0);
    let mut window = std::collections::VecDeque::new();
    let settle = |pending: panoply_runtime::PendingOutcome<Tensor>| {
        let outcome = pending.wait().unwrap();
        expect_right(&outcome.output);
        usize::from(outcome.report.fallback.is_some())
    };
    for kill in 0..100 {
        let fault = if kill % 2 == 0 { Fault::Lost } else { Fault::Forget };
        controls[0].inject(fault);
        for _ in 0..40 {
            window.push_back(runtime.run_with(op(), RunOptions::prefer(FIRST)).with_report());
            asked += 1;
            if window.len() > 64 {
                fallbacks += window.pop_front().map_or(0, settle);
            }
        }
        // Waits until the device works again before the next kill.
        let before = controls[0].counters().opened;
        let start = Instant::now();
        while controls[0].counters().opened == before && start.elapsed() < Duration::from_millis(20) {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    fallbacks += window.into_iter().map(settle).sum::<usize>();
    assert_eq!(asked, 4000);
    assert!(fallbacks >= 30, "{fallbacks} ops fell back");
    assert!(controls[0].counters().opened >= 20, "it was opened {} times", controls[0].counters().opened);
    let shutdown = runtime.shutdown(Duration::from_secs(10));
    assert!(shutdown.drained);
}

#[test]
fn batches_are_joined_and_one_bad_item_fails_alone() {
    let script = Script::new().latency(Duration::from_millis(2)).fused().fault_at(5, Fault::Error);
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new())).device(script);
    let batching = Batching::TimeOrSize { size_max: 16, wait_max: Duration::from_millis(200) };
    let builder = Runtime::builder().backend(Arc::new(backend)).limits(limits());
    let runtime = builder.batching(batching).fallback(FallbackPolicy::None).build().unwrap();
    let eye = Tensor::from_slice(&[1.0_f32, 0.0, 0.0, 1.0], [2, 2]).unwrap();
    let operand = |number: usize| Tensor::from_vec(vec![number as f32; 4], [2, 2]).unwrap();
    let pending: Vec<_> =
        (0..32).map(|number| runtime.run(MatMul::new(&operand(number), &eye)).with_report()).collect();
    let outcomes: Vec<_> = pending.into_iter().map(|op| op.wait()).collect();
    let mut failed = 0;
    for (number, outcome) in outcomes.iter().enumerate() {
        match outcome {
            Ok(outcome) => {
                assert_eq!(outcome.output.as_slice::<f32>().unwrap(), [number as f32; 4], "each its own answer");
                assert!(outcome.report.batch_size >= 2, "{:?}", outcome.report);
            }
            Err(error) => {
                assert!(matches!(error, Error::DeviceFault { .. }), "{error:?}");
                failed += 1;
            }
        }
    }
    assert_eq!(failed, 1);
    let metrics = runtime.metrics();
    assert!(metrics.devices[0].batch_size.quantile(0.5) >= 8, "{:?}", metrics.devices[0].batch_size);
}

#[test]
fn impossible_settings_name_both_sides() {
    let build = |batching, rules| {
        let builder = Runtime::builder().backend(Arc::new(CpuBackend::new())).batching(batching).health(rules);
        builder.build().err()
    };
    let batches = Batching::TimeOrSize { size_max: 1000, wait_max: Duration::from_millis(1) };
    let error = build(batches, HealthRules::default()).unwrap();
    assert_eq!(error.to_string(), "batches of 1000 contradicts in_flight_max = 256");
    let cold = HealthRules { cool_celsius: 90.0, ..HealthRules::default() };
    let error = build(Batching::LowLatency, cold).unwrap();
    assert!(matches!(&error, BuildError::Contradiction { first, .. } if first == "cool_celsius = 90"), "{error}");
}
