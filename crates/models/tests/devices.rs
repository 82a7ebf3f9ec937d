//! Small models on every kind of device of a bare machine: Vulkan in software and the emulated
//! device, beside the host, and on CUDA if there is a GPU. Models with saved answers run there too
//! (see `models.rs`): those in the repository, or the small ones of the folder in
//! `PANOPLY_ONNX_MODELS`, and with `PANOPLY_ONNX_ALL=1` all of that folder.
#![allow(clippy::unwrap_used)] // A failed unwrap fails the test at its line.

use crate::bench;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::bench::{Tolerance, Verdict, compare, saved_models, verdict_on};
use crate::each::{completed, completes, numbers, on_each, weights};
use crate::onnx::*;
use panoply_conformance::virtual_device::{Script, VirtualBackend};
use panoply_core::{Backend, DeviceId};
use panoply_cpu::CpuBackend;
use panoply_models::picture::{Fit, Frame, Normalisation, Picture};
use panoply_models::tasks::{DetectOptions, Detector, boxes, suppress};
use panoply_models::{Array, ElementType, Ensemble, Member, Model, Network, Stage, Value};
use panoply_runtime::{RunOptions, Runtime};

const TOLERANCE: Tolerance = Tolerance { relative: 2e-3, absolute: 2e-4 };
/// For models that quantize to bytes internally, as in `models.rs`.
const TOLERANCE_INT8: Tolerance = Tolerance { relative: 2e-3, absolute: 0.05 };
/// The time limit for a device to compile the kernels of its part of a model.
const TIME_TO_COMPILE: Duration = Duration::from_secs(60);
/// The models that a software device runs within seconds.
const SMALL: [&str; 6] = ["chars2vec", "lcnet-orientation", "ppocr-cls", "silero-vad", "wake-embedding", "wake-jarvis"];

/// A network of convolutions, normalisation, pools and a classifier.
fn pictures() -> (Message, Vec<(&'static str, Value)>) {
    let nodes = [
        node("Conv", &["x", "w1", "b1"], &["c1"], &[ints("pads", &[1, 1, 1, 1]), ints("strides", &[2, 2])]),
        node("BatchNormalization", &["c1", "scale", "b1", "b1", "variance"], &["n1"], &[]),
        node("Relu", &["n1"], &["r1"], &[]),
        node("Conv", &["r1", "w2"], &["c2"], &[int("group", 8), ints("pads", &[1, 1, 1, 1])]),
        node("HardSwish", &["c2"], &["h2"], &[]),
        node("MaxPool", &["h2"], &["p2"], &[ints("kernel_shape", &[2, 2]), ints("strides", &[2, 2])]),
        node("GlobalAveragePool", &["p2"], &["mean"], &[]),
        node("Flatten", &["mean"], &["flat"], &[]),
        node("Gemm", &["flat", "w3"], &["logits"], &[int("transB", 1)]),
        node("Softmax", &["logits"], &["y"], &[int("axis", 1)]),
    ];
    let constants = [
        weights("w1", &[8, 3, 3, 3], 1),
        weights("b1", &[8], 2),
        f32s("scale", &[8], &[1.5; 8]),
        f32s("variance", &[8], &[0.7; 8]),
        weights("w2", &[8, 1, 3, 3], 3),
        weights("w3", &[5, 8], 4),
    ];
    let ports = [port("x", ElementType::F32, &[-1, 3, 16, 16])];
    let given = Array::from_slice(&numbers(2 * 3 * 256, 5), [2, 3, 16, 16]).unwrap();
    (model(18, &graph(&nodes, &constants, &ports, &[any("y")])), vec![("x", given.into())])
}

/// A network of an embedding, attention with a mask, normalisation and dense layers.
fn sentences() -> (Message, Vec<(&'static str, Value)>) {
    let nodes = [
        node("Gather", &["table", "ids"], &["x"], &[]),
        node("MatMul", &["x", "wq"], &["q"], &[]),
        node("MatMul", &["x", "wk"], &["k"], &[]),
        node("Transpose", &["k"], &["kt"], &[ints("perm", &[0, 2, 1])]),
        node("MatMul", &["q", "kt"], &["s"], &[]),
        node("Cast", &["mask"], &["fmask"], &[int("to", 1)]),
        node("Sub", &["one", "fmask"], &["hidden"], &[]),
        node("Mul", &["hidden", "low"], &["bias"], &[]),
        node("Unsqueeze", &["bias", "axis"], &["bias3"], &[]),
        node("Add", &["s", "bias3"], &["masked"], &[]),
        node("Softmax", &["masked"], &["p"], &[int("axis", -1)]),
        node("MatMul", &["p", "x"], &["a"], &[]),
        node("Add", &["a", "x"], &["sum"], &[]),
        node("LayerNormalization", &["sum", "gamma", "beta"], &["n"], &[int("axis", -1)]),
        node("MatMul", &["n", "w1"], &["h"], &[]),
        node("Gelu", &["h"], &["g"], &[]),
        node("MatMul", &["g", "w2"], &["y"], &[]),
    ];
    let constants = [
        weights("table", &[40, 16], 1),
        weights("wq", &[16, 16], 2),
        weights("wk", &[16, 16], 3),
        f32s("one", &[1], &[1.0]),
        f32s("low", &[1], &[-10_000.0]),
        i64s("axis", &[1], &[1]),
        f32s("gamma", &[16], &[1.1; 16]),
        weights("beta", &[16], 4),
        weights("w1", &[16, 32], 5),
        weights("w2", &[32, 16], 6),
    ];
    let ports = [port("ids", ElementType::I64, &[-1, -2]), port("mask", ElementType::I64, &[-1, -2])];
    let ids: Vec<i64> = (0..24).map(|place| (place * 7) % 40).collect();
    let mask: Vec<i64> = (0..24).map(|place| i64::from(place % 12 < 9)).collect();
    let array = |values: &[i64]| Value::from(Array::from_slice(values, [2, 12]).unwrap());
    let given = vec![("ids", array(&ids)), ("mask", array(&mask))];
    (model(20, &graph(&nodes, &constants, &ports, &[any("y")])), given)
}

#[test]
fn small_models_answer_as_on_the_host() {
    on_each(|runtime, device| {
        for (name, (file, given)) in [("pictures", pictures()), ("sentences", sentences())] {
            let network = Network::from_bytes(&file.0).unwrap();
            let expected = network.reference(&given).unwrap();
            let before = completed(runtime, device);
            for turn in 0..2 {
                let got = network.infer_values(runtime, &given, &RunOptions::require(device)).unwrap();
                for (got, expected) in got.iter().zip(&expected) {
                    compare(got, expected, TOLERANCE.relative, TOLERANCE.absolute)
                        .unwrap_or_else(|reason| panic!("{name}, turn {turn} on {device}: {reason}"));
                }
            }
            let ran = completed(runtime, device) - before;
            assert!(completes(runtime, device, before + 2), "{name}: {ran} ops ran on {device}");
        }
    });
}

#[test]
fn normalizations_are_folded_into_the_convolutions_that_alone_feed_them() {
    let (x, w1, w2) = (numbers(2 * 3 * 64, 5), numbers(8 * 27, 1), numbers(4 * 8, 2));
    let nodes = [
        node("Conv", &["x", "w1", "b1"], &["c1"], &[ints("pads", &[1, 1, 1, 1])]),
        node("BatchNormalization", &["c1", "s1", "b1", "b1", "v1"], &["n1"], &[]),
        node("Conv", &["n1", "w2"], &["c2"], &[]),
        node("BatchNormalization", &["c2", "s2", "m2", "m2", "s2"], &["y"], &[]),
    ];
    let constants = [
        f32s("w1", &[8, 3, 3, 3], &w1),
        weights("b1", &[8], 3),
        weights("s1", &[8], 4),
        f32s("v1", &[8], &[0.3; 8]),
        f32s("w2", &[4, 8, 1, 1], &w2),
        f32s("s2", &[4], &[0.5, 1.0, 2.0, 4.0]),
        weights("m2", &[4], 6),
    ];
    let ports = [port("x", ElementType::F32, &[2, 3, 8, 8])];
    let given: Vec<(&str, Value)> = vec![("x", Array::from_slice(&x, [2, 3, 8, 8]).unwrap().into())];
    let runtime = bench::runtime();
    // A convolution whose output has another reader is not folded, so the second model runs its
    // normalizations unchanged.
    let [folded, plain] = [vec![any("y")], vec![any("y"), any("c1"), any("c2")]].map(|outputs| {
        let network = Network::from_bytes(&model(18, &graph(&nodes, &constants, &ports, &outputs)).0).unwrap();
        let answers = network.infer_values(&runtime, &given, &RunOptions::default()).unwrap();
        compare(&answers[0], &network.reference(&given).unwrap()[0], 1e-4, 1e-5).unwrap();
        (answers[0].clone(), network.steps())
    });
    compare(&folded.0, &plain.0, 1e-4, 1e-5).unwrap();
    assert_ne!(folded.1, plain.1, "nothing was folded");
}

#[test]
fn small_models_with_saved_answers() {
    let folder = saved_models();
    let prefix = std::env::var("PANOPLY_ONNX_CASE").unwrap_or_default();
    let mut names: Vec<_> = if std::env::var_os("PANOPLY_ONNX_ALL").is_some_and(|value| value == "1") {
        let entries = std::fs::read_dir(&folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    } else {
        SMALL.map(String::from).to_vec()
    };
    names.retain(|name| name.starts_with(&prefix));
    names.sort();
    let mut failed = Vec::new();
    on_each(|runtime, device| {
        for name in &names {
            let folder = Path::new(&folder).join(name);
            if !folder.is_dir() {
                println!("skipped: {name} is not there");
                continue;
            }
            let before = completed(runtime, device);
            let started = std::time::Instant::now();
            let tolerance = if name.contains("int8") { TOLERANCE_INT8 } else { TOLERANCE };
            // If the device can run the model whole, it must. Otherwise it gets its part once its
            // kernels are compiled, and runs do not wait for that.
            let mut verdict = verdict_on(&folder, runtime, &RunOptions::require(device), false, tolerance);
            let mut is_whole = true;
            while is_refused(&verdict) && started.elapsed() < TIME_TO_COMPILE {
                is_whole = false;
                let preferred = verdict_on(&folder, runtime, &RunOptions::prefer(device), false, tolerance);
                if completes(runtime, device, before + 1) || !matches!(preferred, Verdict::Passed(_)) {
                    verdict = preferred;
                }
            }
            match verdict {
                Verdict::Passed(off) if completes(runtime, device, before + 1) => {
                    let how = if is_whole { "passed" } else { "passed in part" };
                    println!("{how} {name} on {device} in {:?}, off by {off:.1e}", started.elapsed())
                }
                Verdict::Passed(_) => {
                    println!("FAILED {name} on {device}: no op of it ran there");
                    failed.push(format!("{name} on {device}"));
                }
                Verdict::Refused(reason) | Verdict::Wrong(reason) => {
                    println!("FAILED {name} on {device}: {reason}");
                    failed.push(format!("{name} on {device}"));
                }
            }
            println!("{} ops of {name} ran on {device}", completed(runtime, device) - before);
        }
    });
    assert!(failed.is_empty(), "{failed:?}");
}

/// Whether the device lacks a form of some step.
fn is_refused(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Refused(_) => true,
        Verdict::Wrong(reason) => reason.contains("no device can run"),
        Verdict::Passed(_) => false,
    }
}

/// Every device detects NaN, and within its own graph.
#[test]
fn nan_is_seen_on_devices() {
    let nodes = [
        node("IsNaN", &["x"], &["is"], &[]),
        node("Where", &["is", "zero", "x"], &["kept"], &[]),
        node("Softmax", &["kept"], &["y"], &[]),
    ];
    let ports = [port("x", ElementType::F32, &[2, 3])];
    let file = model(18, &graph(&nodes, &[f32s("zero", &[1], &[0.0])], &ports, &[any("y"), any("is")]));
    on_each(|runtime, device| {
        let network = Network::from_bytes(&file.0).unwrap();
        let values = [f32::NAN, 1.0, -1.0, f32::INFINITY, -f32::NAN, f32::NEG_INFINITY];
        let given = [("x", Value::from(Array::from_slice(&values, [2, 3]).unwrap()))];
        let expected = Network::from_bytes(&file.0).unwrap().reference(&given).unwrap();
        let got = network.infer_values(runtime, &given, &RunOptions::require(device)).unwrap();
        assert_eq!(got[1].array().unwrap().to_floats().unwrap(), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0], "on {device}");
        compare(&got[0], &expected[0], 1e-4, 1e-6).unwrap();
        assert!(network.steps().starts_with("1 graphs") && network.steps().ends_with("nothing"), "{}", network.steps());
    });
}

/// A model whose graph exceeds a device's memory runs on another device, or fails with both figures
/// if that is forbidden. An earlier run on the host for reference makes no difference.
#[test]
fn a_model_larger_than_a_devices_memory_goes_elsewhere() {
    let nodes = [node("MatMul", &["x", "w"], &["h"], &[]), node("Softmax", &["h"], &["y"], &[])];
    let constants = [weights("w", &[512, 512], 1)];
    let file = model(18, &graph(&nodes, &constants, &[port("x", ElementType::F32, &[-1, 512])], &[any("y")]));
    let devices = VirtualBackend::new(Arc::new(CpuBackend::new()))
        .device(Script::new().memory_bytes(100 << 10))
        .device(Script::new().memory_bytes(100 << 20));
    let ids: Vec<DeviceId> = devices.discover().unwrap().iter().map(|device| device.id).collect();
    let runtime = Runtime::builder().backend(Arc::new(devices)).build().unwrap();
    let network = Network::from_bytes(&file.0).unwrap();
    let given = |rows: usize| [("x", Value::from(Array::from_slice(&numbers(512 * rows, 2), [rows, 512]).unwrap()))];
    let expected = network.reference(&given(1)).unwrap();
    for turn in 1..3 {
        let got = network.infer_values(&runtime, &given(1), &RunOptions::prefer(ids[0])).unwrap();
        compare(&got[0], &expected[0], 1e-4, 1e-4).unwrap();
        assert!(completes(&runtime, ids[1], turn), "it goes to where it fits");
        assert_eq!(completed(&runtime, ids[0]), 0, "it does not fit there");
    }
    let refused = network.infer_values(&runtime, &given(1), &RunOptions::require(ids[0])).unwrap_err().to_string();
    let needed = 512 * 512 * 4;
    assert!(refused.contains("102400") && refused.contains("at its peak"), "{refused}, {needed} bytes of weights");
    // More rows than any device has memory for: the error has both figures, for the largest device.
    let refused = network.infer_values(&runtime, &given(40_000), &RunOptions::default()).unwrap_err().to_string();
    assert!(refused.contains("bytes") && refused.contains("104857600"), "{refused}");
}

/// Values between members of an ensemble stay on the device: each member runs one graph there, and
/// each output is copied back once.
#[test]
fn values_between_members_stay_on_their_device() {
    on_each(|runtime, device| {
        let model = Model::from_bytes(Arc::clone(runtime), &pictures().0.0).unwrap();
        let frame = Frame::of(&model.inputs()[0], None).unwrap();
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
        let (array, _) = picture.array(&frame, Fit::Crop, Normalisation::Signed).unwrap();
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
            let expected = suppress(boxes(&output, score_min).unwrap(), &options);
            let got = detector.boxes(&output, &options, &run).unwrap();
            let short = |list: &[panoply_models::tasks::Detection]| -> Vec<(usize, i64)> {
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
    let runtime = Arc::new(bench::runtime());
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
    let runtime = Arc::new(bench::runtime());
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
    assert_eq!(got, suppress(boxes(&output, 0.25).unwrap(), &options));
    assert_eq!(got.len(), 100, "every second one");
}
