//! Every case of the suite, and sizes beyond it, on every GPU of this machine, and on the emulated device where there is a C++ compiler.
//! `PANOPLY_CASES=prefix` runs the cases whose names begin so. Unless it is set, the emulated device, for which every kernel must be
//! compiled by a C++ compiler, gets a sample: one case in a few, spread over all ops.

#![allow(clippy::unwrap_used)] // A test says what it did not expect by panicking.

use panoply_conformance::{Case, cases, check_backend, op_names};
use panoply_core::{Backend, DeviceInfo};
use panoply_cuda::CudaBackend;

#[path = "conformance/larger.rs"]
mod larger;

/// The emulated device gets every so-manieth case.
const SAMPLE: usize = 11;

fn run(backend: &dyn Backend, step: usize) {
    let devices = match backend.discover() {
        Ok(devices) => devices,
        Err(absence) => return println!("skipped: {absence}"),
    };
    let asked = std::env::var("PANOPLY_CASES").ok();
    let (prefix, step) = asked.as_deref().map_or(("", step), |prefix| (prefix, 1));
    // The emulated device takes seconds for each of these, so they are not in its sample.
    let slow = if step == 1 { [larger::searches(), larger::transforms()].concat() } else { Vec::new() };
    let all = cases().into_iter().chain(larger::cases()).chain(slow);
    let cases: Vec<_> = all.filter(|case| case.name.starts_with(prefix)).step_by(step).collect();
    assert!(!cases.is_empty(), "no case begins with «{prefix}»");
    check(backend, devices, &cases);
}

fn check(backend: &dyn Backend, devices: Vec<DeviceInfo>, cases: &[Case]) {
    for device in devices {
        let summary = check_backend(backend, &device, cases).unwrap();
        println!("{}: {} passed, {} unsupported", device.id, summary.passed, summary.unsupported.len());
        for (name, reason) in &summary.unsupported {
            println!("  unsupported: {name}: {reason}");
        }
        assert!(summary.failed.is_empty(), "{} failed: {:#?}", device.id, summary.failed);
        assert!(summary.passed > 0);
    }
}

/// For scripts that check the ops side by side.
#[test]
fn list_of_ops() {
    let ops = op_names();
    for op in &ops {
        println!("op {op}");
    }
    assert!(ops.len() > 10);
}

#[test]
fn every_case_on_every_gpu() {
    run(&CudaBackend::new(), 1);
}

#[test]
fn a_sample_of_cases_on_the_emulated_device() {
    match CudaBackend::emulated() {
        Ok(backend) => run(&backend, SAMPLE),
        Err(absence) => println!("skipped: {absence}"),
    }
}

/// One of those that are too slow for the sample: a transform by tiles, and its inverse.
#[test]
fn a_long_transform_on_the_emulated_device() {
    match CudaBackend::emulated() {
        Ok(backend) => check(&backend, backend.discover().unwrap(), &larger::transforms()[..2]),
        Err(absence) => println!("skipped: {absence}"),
    }
}
