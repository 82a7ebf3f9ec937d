//! `panoply infer` and `panoply embed` as their users meet them.
#![allow(clippy::unwrap_used)] // A test that cannot go on should say where.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// An ONNX file of one node, `y = Relu(x)`, x being two numbers.
const RELU: &[u8] =
    b"\x08\x09\x3a0\x0a\x0c\x0a\x01x\x12\x01y\x22\x04ReluZ\x0f\x0a\x01x\x12\x0a\x0a\x08\x08\x01\x12\x04\
    \x0a\x02\x08\x02b\x0f\x0a\x01y\x12\x0a\x0a\x08\x08\x01\x12\x04\x0a\x02\x08\x02B\x02\x10\x12";

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_panoply"));
    command.args(arguments).env_remove("COLUMNS").env_remove("PANOPLY_CONFIG").output().unwrap()
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("panoply-models-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("relu.onnx"), RELU).unwrap();
    folder
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn error_of(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_model_is_described_run_and_written() {
    let folder = folder("run");
    let model = folder.join("relu.onnx");
    let described = run(&["infer", text(&model)]);
    let shown = String::from_utf8_lossy(&described.stdout).into_owned();
    assert!(shown.contains("takes x f32 [2]") && shown.contains("gives y f32 [2]"), "{described:?}");
    let mut header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n".to_vec();
    let mut file = [b"\x93NUMPY\x01\x00".to_vec(), (header.len() as u16).to_le_bytes().to_vec()].concat();
    file.append(&mut header);
    file.extend([-3.0_f32, 4.0].iter().flat_map(|number| number.to_le_bytes()));
    std::fs::write(folder.join("x.npy"), &file).unwrap();
    let input = format!("x={}", text(&folder.join("x.npy")));
    let output = format!("y={}", text(&folder.join("y.npy")));
    let made = run(&["infer", text(&model), "--input", &input, "--output", &output, "--json"]);
    assert!(made.status.success(), "{made:?}");
    let found: Value = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!(found["outputs"][0]["first"], serde_json::json!([0.0, 4.0]));
    assert!(std::fs::read(folder.join("y.npy")).unwrap().ends_with(&4.0_f32.to_le_bytes()));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn errors_say_what_to_do() {
    let folder = folder("errors");
    let model = folder.join("relu.onnx");
    assert!(error_of(&run(&["infer", text(&model), "--input", "x"])).contains("x=input.npy"));
    assert!(error_of(&run(&["infer", text(&model), "--text", "hello"])).contains("vocab"));
    assert!(error_of(&run(&["infer", text(&model), "--image", text(&model)])).contains("PNG or JPEG"));
    assert!(error_of(&run(&["infer", text(&folder.join("none.onnx"))])).contains("none.onnx"));
    assert!(error_of(&run(&["embed", text(&model)])).contains("--text"));
    std::fs::write(folder.join("noise.onnx"), [0xff; 64]).unwrap();
    assert!(error_of(&run(&["infer", text(&folder.join("noise.onnx"))])).contains("not an ONNX model"));
    std::fs::remove_dir_all(folder).unwrap();
}
