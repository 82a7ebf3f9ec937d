//! Real models: each folder of `PANOPLY_ONNX_MODELS`, or of the two models in the repository, has a
//! `model.onnx` with saved inputs and another runtime's answers, in the layout of ONNX's test
//! cases. `PANOPLY_ONNX_CASE` is the beginning of the names to run.
#![allow(clippy::unwrap_used)] // A failed unwrap fails the test at its line.

use std::time::Instant;

use crate::bench::{Verdict, runtime, saved_models, verdict};

/// The tolerance for sums of thousands of products in another order.
const RELATIVE: f64 = 2e-3;
const ABSOLUTE: f64 = 2e-4;
/// The tolerance for models that quantize to bytes internally: a sum in another order that crosses
/// a rounding boundary changes a byte. ONNX Runtime's own answers with and without its optimiser
/// differ by up to 0.03.
const ABSOLUTE_INT8: f64 = 0.05;

#[test]
fn saved_answers() {
    let prefix = std::env::var("PANOPLY_ONNX_CASE").unwrap_or_default();
    let mut folders: Vec<_> = std::fs::read_dir(saved_models()).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with(&prefix));
    folders.sort();
    let (runtime, mut failed) = (runtime(), Vec::new());
    for folder in folders {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let started = Instant::now();
        let absolute = if name.contains("int8") { ABSOLUTE_INT8 } else { ABSOLUTE };
        let verdict = verdict(&folder, &runtime, RELATIVE, absolute);
        let took = started.elapsed();
        match verdict {
            Verdict::Passed(off) => println!("passed {name} in {took:?}, off by {off:.1e} besides 1e-3"),
            Verdict::Refused(reason) | Verdict::Wrong(reason) => {
                println!("FAILED {name} in {took:?}: {reason}");
                failed.push(name);
            }
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

/// Prints the times of loading, of the first run, and of the best of ten runs.
#[test]
#[ignore = "measures, compares nothing"]
fn times() {
    let Some(folder) = std::env::var_os("PANOPLY_ONNX_MODELS") else {
        println!("skipped: PANOPLY_ONNX_MODELS names no folder of models with saved answers");
        return;
    };
    let prefix = std::env::var("PANOPLY_ONNX_CASE").unwrap_or_default();
    let mut folders: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    folders.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with(&prefix));
    folders.sort();
    let runtime = runtime();
    for folder in folders {
        let name = folder.file_name().unwrap().to_string_lossy().into_owned();
        let started = Instant::now();
        let Ok(model) = panoply_models::Network::load(folder.join("model.onnx")) else { continue };
        let load = started.elapsed();
        let read = |place: usize| std::fs::read(folder.join(format!("test_data_set_0/input_{place}.pb"))).unwrap();
        let ports = model.inputs().iter().enumerate();
        let inputs: Vec<_> =
            ports.map(|(place, port)| (port.name.as_str(), port.read_value(&read(place)).unwrap())).collect();
        let run = || {
            let started = Instant::now();
            model.infer_values(&runtime, &inputs, &Default::default()).unwrap();
            started.elapsed()
        };
        let first = run();
        let best = (0..10).map(|_| run()).min().unwrap_or(first);
        println!("{name}: load {load:?}, first {first:?}, best {best:?}, steps {}", model.steps());
        assert!(best <= first * 10, "a run that is repeated should not be slower than the first");
    }
}
