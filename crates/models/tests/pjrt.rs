//! Real models as whole graphs on every device with a PJRT plugin: each model is one or two
//! programs there and gives the saved answers.
//!
//! `PANOPLY_PJRT_PLUGINS` names plugins, `PANOPLY_ONNX_MODELS` a folder of models with saved
//! answers (see `models.rs`), and `PANOPLY_ONNX_CASE` the beginning of the names to run.
#![allow(clippy::unwrap_used)] // A failed unwrap fails the test at its line.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use crate::bench::{Tolerance, compare};
use panoply_core::{Backend, DeviceId};
use panoply_cpu::CpuBackend;
use panoply_models::{Network, Value};
use panoply_pjrt::PjrtBackend;
use panoply_runtime::{RunOptions, Runtime};

/// A picture classifier, a text model, and a picture classifier with channels-last pixels, each
/// with its number of programs. Look-ups by indices that come with each run are a program of their
/// own.
const MODELS: [(&str, usize); 3] = [("lcnet-orientation", 1), ("minilm-l6", 2), ("resnet50-thin", 1)];
/// Such devices may compute products of f32 with fewer bits.
const TOLERANCE: Tolerance = Tolerance { relative: 2e-3, absolute: 2e-3 };
const RUNS: usize = 20;

/// A model with saved inputs and answers.
struct SavedCase {
    network: Network,
    inputs: Vec<(String, Value)>,
    expected: Vec<Value>,
}

impl SavedCase {
    fn read(folder: &Path) -> SavedCase {
        let network = Network::load(folder.join("model.onnx")).unwrap();
        let read = |name: String| std::fs::read(folder.join("test_data_set_0").join(name)).unwrap();
        let input = |(place, port): (usize, &panoply_models::Port)| {
            (port.name.clone(), port.read_value(&read(format!("input_{place}.pb"))).unwrap())
        };
        let output = |(place, port): (usize, &panoply_models::Port)| {
            port.read_value(&read(format!("output_{place}.pb"))).unwrap()
        };
        let inputs = network.inputs().iter().enumerate().map(input).collect();
        let expected = network.outputs().iter().enumerate().map(output).collect();
        SavedCase { network, inputs, expected }
    }

    fn run(&self, runtime: &Runtime, device: DeviceId) -> Vec<Value> {
        let inputs: Vec<(&str, Value)> =
            self.inputs.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        self.network.infer_values(runtime, &inputs, &RunOptions::require(device)).unwrap()
    }
}

#[test]
fn models_are_programs_of_their_own() {
    let Some(folder) = std::env::var_os("PANOPLY_ONNX_MODELS") else {
        println!("skipped: PANOPLY_ONNX_MODELS names no folder of models with saved answers");
        return;
    };
    let devices = match PjrtBackend::new().discover() {
        Ok(devices) => devices,
        Err(absence) => return println!("skipped: {absence}"),
    };
    let prefix = std::env::var("PANOPLY_ONNX_CASE").unwrap_or_default();
    let backends: [Arc<dyn Backend>; 2] = [Arc::new(PjrtBackend::new()), Arc::new(CpuBackend::new())];
    let runtime = backends.into_iter().fold(Runtime::builder(), |builder, backend| builder.backend(backend));
    let runtime = runtime.build().unwrap();
    for device in devices {
        for (name, programs) in MODELS.into_iter().filter(|(name, _)| name.starts_with(&prefix)) {
            let saved = SavedCase::read(&Path::new(&folder).join(name));
            let started = Instant::now();
            let got = saved.run(&runtime, device.id);
            let first = started.elapsed();
            for (got, expected) in got.iter().zip(&saved.expected) {
                compare(got, expected, TOLERANCE.relative, TOLERANCE.absolute)
                    .unwrap_or_else(|reason| panic!("{name} on {}: {reason}", device.id));
            }
            let time = || {
                let started = Instant::now();
                saved.run(&runtime, device.id);
                started.elapsed()
            };
            let best = (0..RUNS).map(|_| time()).min().unwrap();
            let steps = saved.network.steps();
            println!("passed {name} on {} ({}): first {first:?}, best {best:?}, {steps}", device.id, device.name);
            assert!(steps.starts_with(&format!("{programs} graphs")), "{name} is not {programs} programs: {steps}");
        }
    }
}
