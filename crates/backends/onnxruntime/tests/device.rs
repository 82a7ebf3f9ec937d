//! ONNX Runtime as a device, if `PANOPLY_ONNXRUNTIME` names its library, and the errors if it does
//! not.
#![allow(clippy::unwrap_used)] // Tests panic on unexpected results.

use std::path::PathBuf;
use std::sync::Arc;

use panoply_core::{Absence, Backend, Bytes, Capabilities, Error};
use panoply_onnxruntime::{LoadModel, ModelArray, ModelSource, ONNX_RUNTIME, OnnxRuntimeBackend, RunModel};
use panoply_runtime::Runtime;

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
