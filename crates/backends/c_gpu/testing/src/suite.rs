//! Every case of the suite, and sizes beyond it, on the devices of a backend.
//! `PANOPLY_CASES=prefix` runs the cases whose names have that prefix. Kernels are compiled ahead
//! in parallel, with progress output.

use std::time::{Duration, Instant};

use panoply_c_gpu::GpuBackend;
use panoply_conformance::{Case, cases, check_backend, wrong_domains};
use panoply_core::DeviceInfo;

use crate::larger;

/// Interval of progress output.
const TOLD_EVERY: Duration = Duration::from_secs(2);

/// Runs every n-th case on every device of the backend; with a prefix, all cases that match.
pub fn run(backend: &dyn GpuBackend, step: usize) {
    let devices = match backend.discover() {
        Ok(devices) => devices,
        Err(absence) => return println!("skipped: {absence}"),
    };
    let cases = chosen(step);
    for device in devices {
        check(backend, &device, &cases);
    }
}

/// The cases that match the prefix, or a sample of all.
pub fn chosen(step: usize) -> Vec<Case> {
    let asked = std::env::var("PANOPLY_CASES").ok();
    let (prefix, step) = asked.as_deref().map_or(("", step), |prefix| (prefix, 1));
    // The emulated device takes seconds for each of these, so its sample does not contain them.
    let slow = if step == 1 { [larger::searches(), larger::transforms()].concat() } else { Vec::new() };
    let all = cases().into_iter().chain(larger::cases()).chain(slow);
    let cases: Vec<_> = all.filter(|case| case.name.starts_with(prefix)).step_by(step).collect();
    assert!(!cases.is_empty(), "no case begins with «{prefix}»");
    cases
}

/// Runs these cases on one device.
pub fn check(backend: &dyn GpuBackend, device: &DeviceInfo, cases: &[Case]) {
    assert_eq!(wrong_domains(backend, device), []);
    compile_ahead(backend, device, cases);
    let start = Instant::now();
    let summary = check_backend(backend, device, cases).unwrap();
    let unsupported = summary.unsupported.len();
    println!("{}: {} passed, {unsupported} unsupported in {:?}", device.id, summary.passed, start.elapsed());
    for (name, reason) in &summary.unsupported {
        println!("  unsupported: {name}: {reason}");
    }
    assert!(summary.failed.is_empty(), "{} failed: {:#?}", device.id, summary.failed);
    assert!(summary.passed > 0);
}

/// Compiles the kernels of the cases, and prints the progress.
pub fn compile_ahead(backend: &dyn GpuBackend, device: &DeviceInfo, cases: &[Case]) {
    let (start, mut told) = (Instant::now(), Instant::now());
    let mut ops = cases.iter().map(|case| &case.op).filter(|op| backend.supports(device, op).is_yes());
    let mut progress = |done: usize, total: usize| {
        if done == total || told.elapsed() > TOLD_EVERY {
            told = Instant::now();
            println!("compiling for {}: {done} of {total} kernels after {:.0?}", device.id, start.elapsed());
        }
    };
    backend.compile_ahead(device, &mut ops, &mut progress).unwrap();
}
