//! `panoply train` as its users meet it.
#![allow(clippy::unwrap_used)] // A test that cannot go on should say where.

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_panoply"));
    command.arg("train").args(arguments).env_remove("COLUMNS").env_remove("PANOPLY_CONFIG");
    command.output().unwrap()
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("panoply-train-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn digits_are_learned_saved_and_gone_on_with() {
    let folder = folder("digits");
    let text = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (saved, curve, checkpoints) = (text("digits.safetensors"), text("curve.svg"), text("checkpoints"));
    let train = |epochs: &str| {
        let all = [
            "--device",
            "cpu:0",
            "--epochs",
            epochs,
            "--save",
            &saved,
            "--curve",
            &curve,
            "--checkpoints",
            &checkpoints,
            "--json",
        ];
        let output = run(&all);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let first = train("8");
    assert_eq!(first["epochs"].as_array().unwrap().len(), 8);
    assert!(first["accuracy"].as_f64().unwrap() > 0.9, "{first}");
    // Parameters before and after the step, and both of Adam's tensors, in f32: what is between comes on top.
    let parameters = first["parameters"].as_u64().unwrap();
    assert!(first["step_peak_bytes"].as_u64().unwrap() > parameters * 4 * 6, "{first}");
    let names = panoply::nn::files::load(saved.as_ref()).unwrap().parameters;
    assert!(names.get("conv1.weight").is_some() && names.get("fc.bias").is_some());
    assert!(std::fs::read_to_string(&curve).unwrap().contains("<polyline"));
    // One epoch more, and not nine.
    let second = train("9");
    assert_eq!(second["epochs"].as_array().unwrap().len(), 1);
    assert_eq!(second["epochs"][0]["epoch"], 9);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (arguments, expected) in [
        (["--network", "rnn"], "mlp or cnn"),
        (["--epochs", "0"], "--epochs"),
        (["--batch", "-1"], "--batch"),
        (["--rate", "-1"], "--rate"),
        (["--precision", "i8"], "--precision"),
        (["--device", "here:x"], "--device"),
    ] {
        let output = run(&arguments);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.contains(expected), "{message}");
    }
    let folder = folder("none");
    let output = run(&["--mnist", folder.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("train-images"), "{output:?}");
    std::fs::write(folder.join("train-images-idx3-ubyte"), [0, 0, 8, 3, 255, 255, 255, 255]).unwrap();
    let output = run(&["--mnist", folder.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("cut short"), "{output:?}");
}
