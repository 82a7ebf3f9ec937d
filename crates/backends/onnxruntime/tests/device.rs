//! ONNX Runtime as a device, if `PANOPLY_ONNXRUNTIME` names its library, and the errors if it does
//! not.
#![allow(clippy::unwrap_used)] // Tests panic on unexpected results.

use std::path::PathBuf;
use std::sync::Arc;

use panoply_core::{Absence, Api, Backend, Bytes, Capabilities, DeviceKind, Error};
use panoply_onnxruntime::{ONNX_RUNTIME, OnnxRuntimeBackend};
use panoply_runtime::{FallbackPolicy, RunOptions, Runtime};
use panoply_whole_model::{InspectModel, LoadModel, ModelArray, ModelShare, ModelSource, RunModel};

/// An ONNX file with `y = Relu(x)`, where `x` has two elements.
const RELU: &[u8] =
    b"\x08\x09\x3a0\x0a\x0c\x0a\x01x\x12\x01y\x22\x04ReluZ\x0f\x0a\x01x\x12\x0a\x0a\x08\x08\x01\x12\x04\
\x0a\x02\x08\x02b\x0f\x0a\x01y\x12\x0a\x0a\x08\x08\x01\x12\x04\x0a\x02\x08\x02B\x02\x10\x12";

fn load(bytes: &[u8]) -> LoadModel {
    LoadModel { source: ModelSource::Bytes(Bytes::from_vec(bytes.to_vec())) }
}

fn floats(values: &[f32]) -> ModelArray {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    ModelArray { element_type: 1, dims: vec![values.len()], bytes: Bytes::from_vec(bytes) }
}

/// A runtime with only this device, if it exists.
fn runtime() -> Option<Runtime> {
    let backend = OnnxRuntimeBackend::from_environment();
    match backend.discover() {
        Ok(devices) => {
            println!("{}", devices[0].name);
            assert!(devices[0].capabilities.has(Capabilities::WHOLE_MODELS));
            Some(Runtime::builder().backend(Arc::new(backend)).build().unwrap())
        }
        Err(absence) => {
            println!("skipped: {absence}");
            None
        }
    }
}

#[test]
fn a_library_that_is_not_there_is_a_reason() {
    let absent = OnnxRuntimeBackend::of(None).discover().unwrap_err();
    assert!(absent.to_string().contains("PANOPLY_ONNXRUNTIME"), "{absent}");
    let absent = OnnxRuntimeBackend::of(Some(PathBuf::from("/nonexistent/libonnxruntime.so"))).discover().unwrap_err();
    assert!(matches!(&absent, Absence::LibraryMissing { tried } if tried.len() == 1), "{absent}");
    let folder = std::env::temp_dir();
    assert!(OnnxRuntimeBackend::of(Some(folder)).discover().is_err(), "a folder without it");
    // A file that is there and is no library has the loader's reason.
    let text = std::env::temp_dir().join(format!("panoply-onnxruntime-{}.so", std::process::id()));
    std::fs::write(&text, "no library").unwrap();
    let broken = OnnxRuntimeBackend::of(Some(text.clone())).discover().unwrap_err().to_string();
    std::fs::remove_file(text).unwrap();
    assert!(broken.contains("cannot be loaded: "), "{broken}");
    // Another library does not export the function.
    let other = OnnxRuntimeBackend::of(Some(PathBuf::from("libc.so.6"))).discover();
    assert!(other.is_err());
}

#[test]
fn models_are_loaded_once_and_run_often() {
    let Some(runtime) = runtime() else { return };
    let model = runtime.run(load(RELU)).wait().unwrap();
    assert_eq!((model.device().api, model.kind()), (ONNX_RUNTIME, "model"));
    for turn in 1..10 {
        let value = turn as f32;
        let inputs = vec![("x".to_owned(), floats(&[-value, value]))];
        let outputs = runtime.run(RunModel { model: model.clone(), inputs }).wait().unwrap();
        let [(name, y)] = outputs.as_slice() else { panic!("{outputs:?}") };
        assert_eq!((name.as_str(), y.element_type, y.dims.as_slice()), ("y", 1, &[2][..]));
        assert_eq!(y.bytes.as_slice().unwrap(), [0.0_f32.to_le_bytes(), value.to_le_bytes()].concat());
    }
}

#[test]
fn what_the_library_refuses_is_an_error_and_no_fault_of_the_device() {
    let Some(runtime) = runtime() else { return };
    for bytes in [&RELU[..20], b"no model", &[0xff; 64]] {
        let refused = runtime.run(load(bytes)).wait().unwrap_err();
        assert!(matches!(&refused, Error::Unsupported { reason, .. } if reason.contains("ONNX Runtime")), "{refused}");
    }
    let missing = LoadModel { source: ModelSource::File(PathBuf::from("/nonexistent.onnx")) };
    assert!(runtime.run(missing).wait().is_err());
    let model = runtime.run(load(RELU)).wait().unwrap();
    let run = |name: &str, array| {
        runtime.run(RunModel { model: model.clone(), inputs: vec![(name.to_owned(), array)] }).wait()
    };
    assert!(run("z", floats(&[1.0, 2.0])).unwrap_err().to_string().contains("\"x\""), "names are told");
    assert!(run("x", floats(&[1.0, 2.0, 3.0])).is_err(), "three numbers instead of two");
    let integers = ModelArray { element_type: 7, dims: vec![2], bytes: Bytes::from_vec(vec![0; 16]) };
    assert!(run("x", integers).is_err(), "integers instead of floats");
    let short = ModelArray { element_type: 1, dims: vec![2], bytes: Bytes::from_vec(vec![0; 7]) };
    assert!(run("x", short).is_err(), "a byte is missing");
    assert!(runtime.run(RunModel { model: model.clone(), inputs: Vec::new() }).wait().is_err(), "nothing is given");
    assert!(run("x", floats(&[1.0, 2.0])).is_ok(), "the device is still there");
}

/// An ONNX file with `y = Binarizer(x)` of the domain `ai.onnx.ml`, with the threshold 0.5. Only
/// the provider of the processor's cores has this op.
const BINARIZER: &[u8] =
    b"\x08\x09\x12\x00:Y\x0a2\x0a\x01x\x12\x01y\x22\x09Binarizer*\x13\x0a\x09threshold\x15\x00\x00\x00?\xa0\x01\x01\
:\x0aai.onnx.ml\x12\x01gZ\x0f\x0a\x01x\x12\x0a\x0a\x08\x08\x01\x12\x04\x0a\x02\x08\x02b\x0f\x0a\x01y\x12\x0a\x0a\x08\
\x08\x01\x12\x04\x0a\x02\x08\x02B\x04\x0a\x00\x10\x12B\x0e\x0a\x0aai.onnx.ml\x10\x02";
/// The same of `Relu(x)`.
const RELU_AND_BINARIZER: &[u8] =
    b"\x08\x09\x12\x00:g\x0a\x0c\x0a\x01x\x12\x01a\x22\x04Relu\x0a2\x0a\x01a\x12\x01y\x22\x09Binarizer*\x13\x0a\x09thresh\
old\x15\x00\x00\x00?\xa0\x01\x01:\x0aai.onnx.ml\x12\x01gZ\x0f\x0a\x01x\x12\x0a\x0a\x08\x08\x01\x12\x04\x0a\x02\x08\x02b\x0f\
\x0a\x01y\x12\x0a\x0a\x08\x08\x01\x12\x04\x0a\x02\x08\x02B\x04\x0a\x00\x10\x12B\x0e\x0a\x0aai.onnx.ml\x10\x02";

/// The backends of these providers, if the library is there.
fn providers(texts: &[&str]) -> Option<Vec<OnnxRuntimeBackend>> {
    if let Err(absence) = OnnxRuntimeBackend::from_environment().discover() {
        println!("skipped: {absence}");
        return None;
    }
    Some(OnnxRuntimeBackend::with_providers(texts).unwrap())
}

/// A runtime with the provider of OpenVINO and that of the cores, if the library was built with
/// both.
fn openvino() -> Option<Runtime> {
    let backends = providers(&["openvino:device_type=CPU", "cpu"])?;
    let devices = match backends[0].discover() {
        Ok(devices) => devices,
        Err(absence) => {
            println!("skipped: {absence}");
            return None;
        }
    };
    assert_eq!((devices[0].kind, devices[0].id.to_string().as_str()), (DeviceKind::Cpu, "ort-openvino:0"));
    assert_eq!(devices[0].through, Some(Api::new("openvino")));
    let add = |builder: panoply_runtime::Builder, backend| builder.backend(Arc::new(backend));
    Some(backends.into_iter().fold(Runtime::builder(), add).build().unwrap())
}

#[test]
fn unknown_providers_are_refused_with_those_known() {
    let refused = OnnxRuntimeBackend::with_providers(&["cpu", "gpu"]).err().unwrap().to_string();
    assert!(refused.contains("cpu, cuda, tensorrt") && refused.contains("\"gpu\""), "{refused}");
    let refused = OnnxRuntimeBackend::with_providers(&["cuda", "cuda:device_id=1"]).err().unwrap().to_string();
    assert!(refused.contains("cuda twice"), "{refused}");
}

#[test]
fn a_provider_that_is_not_there_is_a_reason() {
    let Some(backends) = providers(&["cuda", "tensorrt", "coreml", "qnn", "openvino:device_type=NPU", "cpu"]) else {
        return;
    };
    let mut built_without = 0;
    for backend in &backends {
        match backend.discover() {
            Ok(devices) => println!("{}: {}", backend.api(), devices[0].name),
            Err(absence) => {
                println!("{}: {absence}", backend.api());
                let told = absence.to_string();
                assert!(told.contains("ONNX Runtime") && told.contains("provider"), "{told}");
                built_without += usize::from(told.contains("was built without") && told.contains("CPUExecution"));
            }
        }
    }
    assert!(built_without >= 1, "no build has CUDA and CoreML");
    // If OpenVINO's provider is there, this machine may lack the NPU: the reason names it.
    if let Err(absence) = backends[4].discover() {
        let told = absence.to_string();
        assert!(told.contains("was built without") || told.contains("NPU"), "{told}");
    }
    assert!(backends[5].discover().is_ok());
}

#[test]
fn the_providers_that_run_a_model_are_told() {
    let Some(runtime) = runtime() else { return };
    let model = runtime.run(load(RELU)).wait().unwrap();
    let shares = runtime.run(InspectModel { model }).wait().unwrap();
    let [ModelShare { by, nodes }] = shares.as_slice() else { panic!("{shares:?}") };
    assert_eq!(by, "CPUExecutionProvider");
    assert!(nodes.is_none_or(|nodes| nodes == 1), "{nodes:?}");
}

#[test]
fn a_provider_runs_what_it_takes_and_says_what_the_cores_run() {
    let Some(runtime) = openvino() else { return };
    let there = RunOptions::require("ort-openvino:0".parse().unwrap());
    for (bytes, expected) in [
        (RELU, vec![("OpenVINOExecutionProvider", 1)]),
        (RELU_AND_BINARIZER, vec![("CPUExecutionProvider", 1), ("OpenVINOExecutionProvider", 1)]),
    ] {
        let model = runtime.run_with(load(bytes), there.clone()).wait().unwrap();
        assert_eq!(model.device().to_string(), "ort-openvino:0");
        let mut shares = runtime.run(InspectModel { model: model.clone() }).wait().unwrap();
        shares.sort_by(|a, b| a.by.cmp(&b.by));
        let expected = expected.into_iter().map(|(by, nodes)| ModelShare { by: by.to_owned(), nodes: Some(nodes) });
        assert_eq!(shares, expected.collect::<Vec<_>>());
        let inputs = vec![("x".to_owned(), floats(&[-1.0, 1.0]))];
        let outputs = runtime.run(RunModel { model, inputs }).wait().unwrap();
        assert_eq!(outputs[0].1.bytes.as_slice().unwrap(), [0.0_f32.to_le_bytes(), 1.0_f32.to_le_bytes()].concat());
    }
}

#[test]
fn a_model_that_a_provider_does_not_take_goes_elsewhere_only_under_the_policy() {
    let Some(runtime) = openvino() else { return };
    let there = RunOptions::require("ort-openvino:0".parse().unwrap());
    let alone = there.fallback(FallbackPolicy::None);
    let refused = runtime.run_with(load(BINARIZER), alone).wait().unwrap_err();
    assert!(matches!(&refused, Error::DeviceFault { reason, .. } if reason.contains("takes none")), "{refused}");
    let options = RunOptions::prefer("ort-openvino:0".parse().unwrap()).fallback(FallbackPolicy::Alternate);
    let outcome = runtime.run_with(load(BINARIZER), options).with_report().wait().unwrap();
    assert_eq!(outcome.output.device().api, ONNX_RUNTIME);
    let fallback = outcome.report.fallback.unwrap();
    assert!(fallback.cause.to_string().contains("takes none"), "{fallback:?}");
}

#[test]
fn an_option_of_the_session_refuses_split_models() {
    let text = "openvino:device_type=CPU,session.disable_cpu_ep_fallback=1";
    let Some(mut backends) = providers(&[text]) else { return };
    if let Err(absence) = backends[0].discover() {
        println!("skipped: {absence}");
        return;
    }
    let runtime = Runtime::builder().backend(Arc::new(backends.remove(0))).build().unwrap();
    assert!(runtime.run(load(RELU)).wait().is_ok());
    let refused = runtime.run(load(RELU_AND_BINARIZER)).wait().unwrap_err().to_string();
    assert!(refused.contains("fallback"), "{refused}");
}
