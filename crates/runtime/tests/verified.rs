//! A device whose answers have the right shape and wrong numbers is detected if a share of the
//! answers is compared.
#![allow(unsafe_code)] // The counting allocator that tests share.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::eventually;
use panoply_conformance::virtual_device::{Fault, Script, VirtualBackend, VirtualControl};
use panoply_core::op::compute::Transpose;
use panoply_core::{Api, Backend, DeviceId, Error, Outcome, Tensor, Verification};
use panoply_cpu::CpuBackend;
use panoply_runtime::{Circuit, FallbackPolicy, HealthRules, RunOptions, Runtime, Verify, WorkerCounters};

const FIRST: DeviceId = DeviceId { api: Api::SIMULATED, index: 0 };
const SECOND: DeviceId = DeviceId { api: Api::SIMULATED, index: 1 };
const CPU: DeviceId = DeviceId { api: Api::CPU, index: 0 };

fn build(devices: usize, cpu: bool, verify: Verify, script: Script) -> (Runtime, Vec<Arc<VirtualControl>>) {
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new()));
    let backend = (0..devices).fold(backend, |backend, _| backend.device(script.clone()));
    let controls = (0..devices).map(|index| backend.control(index).unwrap()).collect();
    let rules = HealthRules { open_wait_min: Duration::from_secs(60), ..HealthRules::default() };
    let mut builder = Runtime::builder().backend(Arc::new(backend)).verify(verify).health(rules);
    if cpu {
        builder = builder.backend(Arc::new(CpuBackend::new()) as Arc<dyn Backend>);
    }
    (builder.build().unwrap(), controls)
}

fn op() -> Transpose {
    Transpose::new(&Tensor::from_vec((0..6).map(|value| value as f32).collect(), [2, 3]).unwrap())
}

/// Runs an op on the first device, unless its circuit is open.
fn ask(runtime: &Runtime) -> panoply_core::Result<Outcome<Tensor>> {
    runtime.run_with(op(), RunOptions::prefer(FIRST)).with_report().wait()
}

fn is_right(outcome: &Outcome<Tensor>) -> bool {
    outcome.output.as_slice::<f32>().unwrap() == [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]
}

fn counters(runtime: &Runtime, device: DeviceId) -> WorkerCounters {
    runtime.workers().into_iter().find(|worker| worker.device == device).unwrap().counters
}

#[test]
fn the_processor_overrules_a_wrong_answer_and_the_receipt_says_so() {
    let (runtime, controls) = build(1, true, Verify::every(1), Script::new());
    let sound = ask(&runtime).unwrap();
    assert_eq!((sound.report.device, sound.report.verification), (FIRST, Some(Verification::Agreed { with: CPU })));
    controls[0].inject(Fault::WrongAnswer);
    let outcome = ask(&runtime).unwrap();
    assert!(is_right(&outcome));
    let Outcome { report, .. } = outcome;
    assert_eq!(report.verification, Some(Verification::Overruled { wrong: FIRST, by: CPU }));
    assert_eq!((report.device, report.attempts), (CPU, 2));
    let fallback = report.fallback.unwrap();
    assert!(fallback.from == FIRST && fallback.cause.to_string().contains("elements differ"), "{fallback:?}");
    let counted = counters(&runtime, FIRST);
    assert_eq!((counted.verified, counted.mismatched, counted.unverified), (1, 1, 0));
    let text = runtime.metrics().prometheus_text();
    assert!(text.contains("panoply_answers_wrong_total{device=\"simulated:0\"} 1"), "{text}");
    // The processor is the reference, so its own answers are not compared.
    let own = runtime.run_with(op(), RunOptions::require(CPU)).with_report().wait().unwrap();
    assert_eq!(own.report.verification, None);
}

#[test]
fn a_share_of_the_ops_is_compared_and_a_lying_device_loses_its_ops() {
    let (runtime, controls) = build(1, true, Verify::every(8), Script::new());
    let outcomes: Vec<_> = (0..32).map(|_| ask(&runtime).unwrap()).collect();
    let compared = outcomes.iter().filter(|outcome| outcome.report.verification.is_some()).count();
    assert_eq!(compared, 4);
    (0..1000).for_each(|_| controls[0].inject(Fault::WrongAnswer));
    let wrong = (0..500).filter(|_| !is_right(&ask(&runtime).unwrap())).count();
    assert!(wrong < 100, "{wrong} wrong answers were handed out");
    let worker = runtime.workers().into_iter().find(|worker| worker.device == FIRST).unwrap();
    assert_eq!(worker.health.circuit, Circuit::Open);
    assert!(worker.counters.mismatched >= 1);
}

#[test]
fn a_majority_of_three_devices_decides() {
    let (runtime, controls) = build(3, false, Verify::every(1), Script::new());
    controls[0].inject(Fault::WrongAnswer);
    let outcome = ask(&runtime).unwrap();
    assert!(is_right(&outcome) && outcome.report.device != FIRST);
    assert!(matches!(outcome.report.verification, Some(Verification::Overruled { wrong: FIRST, .. })));
    let all: u64 = runtime.workers().iter().map(|worker| worker.counters.mismatched).sum();
    assert_eq!(all, 1);
}

#[test]
fn two_devices_that_disagree_give_no_answer() {
    let (runtime, controls) = build(2, false, Verify::every(1), Script::new());
    controls[0].inject(Fault::WrongAnswer);
    let error = ask(&runtime).unwrap_err();
    assert!(matches!(&error, Error::DeviceFault { device: FIRST, reason } if reason.contains("no third")), "{error}");
    assert_eq!(counters(&runtime, FIRST).mismatched, 1);
    assert_eq!(counters(&runtime, SECOND).mismatched, 1);
}

#[test]
fn a_required_device_gives_an_error_and_a_forbidden_one_is_never_asked() {
    let (runtime, controls) = build(2, true, Verify::every(1), Script::new());
    controls[0].inject(Fault::WrongAnswer);
    let error = runtime.run_with(op(), RunOptions::require(FIRST)).wait().unwrap_err();
    assert!(matches!(error, Error::DeviceFault { device: FIRST, .. }), "{error}");
    controls[0].inject(Fault::WrongAnswer);
    let strict = RunOptions::prefer(FIRST).fallback(FallbackPolicy::None);
    assert!(runtime.run_with(op(), strict).wait().is_err());
    let before = (counters(&runtime, CPU).accepted, counters(&runtime, SECOND).accepted);
    let alone = RunOptions::prefer(FIRST).forbid([CPU, SECOND]);
    let outcome = runtime.run_with(op(), alone).with_report().wait().unwrap();
    assert!(matches!(outcome.report.verification, Some(Verification::Skipped { .. })), "{:?}", outcome.report);
    assert_eq!((counters(&runtime, CPU).accepted, counters(&runtime, SECOND).accepted), before);
    assert_eq!(counters(&runtime, FIRST).unverified, 1);
}

#[test]
fn a_second_device_that_hangs_holds_an_answer_back_for_a_while_only() {
    let verify = Verify { wait_max: Duration::from_millis(100), ..Verify::every(1) };
    let (runtime, controls) = build(2, false, verify, Script::new());
    controls[1].inject(Fault::Hang);
    let start = Instant::now();
    let many: Vec<_> = (0..40).map(|_| runtime.run_with(op(), RunOptions::prefer(FIRST)).with_report()).collect();
    for pending in many {
        let outcome = pending.wait().unwrap();
        assert!(is_right(&outcome));
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(counters(&runtime, FIRST).unverified > 0);
    eventually("nothing is left", || counters(&runtime, FIRST).completed == 40);
    runtime.abort();
}

#[test]
fn an_answer_is_handed_out_in_time_though_the_other_device_is_slow() {
    let (runtime, controls) = build(2, false, Verify::every(1), Script::new());
    controls[1].inject(Fault::Hang);
    let options = RunOptions::prefer(FIRST).deadline(Instant::now() + Duration::from_millis(800));
    let outcome = runtime.run_with(op(), options).with_report().wait().unwrap();
    assert!(is_right(&outcome) && matches!(outcome.report.verification, Some(Verification::Skipped { .. })));
    runtime.abort();
}

#[test]
fn a_shutdown_hands_out_every_answer_that_is_held_back() {
    let verify = Verify { wait_max: Duration::MAX, ..Verify::every(1) };
    let (runtime, controls) = build(2, false, verify, Script::new());
    controls[1].inject(Fault::Hang);
    let many: Vec<_> = (0..20).map(|_| runtime.run_with(op(), RunOptions::prefer(FIRST))).collect();
    eventually("they ran", || counters(&runtime, FIRST).accepted == 20 && counters(&runtime, SECOND).accepted > 0);
    let start = Instant::now();
    runtime.shutdown(Duration::from_millis(100));
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert!(many.iter().all(panoply_runtime::Pending::is_done), "each has its outcome");
    many.into_iter().for_each(|pending| drop(pending.wait()));
}

#[test]
fn an_op_that_fell_back_to_the_processor_is_not_compared() {
    let (runtime, controls) = build(1, true, Verify::every(1), Script::new());
    controls[0].inject(Fault::Error);
    let outcome = ask(&runtime).unwrap();
    assert!(is_right(&outcome) && outcome.report.device == CPU);
    assert_eq!(outcome.report.verification, None);
}

#[test]
fn outputs_in_device_memory_are_compared_and_stay_there() {
    let (runtime, _controls) = build(1, true, Verify::every(1), Script::new().resident());
    let outcome = ask(&runtime).unwrap();
    assert_eq!(outcome.report.verification, Some(Verification::Agreed { with: CPU }));
    assert!(outcome.output.host_bytes().is_err(), "it is on the device");
}

#[test]
fn one_wrong_answer_among_sound_ones_does_not_cost_a_device_its_ops() {
    let (runtime, controls) = build(1, true, Verify::default(), Script::new());
    controls[0].inject(Fault::WrongAnswer);
    let first = ask(&runtime).unwrap();
    assert!(is_right(&first) && matches!(first.report.verification, Some(Verification::Overruled { .. })));
    // The next answer is compared out of turn, and is right; the following ones are not compared.
    let second = ask(&runtime).unwrap();
    assert_eq!((second.report.device, second.report.verification), (FIRST, Some(Verification::Agreed { with: CPU })));
    assert_eq!(ask(&runtime).unwrap().report.verification, None);
    let worker = runtime.workers().into_iter().find(|worker| worker.device == FIRST).unwrap();
    assert_eq!((worker.health.circuit, worker.counters.mismatched), (Circuit::Closed, 1));
}

#[test]
fn two_wrong_answers_in_a_row_stand_for_those_that_nobody_compared() {
    let (runtime, controls) = build(1, true, Verify::default(), Script::new());
    (0..10).for_each(|_| controls[0].inject(Fault::WrongAnswer));
    assert!((0..2).all(|_| is_right(&ask(&runtime).unwrap())));
    eventually("the circuit opens", || {
        let worker = runtime.workers().into_iter().find(|worker| worker.device == FIRST).unwrap();
        worker.health.circuit == Circuit::Open
    });
}

#[test]
fn two_devices_that_disagree_once_keep_their_ops() {
    let (runtime, controls) = build(2, false, Verify::default(), Script::new());
    controls[0].inject(Fault::WrongAnswer);
    assert!(ask(&runtime).is_err());
    for worker in runtime.workers() {
        assert_eq!((worker.health.circuit, worker.counters.mismatched), (Circuit::Closed, 1), "{}", worker.device);
    }
}

#[test]
fn a_comparison_that_would_take_too_long_is_not_begun() {
    let verify = Verify { wait_max: Duration::from_millis(1), ..Verify::every(1) };
    let (runtime, _controls) = build(1, true, verify, Script::new());
    let square = Tensor::from_vec(vec![0.5_f32; 512 * 512], [512, 512]).unwrap();
    let product = panoply_core::op::compute::MatMul::new(&square, &square);
    let outcome = runtime.run_with(product, RunOptions::prefer(FIRST)).with_report().wait().unwrap();
    let Some(Verification::Skipped { reason }) = outcome.report.verification else { panic!("{:?}", outcome.report) };
    assert!(reason.contains("would take about") && reason.contains("longer than"), "{reason}");
    assert_eq!(counters(&runtime, CPU).accepted, 0, "nothing was begun that others would wait for");
}

#[test]
fn a_device_spends_a_share_of_its_time_on_comparisons() {
    let verify = Verify { time_percent_max: 0, ..Verify::every(1) };
    // Each comparison takes 300 ms of the second device's one second.
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new()));
    let backend = backend.device(Script::new()).device(Script::new().latency(Duration::from_millis(300)));
    let runtime = Runtime::builder().backend(Arc::new(backend)).verify(verify).build().unwrap();
    let mut skipped = 0;
    for _ in 0..8 {
        match ask(&runtime).unwrap().report.verification {
            Some(Verification::Agreed { with: SECOND }) => assert_eq!(skipped, 0),
            Some(Verification::Skipped { reason }) => {
                assert!(reason.contains("share of the other devices' time"), "{reason}");
                skipped += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert!((1..8).contains(&skipped), "{skipped}");
}

#[test]
fn options_ask_for_a_share_of_their_own() {
    let (runtime, _controls) = build(1, true, Verify::where_asked(), Script::new());
    assert!((0..8).all(|_| ask(&runtime).unwrap().report.verification.is_none()));
    let compared = |every: u32| {
        let options = || RunOptions::prefer(FIRST).verify_every(every);
        let run = || runtime.run_with(op(), options()).with_report().wait().unwrap().report;
        (0..8).filter(|_| run().verification.is_some_and(|verification| verification.is_verified())).count()
    };
    assert_eq!(compared(1), 8);
    assert_eq!(compared(4), 2);
    let never = runtime.run_with(op(), RunOptions::prefer(FIRST).verify_every(0)).wait();
    assert!(never.unwrap_err().to_string().contains("at least 1"));
    let plain = Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap();
    let refused = plain.run_with(op(), RunOptions::default().verify_every(2)).wait();
    assert!(refused.unwrap_err().to_string().contains("built with `verify`"));
}

#[test]
fn a_wait_of_no_time_is_refused() {
    let verify = Verify { wait_max: Duration::ZERO, ..Verify::every(1) };
    let built = Runtime::builder().backend(Arc::new(CpuBackend::new())).verify(verify).build();
    assert!(built.map(drop).unwrap_err().to_string().contains("verify.wait_max"));
}
