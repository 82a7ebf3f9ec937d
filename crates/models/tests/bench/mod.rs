//! Code shared by the tests over folders of ONNX cases: runs a case and compares values.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use panoply_models::{Array, ElementType, Error, Network, Value};
use panoply_runtime::{RunOptions, Runtime, WorkerLimits};

#[allow(dead_code)] // Not every test reports the deviation.
pub enum Verdict {
    /// All answers are within tolerance. Holds the largest deviation, after subtracting 1e-3 of the
    /// value.
    Passed(f64),
    /// The model needs a feature that is not implemented.
    Refused(String),
    Wrong(String),
}

#[allow(dead_code)] // Some tests bring their own devices.
pub fn runtime() -> Runtime {
    // An unoptimised build takes minutes for some models.
    let limits = WorkerLimits { op_time_max: Duration::from_secs(900), ..WorkerLimits::default() };
    let runtime = Runtime::builder().backend(Arc::new(panoply_cpu::CpuBackend::new())).limits(limits);
    runtime.build().expect("a CPU")
}

/// The folder of models with saved answers: `PANOPLY_ONNX_MODELS`, or the two small models in the
/// repository.
#[allow(dead_code)] // Not every test runs them.
pub fn saved_models() -> std::path::PathBuf {
    let own = || concat!(env!("CARGO_MANIFEST_DIR"), "/../app/data/models").into();
    std::env::var_os("PANOPLY_ONNX_MODELS").unwrap_or_else(own).into()
}

/// The largest allowed deviation: a fraction of the value, plus a constant.
#[derive(Clone, Copy)]
pub struct Tolerance {
    pub relative: f64,
    pub absolute: f64,
}

/// Runs a case on the host and on devices, and compares both with the saved answers.
#[allow(dead_code)] // Not every test compares with the host.
pub fn verdict(folder: &Path, runtime: &Runtime, relative: f64, absolute: f64) -> Verdict {
    let on_host = std::env::var_os("PANOPLY_ONNX_DEVICES_ONLY").is_none();
    verdict_on(folder, runtime, &RunOptions::default(), on_host, Tolerance { relative, absolute })
}

/// As [`verdict`], with options, and on the host only if `on_host` is set.
pub fn verdict_on(
    folder: &Path,
    runtime: &Runtime,
    options: &RunOptions,
    on_host: bool,
    tolerance: Tolerance,
) -> Verdict {
    let run = || check(folder, runtime, options, on_host, tolerance);
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(off)) => Verdict::Passed(off),
        Ok(Err(Failure::Refused(reason))) => Verdict::Refused(reason),
        Ok(Err(Failure::Wrong(reason))) => Verdict::Wrong(reason),
        Err(_) => Verdict::Wrong("a panic".to_owned()),
    }
}

enum Failure {
    Refused(String),
    Wrong(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error.is_unsupported() {
            true => Failure::Refused(error.to_string()),
            false => Failure::Wrong(error.to_string()),
        }
    }
}

fn check(
    folder: &Path,
    runtime: &Runtime,
    options: &RunOptions,
    on_host: bool,
    tolerance: Tolerance,
) -> Result<f64, Failure> {
    let Tolerance { relative, absolute } = tolerance;
    let mut off = 0.0_f64;
    let model = Network::load(folder.join("model.onnx"))?;
    for set in 0.. {
        let set = folder.join(format!("test_data_set_{set}"));
        if !set.is_dir() {
            if set.ends_with("test_data_set_0") {
                return Err(Failure::Wrong(format!("no answers are saved in {}", folder.display())));
            }
            break;
        }
        let read = |name: String| std::fs::read(set.join(name));
        let mut inputs = Vec::new();
        for (place, port) in model.inputs().iter().enumerate() {
            let bytes = read(format!("input_{place}.pb")).map_err(|error| Failure::Wrong(error.to_string()))?;
            inputs.push((port.name.as_str(), port.read_value(&bytes)?));
        }
        let mut expected = Vec::new();
        for (place, port) in model.outputs().iter().enumerate() {
            let bytes = read(format!("output_{place}.pb")).map_err(|error| Failure::Wrong(error.to_string()))?;
            expected.push(port.read_value(&bytes)?);
        }
        if on_host {
            let on_host = model.reference(&inputs)?;
            compare_all("host", &on_host, &expected, relative, absolute)?;
        }
        // The first run is traced, and the second replays the trace.
        for turn in ["devices", "devices again"] {
            let on_devices = model.infer_values(runtime, &inputs, options)?;
            compare_all(turn, &on_devices, &expected, relative, absolute)?;
            off = on_devices.iter().zip(&expected).map(|(got, expected)| apart(got, expected)).fold(off, f64::max);
        }
    }
    Ok(off)
}

/// The largest difference between two values, after subtracting 1e-3 of the expected number.
fn apart(got: &Value, expected: &Value) -> f64 {
    let (Value::Array(got), Value::Array(expected)) = (got, expected) else { return 0.0 };
    let (Ok(got), Ok(expected)) = (got.to_floats(), expected.to_floats()) else { return 0.0 };
    let off = got.iter().zip(&expected).map(|(got, expected)| (got - expected).abs() - 1e-3 * expected.abs());
    off.fold(0.0, f64::max)
}

fn compare_all(place: &str, got: &[Value], expected: &[Value], relative: f64, absolute: f64) -> Result<(), Failure> {
    if got.len() != expected.len() {
        return Err(Failure::Wrong(format!("{place}: {} outputs, expected {}", got.len(), expected.len())));
    }
    for (output, (got, expected)) in got.iter().zip(expected).enumerate() {
        compare(got, expected, relative, absolute)
            .map_err(|reason| Failure::Wrong(format!("{place}: output {output}: {reason}")))?;
    }
    Ok(())
}

pub fn compare(got: &Value, expected: &Value, relative: f64, absolute: f64) -> Result<(), String> {
    match (got, expected) {
        (Value::Array(got), Value::Array(expected)) => compare_arrays(got, expected, relative, absolute),
        (Value::Sequence(got), Value::Sequence(expected)) if got.len() == expected.len() => {
            got.iter().zip(expected.iter()).try_for_each(|(got, expected)| compare(got, expected, relative, absolute))
        }
        (Value::Optional(None), Value::Optional(None)) => Ok(()),
        (Value::Optional(Some(got)), expected) => compare(got, expected, relative, absolute),
        (got, Value::Optional(Some(expected))) => compare(got, expected, relative, absolute),
        _ => Err(format!("{got:?}, expected {expected:?}")),
    }
}

fn compare_arrays(got: &Array, expected: &Array, relative: f64, absolute: f64) -> Result<(), String> {
    if (got.kind(), got.dims()) != (expected.kind(), expected.dims()) {
        return Err(format!("{got:?}, expected {expected:?}"));
    }
    if got.kind() == ElementType::String {
        let same = got.as_strings().unwrap() == expected.as_strings().unwrap();
        return if same {
            Ok(())
        } else {
            Err(format!("{:?}, expected {:?}", got.as_strings(), expected.as_strings()))
        };
    }
    // Two units in the last place for bf16, as in ONNX's runner.
    let relative = match got.kind() {
        ElementType::BF16 => relative.max(2.0_f64.powi(-6)),
        ElementType::F16 => relative.max(2.0_f64.powi(-9)),
        _ => relative,
    };
    let (got, expected) = (got.to_floats().unwrap(), expected.to_floats().unwrap());
    for (place, (got, expected)) in got.iter().zip(&expected).enumerate() {
        let same = got == expected || (got.is_nan() && expected.is_nan());
        let is_near = (got - expected).abs() <= absolute + relative * expected.abs();
        if !same && !is_near {
            return Err(format!("element {place} is {got}, expected {expected}"));
        }
    }
    Ok(())
}
