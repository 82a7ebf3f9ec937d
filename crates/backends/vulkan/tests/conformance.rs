//! The Vulkan backend against the reference: every case of the suite on the devices of this
//! machine.
//!
//! Hardware runs every case. A software driver, which takes a second to compile a kernel, runs
//! every n-th case if there is no hardware; a second software driver with other limits runs fewer.
//! `PANOPLY_VULKAN_CASES=all` runs all cases on every device, `PANOPLY_VULKAN_CASES=matmul/` the
//! cases whose names contain `matmul/`, and `PANOPLY_CASES=matmul/` those whose names begin with
//! it.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use panoply_conformance::{
    Case, Seeds, Summary, cases, check_backend, devices, discovered, print_op_names, wrong_domains,
};
use panoply_core::{Backend, DeviceInfo, DeviceKind};
use panoply_vulkan::VulkanBackend;
use panoply_vulkan::backend::Messages;
use panoply_vulkan::quirks::{Copies, TransferWays, WAYS};

/// A software driver runs every n-th case. The second software driver, and the run with validation
/// layers, have an n of their own.
const SAMPLE: usize = 11;
const SMALL_SAMPLE: usize = 83;
/// Engines that share the cases of one device.
const ENGINES: usize = 2;
/// The place of SwiftShader's driver, which comes with Chromium.
const SWIFTSHADER: &[&str] =
    &["/usr/lib/chromium/vk_swiftshader_icd.json", "/usr/lib/chromium-browser/vk_swiftshader_icd.json"];
/// Tells a test that it runs on the second driver.
const SECOND: &str = "PANOPLY_VULKAN_SECOND_DRIVER";

/// For scripts that check the ops side by side.
#[test]
fn list_of_ops() {
    print_op_names();
}

#[test]
fn every_claimed_case_on_every_gpu() {
    let backend = VulkanBackend::new();
    let devices = discovered(&backend);
    let chosen = CaseSelection::by_environment();
    let has_hardware = devices.iter().any(|device| device.kind != DeviceKind::SoftwareGpu);
    let step = if std::env::var_os(SECOND).is_some() { SMALL_SAMPLE } else { SAMPLE };
    for device in &devices {
        let is_software = device.kind == DeviceKind::SoftwareGpu;
        if is_software && has_hardware && !chosen.on_software {
            println!("skipped: {} {}: there is hardware", device.id, device.name);
            continue;
        }
        let cases = chosen.cases(if is_software { step } else { 1 });
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

/// A driver with other limits than Mesa's: no f16, subgroups of four, workgroups of 256.
#[test]
fn claimed_cases_on_a_second_driver() {
    let Some(driver) = SWIFTSHADER.iter().find(|driver| Path::new(driver).exists()) else {
        return println!("skipped: SwiftShader is not installed (it comes with the package chromium)");
    };
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["conformance::every_claimed_case_on_every_gpu", "--exact", "--nocapture"])
        .envs([("VK_DRIVER_FILES", driver), ("VK_ICD_FILENAMES", driver), (SECOND, &"1")])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    if told.contains("skipped: library not found") {
        return println!("{told}");
    }
    let summary = told.lines().find(|line| line.contains("SwiftShader") && line.contains(" passed"));
    println!("{}", summary.unwrap_or_else(|| panic!("SwiftShader ran nothing: {told}")));
}

/// The validation layers, including those for synchronisation, report nothing, with copies inline
/// and apart.
#[test]
fn validation_layers_are_silent() {
    for copies in [Copies::Apart, Copies::Inline] {
        let messages = Arc::new(Messages::default());
        let backend = VulkanBackend::with_ways(TransferWays { copies, in_place: copies == Copies::Inline, ..WAYS });
        let backend = backend.validated(&messages);
        let device = match backend.discover() {
            Ok(devices) => devices.into_iter().next().unwrap(),
            Err(absence) => return println!("skipped: {absence}"),
        };
        let cases: Vec<Case> = cases().into_iter().step_by(SMALL_SAMPLE).collect();
        let summary = check_backend(&backend, &device, &cases).unwrap();
        assert!(summary.failed.is_empty(), "{:#?}", summary.failed);
        assert_eq!(wrong_domains(&backend, &device), []);
        println!("{} with {copies:?} copies: {} cases", device.name, summary.passed);
        drop(backend);
        let told = messages.list();
        assert!(told.is_empty(), "{} messages: {told:#?}", told.len());
    }
}

/// Devices do not claim all element types.
#[test]
fn suite_graphs_on_the_first_device() {
    let backend = VulkanBackend::new();
    let Some(device) = devices(&backend).into_iter().next() else { return };
    let seeds = Seeds::or_asked(16, 16);
    let summary = panoply_conformance::check_suite_graphs(&backend, &device, seeds).unwrap();
    println!("{} {}: {} passed, {} unsupported", device.id, device.name, summary.passed, summary.unsupported.len());
    assert!(summary.failed.is_empty(), "PANOPLY_SEED={}: {summary}", seeds.first);
    assert!((summary.passed + summary.unsupported.len()) as u64 > seeds.count, "not all graphs ran");
    assert!(summary.passed > summary.unsupported.len(), "{:?}", summary.unsupported);
}

/// Each structure has kernels of its own, which a software driver compiles in a second each, so the
/// graphs share a few structures. `PANOPLY_GRAPHS=n` runs n different structures and
/// `PANOPLY_SEED=s` starts at another seed. With `PANOPLY_DEVICE=required` a missing GPU is a
/// failure.
#[test]
fn random_graphs_on_the_first_device() {
    let backend = VulkanBackend::new();
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
    /// Whether software drivers run cases even if there is hardware.
    on_software: bool,
    part: String,
    prefix: String,
}

impl CaseSelection {
    fn by_environment() -> CaseSelection {
        let variable = |name: &str| std::env::var(name).ok();
        let (part, prefix) = (variable("PANOPLY_VULKAN_CASES"), variable("PANOPLY_CASES"));
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
fn check(backend: &VulkanBackend, device: &DeviceInfo, cases: &[Case]) -> Summary {
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
    panoply_conformance::run_ops(&VulkanBackend::new(), 150);
}
