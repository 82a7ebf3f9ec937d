//! OpenVINO as a device, if `PANOPLY_OPENVINO` names its library, and the errors if it does not.
#![allow(clippy::unwrap_used)] // Tests panic on unexpected results.

use std::path::PathBuf;
use std::sync::Arc;

use panoply_core::{Absence, Backend, Bytes, Capabilities, DeviceKind, Error};
use panoply_openvino::{OPENVINO, OpenVinoBackend};
use panoply_runtime::Runtime;
use panoply_whole_model::{InspectModel, LoadModel, ModelArray, ModelSource, RunModel};

/// An ONNX file with `y = Relu(x)`, where `x` has two elements.
const RELU: &[u8] =
    b"\x08\x09\x3a0\x0a\x0c\x0a\x01x\x12\x01y\x22\x04ReluZ\x0f\x0a\x01x\x12\x0a\x0a\x08\x08\x01\x12\x04\
\x0a\x02\x08\x02b\x0f\x0a\x01y\x12\x0a\x0a\x08\x08\x01\x12\x04\x0a\x02\x08\x02B\x02\x10\x12";
/// The same with `x` of any number of rows of two elements.
const RELU_OF_ROWS: &[u8] = b"\x08\x09\x12\x00:=\x0a\x0c\x0a\x01x\x12\x01y\x22\x04Relu\x12\x01gZ\x14\x0a\x01x\x12\
\x0f\x0a\x0d\x08\x01\x12\x09\x0a\x03\x12\x01n\x0a\x02\x08\x02b\x14\x0a\x01y\x12\x0f\x0a\x0d\x08\x01\x12\x09\x0a\x03\
\x12\x01n\x0a\x02\x08\x02B\x04\x0a\x00\x10\x12";
/// `y = Cast(x)` from f32 to i64, whose number is there twice.
const CAST: &[u8] = b"\x08\x09\x12\x00:>\x0a\x17\x0a\x01x\x12\x01y\x22\x04Cast*\x09\x0a\x02to\x18\x07\xa0\x01\x02\x12\
\x01gZ\x0f\x0a\x01x\x12\x0a\x0a\x08\x08\x01\x12\x04\x0a\x02\x08\x02b\x0f\x0a\x01y\x12\x0a\x0a\x08\x08\x07\x12\x04\x0a\
\x02\x08\x02B\x04\x0a\x00\x10\x12";
/// `y = Identity(a)` of `a = Relu(x)`. OpenVINO makes one value of `a` and `y`.
const RELU_AND_IDENTITY: &[u8] =
    b"\x08\x09\x12\x00:E\x0a\x0c\x0a\x01x\x12\x01a\x22\x04Relu\x0a\x10\x0a\x01a\x12\x01y\x22\x08Identity\x12\
\x01gZ\x0f\x0a\x01x\x12\x0a\x0a\x08\x08\x01\x12\x04\x0a\x02\x08\x02b\x0f\x0a\x01y\x12\x0a\x0a\x08\x08\
\x01\x12\x04\x0a\x02\x08\x02B\x04\x0a\x00\x10\x12";

fn load(bytes: &[u8]) -> LoadModel {
    LoadModel { source: ModelSource::Bytes(Bytes::from_vec(bytes.to_vec())) }
}

fn floats(values: &[f32], dims: &[usize]) -> ModelArray {
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    ModelArray { element_type: 1, dims: dims.to_vec(), bytes: Bytes::from_vec(bytes) }
}

/// A runtime with only this API's devices, if there are any.
fn runtime() -> Option<Runtime> {
    let backend = OpenVinoBackend::from_environment();
    match backend.discover() {
        Ok(devices) => {
            devices.iter().for_each(|device| println!("{}: {}", device.id, device.name));
            assert!(devices.iter().all(|device| device.capabilities.has(Capabilities::WHOLE_MODELS)));
            let cpu = devices.iter().find(|device| device.kind == DeviceKind::Cpu).unwrap();
            assert!(cpu.runs_on_cores && cpu.name.contains(" on CPU: "), "{cpu:?}");
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
    let absent = OpenVinoBackend::of(None).discover().unwrap_err();
    assert!(absent.to_string().contains("PANOPLY_OPENVINO"), "{absent}");
    let absent = OpenVinoBackend::of(Some(PathBuf::from("/nonexistent/libopenvino_c.so"))).discover().unwrap_err();
    assert!(matches!(&absent, Absence::LibraryMissing { tried } if tried.len() == 1), "{absent}");
    assert!(OpenVinoBackend::of(Some(std::env::temp_dir())).discover().is_err(), "a folder without it");
    // A file that is there and is no library has the loader's reason.
    let text = std::env::temp_dir().join(format!("panoply-openvino-{}.so", std::process::id()));
    std::fs::write(&text, "no library").unwrap();
    let broken = OpenVinoBackend::of(Some(text.clone())).discover().unwrap_err().to_string();
    std::fs::remove_file(text).unwrap();
    assert!(broken.contains("cannot be loaded: "), "{broken}");
    // Another library does not export the functions.
    let other = OpenVinoBackend::of(Some(PathBuf::from("libc.so.6"))).discover().unwrap_err();
    assert!(cfg!(not(target_os = "linux")) || other.to_string().contains("ov_get_openvino_version"), "{other}");
}

#[test]
fn models_are_loaded_once_and_run_often() {
    let Some(runtime) = runtime() else { return };
    let model = runtime.run(load(RELU)).wait().unwrap();
    assert_eq!((model.device().api, model.kind()), (OPENVINO, "model"));
    let shares = runtime.run(InspectModel { model: model.clone() }).wait().unwrap();
    assert_eq!((shares.len(), shares[0].nodes), (1, None));
    for turn in 1..10 {
        let value = turn as f32;
        let inputs = vec![("x".to_owned(), floats(&[-value, value], &[2]))];
        let outputs = runtime.run(RunModel { model: model.clone(), inputs }).wait().unwrap();
        let [(name, y)] = outputs.as_slice() else { panic!("{outputs:?}") };
        assert_eq!((name.as_str(), y.element_type, y.dims.as_slice()), ("y", 1, &[2][..]));
        assert_eq!(y.bytes.as_slice().unwrap(), [0.0_f32.to_le_bytes(), value.to_le_bytes()].concat());
    }
}

#[test]
fn sizes_may_differ_from_run_to_run() {
    let Some(runtime) = runtime() else { return };
    let model = runtime.run(load(RELU_OF_ROWS)).wait().unwrap();
    for rows in [3, 1, 1000, 0, 7] {
        let values: Vec<f32> = (0..2 * rows).map(|place| place as f32 - 3.0).collect();
        let inputs = vec![("x".to_owned(), floats(&values, &[rows, 2]))];
        let outputs = runtime.run(RunModel { model: model.clone(), inputs }).wait().unwrap();
        assert_eq!(outputs[0].1.dims, [rows, 2]);
        let expected: Vec<u8> = values.iter().flat_map(|value| value.max(0.0).to_le_bytes()).collect();
        assert_eq!(outputs[0].1.bytes.as_slice().unwrap(), expected, "{rows} rows");
    }
}

#[test]
fn element_types_have_their_numbers() {
    let Some(runtime) = runtime() else { return };
    let places: Vec<usize> = (0..CAST.len()).filter(|place| CAST[*place] == 7).collect();
    assert_eq!(places.len(), 2);
    for (number, three) in [
        (1, 3.0_f32.to_le_bytes().to_vec()),
        (2, vec![3]),
        (3, vec![3]),
        (4, vec![3, 0]),
        (5, vec![3, 0]),
        (6, 3_i32.to_le_bytes().to_vec()),
        (7, 3_i64.to_le_bytes().to_vec()),
        (9, vec![1]),
        (10, vec![0x00, 0x42]),
        (11, 3.0_f64.to_le_bytes().to_vec()),
        (12, 3_u32.to_le_bytes().to_vec()),
        (13, 3_u64.to_le_bytes().to_vec()),
        (16, vec![0x40, 0x40]),
    ] {
        let mut bytes = CAST.to_vec();
        places.iter().for_each(|place| bytes[*place] = number);
        let model = runtime.run(load(&bytes)).wait().unwrap();
        let inputs = vec![("x".to_owned(), floats(&[3.0, 0.0], &[2]))];
        let outputs = runtime.run(RunModel { model, inputs }).wait().unwrap();
        let y = &outputs[0].1;
        assert_eq!(y.element_type, i32::from(number));
        let zero = vec![0; three.len()];
        assert_eq!(y.bytes.as_slice().unwrap(), [three, zero].concat(), "element type {number}");
    }
}

#[test]
fn a_model_in_a_file_has_its_own_names() {
    let Some(runtime) = runtime() else { return };
    let path = std::env::temp_dir().join(format!("panoply-openvino-{}.onnx", std::process::id()));
    std::fs::write(&path, RELU_AND_IDENTITY).unwrap();
    for source in [ModelSource::File(path.clone()), ModelSource::Bytes(Bytes::from_vec(RELU_AND_IDENTITY.to_vec()))] {
        let model = runtime.run(LoadModel { source }).wait().unwrap();
        let inputs = vec![("x".to_owned(), floats(&[-2.0, 2.0], &[2]))];
        let outputs = runtime.run(RunModel { model, inputs }).wait().unwrap();
        assert_eq!((outputs.len(), outputs[0].0.as_str()), (1, "y"));
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn what_the_library_refuses_is_an_error_and_no_fault_of_the_device() {
    let Some(runtime) = runtime() else { return };
    for bytes in [&RELU[..20], b"no model", &[0xff; 64]] {
        let refused = runtime.run(load(bytes)).wait().unwrap_err();
        assert!(matches!(&refused, Error::Unsupported { reason, .. } if reason.contains("OpenVINO")), "{refused}");
    }
    let missing = LoadModel { source: ModelSource::File(PathBuf::from("/nonexistent.onnx")) };
    assert!(runtime.run(missing).wait().is_err());
    let model = runtime.run(load(RELU)).wait().unwrap();
    let run = |name: &str, array| {
        runtime.run(RunModel { model: model.clone(), inputs: vec![(name.to_owned(), array)] }).wait()
    };
    assert!(run("x", floats(&[1.0, 2.0], &[2])).is_ok());
    assert!(run("z", floats(&[1.0, 2.0], &[2])).unwrap_err().to_string().contains("\"x\""), "names are told");
    assert!(run("x", floats(&[1.0, 2.0, 3.0], &[3])).is_err(), "three numbers instead of two");
    let integers = ModelArray { element_type: 7, dims: vec![2], bytes: Bytes::from_vec(vec![0; 16]) };
    assert!(run("x", integers).is_err(), "integers instead of floats");
    let words = ModelArray { element_type: 6, dims: vec![2], bytes: Bytes::from_vec(vec![0; 8]) };
    assert!(run("x", words).is_err(), "integers of the same size");
    let short = ModelArray { element_type: 1, dims: vec![2], bytes: Bytes::from_vec(vec![0; 7]) };
    assert!(run("x", short).is_err(), "a byte is missing");
    // A request of OpenVINO would use the input of the run before.
    let none = runtime.run(RunModel { model: model.clone(), inputs: Vec::new() }).wait().unwrap_err();
    assert!(none.to_string().contains("\"x\" is missing"), "{none}");
    assert!(run("x", floats(&[1.0, 2.0], &[2])).is_ok(), "the device is still there");
}
