//! The wgpu backend against the reference, on every adapter of this machine.
//!
//! Hardware runs every case. On a software adapter, where compiling a kernel takes a second, the cases of element types
//! other than f32 are thinned out, unless `PANOPLY_WGPU_CASES=all` asks for all of them; `PANOPLY_WGPU_CASES=matmul/` runs
//! those whose names contain that.

use panoply_conformance::{Case, Summary, cases, check_backend};
use panoply_core::{Backend, DeviceInfo, DeviceKind};
use panoply_wgpu::WgpuBackend;

/// On a software adapter every so-many-th case of other types than f32 is run.
const THINNED_BY: usize = 5;
/// Engines that share the cases of one device.
const ENGINES: usize = 2;

#[test]
fn every_claimed_case_agrees_with_the_reference() {
    let backend = WgpuBackend::new();
    let devices = match backend.discover() {
        Ok(devices) => devices,
        Err(absence) => {
            eprintln!("skipped: {absence}");
            return;
        }
    };
    for device in &devices {
        let (passed, failed, mut unsupported) = check(&backend, device, &chosen(device));
        unsupported.sort();
        unsupported.dedup();
        println!("{} {}: {passed} passed; not claimed: {}", device.id, device.name, unsupported.join("; "));
        assert!(failed.is_empty(), "{}: {failed:#?}", device.id);
        assert!(passed > 0, "{}: nothing ran", device.id);
    }
}

fn chosen(device: &DeviceInfo) -> Vec<Case> {
    let wanted = std::env::var("PANOPLY_WGPU_CASES").ok();
    let thinned = device.kind == DeviceKind::SoftwareGpu && wanted.is_none();
    let part = wanted.filter(|wanted| wanted != "all").unwrap_or_default();
    let kept = |(number, case): &(usize, Case)| {
        case.name.contains(&part) && (!thinned || case.name.contains("/f32/") || number % THINNED_BY == 0)
    };
    cases().into_iter().enumerate().filter(kept).map(|(_, case)| case).collect()
}

/// How many passed, what failed, and the reasons of what was not claimed.
fn check(backend: &WgpuBackend, device: &DeviceInfo, cases: &[Case]) -> (usize, Vec<(String, String)>, Vec<String>) {
    let shares: Vec<Vec<Case>> =
        (0..ENGINES).map(|share| cases.iter().skip(share).step_by(ENGINES).cloned().collect()).collect();
    let summaries: Vec<Summary> = std::thread::scope(|scope| {
        let run = |share: &'_ Vec<Case>| check_backend(backend, device, share).unwrap();
        let workers: Vec<_> = shares.iter().map(|share| scope.spawn(move || run(share))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    let passed = summaries.iter().map(|summary| summary.passed).sum();
    let failed = summaries.iter().flat_map(|summary| summary.failed.clone()).collect();
    let reasons = summaries.iter().flat_map(|summary| summary.unsupported.iter().map(|(_, reason)| reason.clone()));
    (passed, failed, reasons.collect())
}
