//! Ensembles and detectors on every kind of device of a bare machine: Vulkan in software and the
//! emulated device, and on CUDA if there is a GPU. Boxes are compared with those of the host.
#![allow(clippy::unwrap_used)] // A failed unwrap fails the test at its line.

use std::sync::Arc;

use crate::each::{completed, completes, numbers, on_each, pictures};
use crate::onnx::*;
use panoply_core::DeviceId;
use panoply_inputs::picture::{Fit, Normalisation, Picture};
use panoply_inputs::tasks::{DetectOptions, Detection, boxes, suppress};
use panoply_models::{Array, ElementType, Model};
use panoply_runtime::{RunOptions, Runtime};
use panoply_serve::tasks::{Detector, frame_of};
use panoply_serve::{Ensemble, Member, Stage};

fn runtime() -> Runtime {
    Runtime::builder().backend(Arc::new(panoply_cpu::CpuBackend::new())).build().unwrap()
}

fn on_host(output: &Array, score_min: f32) -> Vec<Detection> {
    boxes(output.dims(), &output.to_floats().unwrap(), score_min).unwrap()
}

/// Values between members of an ensemble stay on the device: each member runs one graph there, and
/// each output is copied back once.
#[test]
fn values_between_members_stay_on_their_device() {
    on_each(|runtime, device| {
        let model = Model::from_bytes(Arc::clone(runtime), &pictures().0.0).unwrap();
        let frame = frame_of(&model.inputs()[0], None).unwrap();
        let members = vec![
            Member::stage(Stage::decode()),
            Member::stage(Stage::fit(frame, Fit::Crop)),
            Member::stage(Stage::normalise(frame, Normalisation::Signed).unwrap()).writes("array", "x"),
            Member::new(&model),
            Member::stage(Stage::softmax(-1).unwrap()).reads("x", "y").writes("y", "likely"),
            Member::stage(Stage::top_k(3, -1).unwrap()).reads("x", "likely").writes("indices", "classes"),
        ];
        let chain = Ensemble::new("pictures", &["file"], &["values", "classes"], members).unwrap();
        let bytes: Vec<u8> = (0..32 * 24 * 3_u32).map(|place| (place * 7 % 251) as u8).collect();
        let picture = Picture::from_rgb(32, 24, bytes).unwrap();
        let file = picture.encode(false).unwrap();
        let file = Array::from_slice(&file, [file.len()]).unwrap();
        let (tensor, _) = picture.tensor(&frame, Fit::Crop, Normalisation::Signed).unwrap();
        let array = Array::from_tensor(&tensor).unwrap();
        let scores = model.reference(&[("x", array.into())]).unwrap()[0].array().unwrap().to_floats().unwrap();
        let sum: f64 = scores.iter().map(|score| score.exp()).sum();
        let mut expected: Vec<(f64, i64)> = scores.iter().map(|score| score.exp() / sum).zip(0..).collect();
        expected.sort_by(|a, b| b.0.total_cmp(&a.0));
        for turn in 0..2 {
            let before = completed(runtime, device);
            let outputs = chain.infer(&[("file", file.clone())], &RunOptions::require(device)).unwrap();
            let (values, classes) = (outputs.get("values").unwrap(), outputs.get("classes").unwrap());
            assert_eq!(classes.to_i64s().unwrap(), expected[..3].iter().map(|(_, class)| *class).collect::<Vec<_>>());
            for (got, (likely, _)) in values.to_floats().unwrap().iter().zip(&expected) {
                assert!((got - likely).abs() < 1e-4, "{got}, expected {likely}");
            }
            let (graphs, copies) = (4, 2);
            assert!(completes(runtime, device, before + graphs + copies), "turn {turn} on {device}");
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert_eq!(completed(runtime, device) - before, graphs + copies, "turn {turn} on {device}");
        }
    });
}

/// Random detector outputs in all three layouts: the device's boxes equal the host's.
fn check_boxes(runtime: &Arc<Runtime>, device: DeviceId) {
    let identity = [node("Identity", &["x"], &["y"], &[])];
    let ports = [port("x", ElementType::F32, &[-1])];
    let some =
        Model::from_bytes(Arc::clone(runtime), &model(18, &graph(&identity, &[], &ports, &[any("y")])).0).unwrap();
    let detector = Detector::new(&some);
    let run = RunOptions::require(device);
    let mut kept = 0;
    for (seed, dims) in [[1_usize, 7, 90], [1, 400, 8], [1, 300, 6], [1, 5, 70], [1, 70, 5]].into_iter().enumerate() {
        let across = dims[2] > dims[1];
        let (count, width) = if across { (dims[2], dims[1]) } else { (dims[1], dims[2]) };
        let raw = numbers(count * width, seed as u32 + 11);
        let mut values = vec![0.0_f32; count * width];
        for (place, raw) in raw.iter().enumerate() {
            let (object, part) = (place / width, place % width);
            let value = match part {
                0 | 1 => (raw + 0.5) * 60.0,
                2 | 3 if width == 6 && !across => 40.0 + (raw + 0.5) * 60.0,
                2 | 3 => 8.0 + (raw + 0.5) * 30.0,
                5 if width == 6 && !across => ((raw + 0.5) * 3.0).floor(),
                _ => raw + 0.5,
            };
            values[if across { part * count + object } else { place }] = value;
        }
        // A box with NaN does not count.
        values[0] = f32::NAN;
        let output = Array::from_slice(&values, dims).unwrap();
        for (score_min, overlap_max) in [(0.25, 0.45), (0.05, 0.1), (0.9, 0.7), (1.5, 0.5)] {
            let options = DetectOptions { score_min, overlap_max, ..DetectOptions::default() };
            let expected = suppress(on_host(&output, score_min), &options);
            let got = detector.boxes(&output, &options, &run).unwrap();
            let short = |list: &[Detection]| -> Vec<(usize, i64)> {
                list.iter().map(|object| (object.class, (object.score * 1e4) as i64)).collect()
            };
            assert_eq!(short(&got), short(&expected), "{dims:?} on {device} with {options:?}");
            for (got, expected) in got.iter().zip(&expected) {
                let near = got.corners.iter().zip(&expected.corners).all(|(a, b)| (a - b).abs() < 1e-3);
                assert!(near, "{got:?}, expected {expected:?}");
            }
            kept += got.len();
        }
    }
    assert!(kept > 100, "{kept} boxes were kept");
}

#[test]
fn boxes_are_suppressed_on_the_cpu() {
    let runtime = Arc::new(runtime());
    let device = runtime.devices().next().unwrap().id;
    check_boxes(&runtime, device);
}

#[test]
fn boxes_are_suppressed_on_devices() {
    on_each(|runtime, device| {
        let before = completed(runtime, device);
        check_boxes(runtime, device);
        assert!(completed(runtime, device) > before + 20, "boxes were not suppressed on {device}");
    });
}

/// A chain in which every box hides the next needs the largest number of rounds.
#[test]
fn a_long_chain_of_boxes_needs_many_rounds() {
    let runtime = Arc::new(runtime());
    let device = runtime.devices().next().unwrap().id;
    let some = Model::from_bytes(
        runtime,
        &model(
            18,
            &graph(&[node("Identity", &["x"], &["y"], &[])], &[], &[port("x", ElementType::F32, &[-1])], &[any("y")]),
        )
        .0,
    )
    .unwrap();
    let rows = (0..200).flat_map(|place| {
        let left = place as f32 * 4.0;
        [left, 0.0, left + 10.0, 10.0, 1.0 - place as f32 * 1e-3, 0.0]
    });
    let output = Array::from_slice(&rows.collect::<Vec<f32>>(), [1, 200, 6]).unwrap();
    let options = DetectOptions { overlap_max: 0.3, count_max: 500, ..DetectOptions::default() };
    let got = Detector::new(&some).boxes(&output, &options, &RunOptions::prefer(device)).unwrap();
    assert_eq!(got, suppress(on_host(&output, 0.25), &options));
    assert_eq!(got.len(), 100, "every second one");
}
