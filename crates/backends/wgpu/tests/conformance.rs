//! The wgpu backend against the reference: every case of the suite on the adapters of this machine.
//!
//! Hardware runs every case. A software adapter, which takes a second to compile a kernel, runs
//! every n-th case if there is no hardware. `PANOPLY_WGPU_CASES=all` runs all cases on every
//! adapter, `PANOPLY_WGPU_CASES=matmul/` the cases whose names contain `matmul/`, and
//! `PANOPLY_CASES=matmul/` those whose names begin with it.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_conformance::{
    Case, Seeds, Summary, cases, check_backend, devices, discovered, print_op_names, wrong_domains,
};
use panoply_core::{DeviceInfo, DeviceKind};
use panoply_wgpu::WgpuBackend;

/// A software adapter runs every n-th case.
const SAMPLE: usize = 29;
/// Engines that share the cases of one device.
const ENGINES: usize = 2;

/// For scripts that check the ops side by side.
#[test]
fn list_of_ops() {
    print_op_names();
}

#[test]
fn every_claimed_case_on_every_gpu() {
    let backend = WgpuBackend::new();
    let devices = discovered(&backend);
    let chosen = CaseSelection::by_environment();
    let has_hardware = devices.iter().any(|device| device.kind != DeviceKind::SoftwareGpu);
    for device in &devices {
        let is_software = device.kind == DeviceKind::SoftwareGpu;
        if is_software && has_hardware && !chosen.on_software {
            println!("skipped: {} {}: there is hardware", device.id, device.name);
            continue;
        }
        let cases = chosen.cases(if is_software { SAMPLE } else { 1 });
        assert!(!cases.is_empty(), "no case has that name");
        let Summary { passed, failed, unsupported } = check(&backend, device, &cases);
        println!("{} {}: {passed} passed, {} unsupported", device.id, device.name, unsupported.len());
        for (name, reason) in &unsupported {
            println!("  unsupported: {name}: {reason}");
        }
        assert!(failed.is_empty(), "{}: {} failed: {failed:#?}", device.id, failed.len());
        assert_eq!(passed + unsupported.len(), cases.len(), "{}: not all cases ran", device.id);
        assert!(passed > 0 || chosen.all, "{}: nothing ran", device.id);
    }
}

/// Devices do not claim all element types.
#[test]
fn suite_graphs_on_the_first_adapter() {
    let backend = WgpuBackend::new();
    let Some(device) = devices(&backend).into_iter().next() else { return };
    let seeds = Seeds::or_asked(16, 16);
    let summary = panoply_conformance::check_suite_graphs(&backend, &device, seeds).unwrap();
    println!("{} {}: {} passed, {} unsupported", device.id, device.name, summary.passed, summary.unsupported.len());
    assert!(summary.failed.is_empty(), "PANOPLY_SEED={}: {summary}", seeds.first);
    assert!((summary.passed + summary.unsupported.len()) as u64 > seeds.count, "not all graphs ran");
    assert!(summary.passed > summary.unsupported.len(), "{:?}", summary.unsupported);
}

/// Each structure has kernels of its own, which a software adapter compiles in a second each, so
/// the graphs share a few structures. `PANOPLY_GRAPHS=n` runs n different structures and
/// `PANOPLY_SEED=s` starts at another seed. With `PANOPLY_DEVICE=required` a missing GPU is a
/// failure.
#[test]
fn random_graphs_on_the_first_adapter() {
    let backend = WgpuBackend::new();
    let Some(device) = devices(&backend).into_iter().next() else { return };
    let seeds = Seeds::or_asked(120, 12);
    let summary = panoply_conformance::check_graphs(&backend, &device, seeds).unwrap();
    assert!(summary.failed.is_empty(), "PANOPLY_SEED={}: {summary}", seeds.first);
    assert_eq!(summary.passed as u64 + summary.unsupported.len() as u64, seeds.count);
    assert!(summary.passed > 0, "{:?}", summary.unsupported);
}

/// The chosen cases.
struct CaseSelection {
    /// Whether all cases are run, and not a sample.
    all: bool,
    /// Whether software adapters run cases even if there is hardware.
    on_software: bool,
    part: String,
    prefix: String,
}

impl CaseSelection {
    fn by_environment() -> CaseSelection {
        let variable = |name: &str| std::env::var(name).ok();
        let (part, prefix) = (variable("PANOPLY_WGPU_CASES"), variable("PANOPLY_CASES"));
        let (on_software, all) = (part.is_some(), part.is_some() || prefix.is_some());
        let part = part.filter(|part| part != "all").unwrap_or_default();
        CaseSelection { all, on_software, part, prefix: prefix.unwrap_or_default() }
    }

    fn cases(&self, step: usize) -> Vec<Case> {
        let step = if self.all { 1 } else { step };
        let wanted = |case: &Case| case.name.contains(&self.part) && case.name.starts_with(&self.prefix);
        cases().into_iter().filter(wanted).step_by(step).collect()
    }
}

/// Runs the cases on a few engines at once, and sums up their results.
fn check(backend: &WgpuBackend, device: &DeviceInfo, cases: &[Case]) -> Summary {
    assert_eq!(wrong_domains(backend, device), []);
    let shares: Vec<Vec<Case>> =
        (0..ENGINES).map(|share| cases.iter().skip(share).step_by(ENGINES).cloned().collect()).collect();
    let summaries: Vec<Summary> = std::thread::scope(|scope| {
        let run = |share: &'_ Vec<Case>| check_backend(backend, device, share).unwrap();
        let workers: Vec<_> = shares.iter().map(|share| scope.spawn(move || run(share))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let passed = summaries.iter().map(|summary| summary.passed).sum();
    let failed = summaries.iter().flat_map(|summary| summary.failed.clone()).collect();
    let unsupported = summaries.into_iter().flat_map(|summary| summary.unsupported).collect();
    Summary { passed, failed, unsupported }
}

/// Random ops of every kind. `PANOPLY_OPS=n` runs n of them and `PANOPLY_SEED=s` starts at another
/// seed. With `PANOPLY_DEVICE=required` a missing GPU is a failure.
#[test]
fn random_ops_on_every_device() {
    panoply_conformance::run_ops(&WgpuBackend::new(), 80);
}
