//! A model's run as a future: with a report, cancelled by dropping it, with a deadline for the
//! whole, and with data that stays on the device.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_conformance::virtual_device::{Fault, Script, VirtualBackend, VirtualControl};
use panoply_core::{DeviceId, Error as RunError, Location};
use panoply_cpu::CpuBackend;
use panoply_models::{Array, ElementType, Error, Model, ModelValue};
use panoply_runtime::{RunOptions, Runtime};

use crate::each::pictures;
use crate::onnx::*;

/// A virtual device that keeps answers in its memory, and its controls.
fn virtual_one(script: Script) -> (Arc<Runtime>, Arc<VirtualControl>, DeviceId) {
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new())).device(script.resident());
    let control = backend.control(0).unwrap();
    let runtime = Runtime::builder().backend(Arc::new(backend)).build().unwrap();
    let device = runtime.devices().next().unwrap().id;
    (Arc::new(runtime), control, device)
}

/// Two graphs with a node on the host between them, because no device knows `NonZero`.
fn two_graphs(runtime: &Arc<Runtime>) -> Model {
    let nodes = [
        node("Mul", &["x", "two"], &["doubled"], &[]),
        node("NonZero", &["doubled"], &["places"], &[]),
        node("Cast", &["places"], &["floats"], &[int("to", 1)]),
        node("Add", &["floats", "two"], &["y"], &[]),
    ];
    let constants = [f32s("two", &[1], &[2.0])];
    let ports = [port("x", ElementType::F32, &[4])];
    Model::from_bytes(Arc::clone(runtime), &model(18, &graph(&nodes, &constants, &ports, &[any("y")])).0).unwrap()
}

fn x() -> ModelValue {
    Array::from_slice(&[0.0_f32, 3.0, 0.0, 5.0], [4]).unwrap().into()
}

#[test]
fn a_run_is_a_future_that_names_its_devices_and_steps() {
    let (runtime, _, device) = virtual_one(Script::new());
    let model = two_graphs(&runtime);
    // The first run is traced, the second replays its steps.
    for _ in 0..2 {
        let outcome = model.run_with(&[("x", x())], &RunOptions::default().to_host()).with_report().wait().unwrap();
        let y = outcome.output.get("y").unwrap().array().unwrap();
        assert_eq!((y.dims(), y.as_slice::<f32>().unwrap()), (&[1, 2][..], &[3.0, 5.0][..]));
        let report = outcome.report;
        assert_eq!(report.devices(), [device]);
        let host: Vec<&str> =
            report.steps.iter().filter(|step| step.op.is_none()).map(|step| step.name.as_str()).collect();
        assert!(host[0].starts_with("NonZero") && host[1].starts_with("Cast") && host.len() == 2, "{report}");
        let graphs = report.steps.iter().filter(|step| step.name.starts_with("graph")).count();
        assert_eq!((graphs, report.ops().count()), (2, 4), "two graphs, and a copy of each one's output: {report}");
        assert!(report.bytes_moved() >= 16 && report.took >= report.steps[0].took, "{report}");
        assert!(report.to_string().contains(&device.to_string()));
    }
    let waited = model.run(&[("x", x())]).wait().unwrap();
    assert_eq!(waited.first().unwrap().tensor().unwrap().location(), Location::Device(device), "outputs stay");
    let read = waited.first().unwrap().array().unwrap();
    assert_eq!(read.as_slice::<f32>().unwrap(), [3.0, 5.0], "and are fetched by the first who reads them");
}

#[test]
fn a_run_that_is_dropped_begins_no_further_step() {
    let (runtime, control, _) = virtual_one(Script::new().latency(Duration::from_millis(60)));
    let model = two_graphs(&runtime);
    model.run(&[("x", x())]).wait().unwrap();
    let whole = control.counters().submitted;
    assert_eq!(whole, 3, "two graphs, and a copy between them");
    let run = model.run(&[("x", x())]);
    let start = Instant::now();
    while control.counters().submitted == whole && start.elapsed() < Duration::from_secs(10) {
        std::thread::yield_now();
    }
    assert_eq!(control.counters().submitted, whole + 1, "a run begins before anybody waits for it");
    drop(run);
    std::thread::sleep(Duration::from_millis(250));
    assert_eq!(control.counters().submitted, whole + 1, "the second graph never begins");
}

#[test]
fn a_deadline_bounds_all_steps_together() {
    let (runtime, control, _) = virtual_one(Script::new().latency(Duration::from_millis(120)));
    let model = two_graphs(&runtime);
    model.run(&[("x", x())]).wait().unwrap();
    let whole = control.counters().submitted;
    // Each step fits into the time, all of them do not.
    let begun = Instant::now();
    let late = RunOptions::default().deadline(begun + Duration::from_millis(180));
    let error = model.run_with(&[("x", x())], &late).wait().unwrap_err();
    assert!(matches!(error, Error::Run(RunError::DeadlineExceeded { .. })), "{error}");
    assert!(begun.elapsed() < Duration::from_millis(350), "it did not wait for the rest: {:?}", begun.elapsed());
    std::thread::sleep(Duration::from_millis(300));
    assert!(control.counters().submitted < 2 * whole, "the last graph never begins");
    // A blocking run looks at the time before each step as well.
    let late = RunOptions::default().deadline(Instant::now() + Duration::from_millis(180));
    let array = x().array().unwrap();
    assert!(matches!(model.infer_with(&[("x", array)], &late), Err(Error::Run(RunError::DeadlineExceeded { .. }))));
}

#[test]
fn an_awaited_run_is_woken_at_its_deadline() {
    let (runtime, control, _) = virtual_one(Script::new().latency(Duration::from_secs(20)));
    let model = two_graphs(&runtime);
    let late = RunOptions::default().deadline(Instant::now() + Duration::from_millis(100));
    let mut run = std::pin::pin!(model.run_with(&[("x", x())], &late));
    let begun = Instant::now();
    let waker = unpark();
    let ended = loop {
        match run.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(ended) => break ended,
            std::task::Poll::Pending => std::thread::park_timeout(Duration::from_secs(10)),
        }
    };
    assert!(matches!(ended, Err(Error::Run(RunError::DeadlineExceeded { .. }))), "{ended:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    control.heal();
    runtime.abort();
}

fn unpark() -> std::task::Waker {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    std::task::Waker::from(Arc::new(Unpark(std::thread::current())))
}

#[test]
fn runs_and_blocking_calls_give_the_same_answers() {
    let (runtime, _, device) = virtual_one(Script::new());
    let (message, given) = pictures();
    let model = Model::from_bytes(Arc::clone(&runtime), &message.0).unwrap();
    let array = given[0].1.array().unwrap().clone();
    let expected = model.infer(&[("x", array.clone())]).unwrap();
    let got = model.run_with(&[("x", array.into())], &RunOptions::default().to_host()).wait().unwrap();
    assert_eq!(
        got.get("y").unwrap().array().unwrap().to_floats().unwrap(),
        expected.first().unwrap().to_floats().unwrap()
    );
    assert!(model.run(&[("z", x())]).wait().is_err(), "a wrong name");
    assert_eq!(runtime.devices().next().unwrap().id, device);
}

#[test]
fn a_fallback_of_a_step_is_in_the_report() {
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new()))
        .device(Script::new().fault_at(0, Fault::Error))
        .device(Script::new());
    let runtime = Arc::new(Runtime::builder().backend(Arc::new(backend)).build().unwrap());
    let ids: Vec<DeviceId> = runtime.devices().map(|device| device.id).collect();
    let model = two_graphs(&runtime);
    let outcome = model.run_with(&[("x", x())], &RunOptions::prefer(ids[0])).with_report().wait().unwrap();
    let fallbacks: Vec<DeviceId> = outcome.report.fallbacks().map(|fallback| fallback.from).collect();
    assert_eq!(fallbacks, [ids[0]], "{}", outcome.report);
    assert_eq!(outcome.report.devices(), [ids[1], ids[0]]);
}
