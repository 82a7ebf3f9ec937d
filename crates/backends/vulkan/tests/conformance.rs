//! The Vulkan backend against the reference: the shared suite ([`panoply_wgsl_gpu_testing::suite`])
//! on the devices of this machine and on a second software driver with other limits, and a sample
//! of it under Vulkan's validation layers. `PANOPLY_VULKAN_CASES` selects its cases.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use panoply_conformance::{Case, cases, check_backend, print_op_names, wrong_domains};
use panoply_core::Backend;
use panoply_vulkan::VulkanBackend;
use panoply_vulkan::backend::Messages;
use panoply_vulkan::quirks::{Copies, TransferWays, WAYS};
use panoply_wgsl_gpu_testing::suite::Suite;

/// A software driver runs every n-th case. The second software driver, and the run with validation
/// layers, have an n of their own.
const SAMPLE: usize = 11;
const SMALL_SAMPLE: usize = 83;
/// The place of SwiftShader's driver, which comes with Chromium.
const SWIFTSHADER: &[&str] =
    &["/usr/lib/chromium/vk_swiftshader_icd.json", "/usr/lib/chromium-browser/vk_swiftshader_icd.json"];
/// Tells a test that it runs on the second driver.
const SECOND: &str = "PANOPLY_VULKAN_SECOND_DRIVER";

fn with_suite(check: impl FnOnce(Suite<'_>)) {
    let sample = if std::env::var_os(SECOND).is_some() { SMALL_SAMPLE } else { SAMPLE };
    check(Suite { backend: &VulkanBackend::new(), sample, cases_variable: "PANOPLY_VULKAN_CASES" });
}

/// For scripts that check the ops side by side.
#[test]
fn list_of_ops() {
    print_op_names();
}

#[test]
fn every_claimed_case_on_every_gpu() {
    with_suite(|suite| suite.check_cases());
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

#[test]
fn suite_graphs_on_the_first_device() {
    with_suite(|suite| suite.check_suite_graphs());
}

#[test]
fn random_graphs_on_the_first_device() {
    with_suite(|suite| suite.check_random_graphs());
}

/// Random ops of every kind. `PANOPLY_OPS=n` runs n of them and `PANOPLY_SEED=s` starts at another
/// seed. With `PANOPLY_DEVICE=required` a missing GPU is a failure.
#[test]
fn random_ops_on_every_device() {
    panoply_conformance::run_ops(&VulkanBackend::new(), 150);
}
