//! `panoply train` as users run it.
#![allow(clippy::unwrap_used)] // A test that cannot go on should say where.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_panoply"));
    command.arg("train").args(arguments).env_remove("COLUMNS").env_remove("PANOPLY_CONFIG");
    command
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
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
    // Parameters before and after the step, and Adam's two tensors before and after it, in f32;
    // intermediate values add to that.
    let parameters = first["parameters"].as_u64().unwrap();
    assert!(first["step_peak_bytes"].as_u64().unwrap() > parameters * 4 * 6, "{first}");
    let names = panoply::nn::files::load(saved.as_ref()).unwrap().parameters;
    assert!(names.get("conv1.weight").is_some() && names.get("fc.bias").is_some());
    assert!(std::fs::read_to_string(&curve).unwrap().contains("<polyline"));
    // Only one more epoch is trained, not nine.
    let second = train("9");
    assert_eq!(second["epochs"].as_array().unwrap().len(), 1);
    assert_eq!(second["epochs"][0]["epoch"], 9);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Returns the names of the files in a folder, sorted.
fn names(folder: &Path) -> Vec<OsString> {
    let Ok(files) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<OsString> = files.flatten().map(|file| file.file_name()).collect();
    names.sort();
    names
}

/// Training that is killed at any time, any number of times, ends with the same result, bit for
/// bit.
#[test]
fn training_that_is_killed_goes_on_from_its_last_checkpoint() {
    const EPOCHS: &str = "12";
    let folder = folder("killed");
    let text = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (alone, killed, checkpoints) = (text("alone.safetensors"), text("killed.safetensors"), text("checkpoints"));
    let common = ["--network", "mlp", "--batch", "64", "--device", "cpu:0", "--epochs", EPOCHS, "--json", "--save"];
    let output = run(&[common.as_slice(), &[alone.as_str()]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let with_checkpoints = [common.as_slice(), &[killed.as_str(), "--checkpoints", checkpoints.as_str()]].concat();
    let mut kills = 0;
    for attempt in 0_u64..8 {
        let before = names(checkpoints.as_ref());
        let mut child = command(&with_checkpoints).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Kills the process while a checkpoint is written, or soon after.
        while names(checkpoints.as_ref()) == before && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(Duration::from_millis(attempt % 4 * 3));
        let _ = child.kill();
        kills += usize::from(child.wait().unwrap().code().is_none());
    }
    assert!(kills >= 3, "{kills} of 8 were killed before they had finished");
    let output = run(&with_checkpoints);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let findings: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        findings["refused_checkpoints"].as_array().unwrap().len(),
        0,
        "a kill leaves no half checkpoint: {findings}"
    );
    assert_eq!(std::fs::read(&alone).unwrap(), std::fs::read(&killed).unwrap());
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
