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
use crate::each::{completed, completes, numbers, on_each, pictures, weights};
use crate::onnx::*;
use panoply_conformance::virtual_device::{Script, VirtualBackend};
use panoply_core::{Backend, DeviceId};
use panoply_cpu::CpuBackend;
use panoply_models::{Array, ElementType, Network, Value};
use panoply_runtime::{RunOptions, Runtime};

const TOLERANCE: Tolerance = Tolerance { relative: 2e-3, absolute: 2e-4 };
/// For models that quantize to bytes internally, as in `models.rs`.
const TOLERANCE_INT8: Tolerance = Tolerance { relative: 2e-3, absolute: 0.05 };
/// The time limit for a device to compile the kernels of its part of a model.
const TIME_TO_COMPILE: Duration = Duration::from_secs(60);
/// The models that a software device runs within seconds.
const SMALL: [&str; 6] = ["chars2vec", "lcnet-orientation", "ppocr-cls", "silero-vad", "wake-embedding", "wake-jarvis"];

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
        assert!(
            network.steps().starts_with("1 graph of") && network.steps().ends_with("nothing"),
            "{}",
            network.steps()
        );
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
