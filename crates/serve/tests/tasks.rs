//! Requests, ensembles and boxes as tasks: reports, deadlines, cancellation, and pipelines whose
//! data stays on the device.
#![allow(clippy::unwrap_used)] // A failed unwrap fails the test at its line.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::onnx::*;
use panoply_conformance::virtual_device::{Fault, Script, VirtualBackend, VirtualControl};
use panoply_core::op::compute::{Normalize, Resize};
use panoply_core::{DType, Error as RunError, Tensor};
use panoply_cpu::CpuBackend;
use panoply_inputs::tasks::{DetectOptions, Detection};
use panoply_models::{Array, ElementType, Model, ModelValue, Outputs};
use panoply_pipeline::{Builder, Pipeline, RunOutcome};
use panoply_runtime::{RunOptions, Runtime};
use panoply_serve::tasks::Detector;
use panoply_serve::{Ensemble, Error, Member, ServeOptions, Server, Stage};

/// A virtual device that keeps answers in its memory, and its controls.
fn virtual_one(script: Script) -> (Arc<Runtime>, Arc<VirtualControl>) {
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new())).device(script.resident());
    let control = backend.control(0).unwrap();
    (Arc::new(Runtime::builder().backend(Arc::new(backend)).build().unwrap()), control)
}

/// `y = relu(x + 1)` in one graph for each row, or in two with a node on the host between them.
fn rows(runtime: &Arc<Runtime>, graphs: usize) -> Model {
    let nodes = match graphs {
        1 => vec![node("Add", &["x", "one"], &["sum"], &[]), node("Relu", &["sum"], &["y"], &[])],
        _ => vec![
            node("Add", &["x", "one"], &["sum"], &[]),
            node("Unique", &["sum"], &["few"], &[]),
            node("Relu", &["few"], &["y"], &[]),
        ],
    };
    let ports = [port("x", ElementType::F32, &[-1, 2])];
    let message = model(18, &graph(&nodes, &[f32s("one", &[1], &[1.0])], &ports, &[any("y")]));
    Model::from_bytes(Arc::clone(runtime), &message.0).unwrap()
}

fn x() -> ModelValue {
    Array::from_slice(&[1.0_f32, -3.0], [1, 2]).unwrap().into()
}

fn serve(model: &Model, wait_ms: u64) -> Server {
    let wait_max = Duration::from_millis(wait_ms);
    Server::start(model, ServeOptions { wait_max, queue_depth_max: 4, ..ServeOptions::default() }).unwrap()
}

#[test]
fn a_request_reports_its_wait_and_the_steps_of_its_batch() {
    let (runtime, _) = virtual_one(Script::new());
    let server = serve(&rows(&runtime, 1), 40);
    // An input in the device's memory is copied to the host first.
    let there = panoply_core::op::compute::Map::add(
        &Tensor::from_vec(vec![1.0_f32, -3.0], [1, 2]).unwrap(),
        &Tensor::zeros(DType::F32, [1, 2]).unwrap(),
    );
    let there = runtime.run(there).wait().unwrap();
    assert!(there.host_bytes().is_err(), "it is on the device");
    let requests = [x(), there.into(), x()].map(|x| server.request(&[("x", x)], &RunOptions::default()));
    for (place, request) in requests.into_iter().enumerate() {
        let outcome = request.with_report().wait().unwrap();
        assert_eq!(outcome.output.get("y").unwrap().as_slice::<f32>().unwrap(), [2.0, 0.0]);
        let names: Vec<&str> = outcome.report.steps.iter().map(|step| step.name.as_str()).collect();
        let copied = usize::from(place == 1);
        assert_eq!((names[0] == "to the host", names[copied]), (copied == 1, "wait for a batch"), "{names:?}");
        assert!(names[copied + 1].starts_with("batch of ") && names[copied + 1].contains("graph of"), "{names:?}");
        assert_eq!(outcome.report.devices().len(), 1);
        assert!(outcome.report.took >= outcome.report.steps[copied].took, "{}", outcome.report);
    }
    assert_eq!(server.batches().1, 3, "each row once");
    let wrong = server.request(&[("z", x())], &RunOptions::default()).wait();
    assert!(matches!(wrong, Err(Error::Model(panoply_models::Error::Invalid { .. }))), "{wrong:?}");
}

#[test]
fn a_request_that_is_dropped_does_not_run_and_takes_no_room() {
    let (runtime, control) = virtual_one(Script::new());
    let server = serve(&rows(&runtime, 1), 150);
    let ask = || server.request(&[("x", x())], &RunOptions::default());
    let dropped: Vec<_> = (0..4).map(|_| ask()).collect();
    assert_eq!(server.waiting(), 4, "requests are accepted at once");
    assert!(matches!(ask().wait(), Err(Error::Busy { .. })));
    drop(dropped);
    let kept = ask();
    assert_eq!(server.waiting(), 1, "those that were dropped make room");
    drop(kept);
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!((server.batches(), server.waiting(), control.counters().submitted), ((0, 0), 0, 0));
    // Tickets likewise.
    drop(server.submit(&[("x", x().array().unwrap())], &RunOptions::default()).unwrap());
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(control.counters().submitted, 0);
    assert!(ask().wait().is_ok());
}

#[test]
fn a_batch_ends_before_its_next_step_if_nobody_waits_for_it() {
    let (runtime, control) = virtual_one(Script::new().latency(Duration::from_millis(80)));
    let server = serve(&rows(&runtime, 2), 1);
    let ask = |options: &RunOptions| server.request(&[("x", x())], options);
    let y = ask(&RunOptions::default()).wait().unwrap();
    assert_eq!(y.get("y").unwrap().as_slice::<f32>().unwrap(), [0.0, 2.0]);
    let whole = control.counters().submitted;
    assert!(whole >= 3, "two graphs, and a copy between them: {whole}");
    let request = ask(&RunOptions::default());
    let start = Instant::now();
    while control.counters().submitted == whole && start.elapsed() < Duration::from_secs(10) {
        std::thread::yield_now();
    }
    drop(request);
    std::thread::sleep(Duration::from_millis(80 * (whole + 2)));
    let after = control.counters().submitted;
    assert!(after < 2 * whole, "the batch went on: {after} of {}", 2 * whole);
    // A caller whose deadline passes is not held up by its batch, and the batch ends, too.
    let begun = Instant::now();
    let late = RunOptions::default().deadline(begun + Duration::from_millis(100));
    let error = ask(&late).wait().unwrap_err();
    assert!(matches!(error, Error::Run(RunError::DeadlineExceeded { .. })), "{error}");
    let ticket = server.submit(&[("x", x().array().unwrap())], &late);
    assert!(matches!(ticket.unwrap().wait(), Err(Error::Run(RunError::DeadlineExceeded { .. }))));
    assert!(begun.elapsed() < Duration::from_millis(80 * whole), "{:?}", begun.elapsed());
    std::thread::sleep(Duration::from_millis(80 * (whole + 2)));
    assert!(control.counters().submitted < after + whole, "the batch went on");
    assert!(ask(&RunOptions::default()).wait().is_ok(), "the server goes on");
}

#[test]
fn an_ensemble_is_a_task_that_names_its_members() {
    let (runtime, control) = virtual_one(Script::new());
    let model = rows(&runtime, 1);
    let members =
        vec![Member::new(&model), Member::stage(Stage::softmax(-1).unwrap()).reads("x", "y").writes("y", "likely")];
    let chain = Ensemble::new("chain", &["x"], &["likely"], members).unwrap();
    let outcome = chain.run(&[("x", x())]).with_report().wait().unwrap();
    let first = outcome.output.first().unwrap();
    assert!(first.tensor().unwrap().host_bytes().is_err(), "outputs stay on the device");
    let names: Vec<&str> = outcome.report.steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names.len(), 2, "two graphs and no copies: {names:?}");
    assert!(names[1].starts_with("y: graph of"), "{names:?}");
    let on_host = chain.run_with(&[("x", x())], &RunOptions::default().to_host()).wait().unwrap();
    let direct = chain.infer(&[("x", x().array().unwrap())], &RunOptions::default()).unwrap();
    let floats = |array: &Array| array.to_floats().unwrap();
    assert_eq!(floats(&on_host.first().unwrap().array().unwrap()), floats(direct.first().unwrap()));
    control.inject(Fault::Slow(Duration::from_millis(300)));
    let begun = Instant::now();
    let late = RunOptions::default().deadline(begun + Duration::from_millis(60));
    let error = chain.run_with(&[("x", x())], &late).wait().unwrap_err();
    assert!(matches!(error, Error::Run(RunError::DeadlineExceeded { .. })), "{error}");
    assert!(begun.elapsed() < Duration::from_millis(280), "{:?}", begun.elapsed());
    assert!(chain.run(&[("w", x())]).wait().is_err(), "a wrong name");
}

const SIDE: usize = 64;
const ITEMS: usize = 12;

/// A detector whose boxes do not depend on the picture.
fn detector(runtime: &Arc<Runtime>) -> Model {
    let nodes = [
        node("ReduceSum", &["x"], &["sum"], &[int("keepdims", 0)]),
        node("Mul", &["sum", "zero"], &["none"], &[]),
        node("Add", &["found", "none"], &["output"], &[]),
    ];
    let found = [[4.0, 6.0, 20.0, 18.0, 0.9, 1.0], [5.0, 6.0, 20.0, 18.0, 0.8, 1.0], [8.0, 20.0, 30.0, 28.0, 0.7, 0.0]];
    let found: Vec<f32> = found.concat().into_iter().chain([0.0; 24]).collect();
    let constants = [f32s("zero", &[], &[0.0]), f32s("found", &[1, 7, 6], &found)];
    let ports = [port("x", ElementType::F32, &[1, 3, SIDE as i64, SIDE as i64])];
    let message = model(18, &graph(&nodes, &constants, &ports, &[any("output")]));
    Model::from_bytes(Arc::clone(runtime), &message.0).unwrap()
}

/// Pictures that are resized, normalised, and searched for objects. `between` stands between the
/// stages.
fn boxes(runtime: &Arc<Runtime>, between: fn(Builder<Tensor>) -> Builder<Tensor>) -> Vec<Vec<Detection>> {
    let model = detector(runtime);
    let suppress = Detector::new(&model);
    let pictures = (0..ITEMS).map(|item| Tensor::from_vec(vec![item as u8; 3 * 16 * 16], [1, 3, 16, 16]).unwrap());
    let builder = Pipeline::builder().source(pictures.collect::<Vec<_>>()).op(
        "resize",
        Arc::clone(runtime),
        |picture: &Tensor| Resize::new(picture, SIDE, SIDE),
    );
    let builder = between(builder).op("normalise", Arc::clone(runtime), |picture: &Tensor| {
        Normalize::new(picture, &[0.5; 3], &[0.5; 3]).scale(1.0 / 255.0)
    });
    let (found, report) = between(builder)
        .task("detect", move |picture: &Tensor, options| model.run_with(&[("x", picture.clone().into())], options))
        .task("boxes", move |outputs: &Outputs<ModelValue>, options| {
            suppress.boxes_task(outputs, &DetectOptions::default(), options)
        })
        .collect()
        .run()
        .unwrap();
    assert_eq!(report.stage("boxes").unwrap().given, ITEMS as u64);
    found
}

fn moved(runtime: &Runtime) -> u64 {
    runtime.metrics().devices.iter().map(|device| device.bytes_moved).sum()
}

#[test]
fn data_stays_on_the_device_from_the_picture_to_the_boxes() {
    let (runtime, _) = virtual_one(Script::new());
    let found = boxes(&runtime, |builder| builder);
    assert_eq!(found.len(), ITEMS);
    for objects in &found {
        let classes: Vec<usize> = objects.iter().map(|object| object.class).collect();
        assert_eq!(classes, [1, 0], "the overlapping box is suppressed");
    }
    let on_device = moved(&runtime);
    let (runtime, _) = virtual_one(Script::new());
    assert_eq!(boxes(&runtime, |builder| builder.map("look", |picture| picture)), found);
    let through_host = moved(&runtime);
    // Between each two stages a picture of 64 × 64 floats would go to the host and back.
    let floats = (ITEMS * 3 * SIDE * SIDE * 4) as u64;
    assert!(on_device + 2 * floats < through_host, "{on_device} and {through_host} bytes moved");
    assert!(on_device < floats, "{on_device} bytes moved for pictures of {} bytes", ITEMS * 3 * 16 * 16);
}

#[test]
fn a_trace_shows_the_device_of_each_step_of_a_model() {
    let (runtime, _) = virtual_one(Script::new().latency(Duration::from_millis(1)));
    let model = rows(&runtime, 2);
    let builder = Pipeline::builder().trace(1000).source((0..5).map(|_| x()).collect::<Vec<_>>());
    let model = builder.task("model", move |x: &ModelValue, options| model.run_with(&[("x", x.clone())], options));
    let RunOutcome { result, trace, .. } = model.collect().start().unwrap().wait();
    assert_eq!(result.unwrap().len(), 5);
    let trace = trace.unwrap();
    // For each item one span of the stage, and one for each of two graphs and of two copies.
    assert!(trace.spans() >= 5 * (1 + 3), "{} spans", trace.spans());
    let mut json = Vec::new();
    trace.write_json(&mut json).unwrap();
    let json = String::from_utf8(json).unwrap();
    assert!(json.contains("\"name\":\"simulated:0\""), "{json}");
}

#[test]
fn a_lost_device_starts_items_of_a_chain_with_a_model_again() {
    let (runtime, control) = virtual_one(Script::new());
    let expected = boxes(&runtime, |builder| builder);
    for _ in 0..3 {
        control.inject(Fault::Lost);
        assert_eq!(boxes(&runtime, |builder| builder), expected, "each item once, in order");
    }
    assert_eq!(control.counters().opened, 4);
}
