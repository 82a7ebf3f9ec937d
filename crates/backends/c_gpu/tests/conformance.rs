//! A sample of the suite on the emulated device, with warps of 32 lanes and of 64, where there is a C++ compiler: every kernel must be
//! compiled by it, so that the whole suite would take long. `PANOPLY_CASES=prefix` runs all cases whose names begin so.

#![allow(clippy::unwrap_used)] // A test says what it did not expect by panicking.

#[path = "bench/suite.rs"]
mod suite;

use panoply_c_gpu::EmulatedBackend;
use panoply_conformance::{Case, Seeds, cases};
use panoply_core::{Absence, Backend};

/// The emulated device gets every n-th case; that with wide warps, which differ in a few families alone, fewer.
const SAMPLE: usize = 17;
const WIDE_SAMPLE: usize = 41;

fn with(backend: Result<EmulatedBackend, Absence>, test: impl FnOnce(&EmulatedBackend)) {
    match backend {
        Ok(backend) => test(&backend),
        Err(absence) => println!("skipped: {absence}"),
    }
}

#[test]
fn a_sample_of_cases_on_the_emulated_device() {
    with(EmulatedBackend::new(), |backend| suite::run(backend, SAMPLE));
}

#[test]
fn a_sample_of_cases_with_warps_of_64() {
    with(EmulatedBackend::new().map(EmulatedBackend::wide_warps), |backend| suite::run(backend, WIDE_SAMPLE));
}

/// Each structure has kernels of its own, which the C++ compiler takes its time for, so graphs share a few. `PANOPLY_GRAPHS=n` runs n different
/// ones.
#[test]
fn random_graphs_on_the_emulated_device() {
    let seeds = Seeds::or_asked(300, 12);
    with(EmulatedBackend::new(), |backend| {
        let device = backend.discover().unwrap().remove(0);
        let summary = panoply_conformance::check_graphs(backend, &device, seeds).unwrap();
        assert!(summary.failed.is_empty(), "{summary}");
        assert_eq!(summary.passed as u64 + summary.unsupported.len() as u64, seeds.count);
        assert!(summary.unsupported.is_empty(), "{:?}", summary.unsupported);
    });
}

/// One of those that are too slow for the sample: a transform by tiles, and its inverse.
#[test]
fn a_long_transform_on_the_emulated_device() {
    with(EmulatedBackend::new(), |backend| {
        let device = backend.discover().unwrap().remove(0);
        suite::check(backend, &device, &suite::larger::transforms()[..2]);
    });
}

/// Frames of long filters that only devices with much block memory have room for.
#[test]
fn long_filters_on_the_emulated_device() {
    with(EmulatedBackend::new().map(EmulatedBackend::warp_groups), |backend| {
        let device = backend.discover().unwrap().remove(0);
        suite::check(backend, &device, &suite::larger::filters());
    });
}

/// Attention in groups of four warps, which the other devices do not have: every type, masks and views.
#[test]
fn attention_in_groups_of_warps_on_the_emulated_device() {
    const SAMPLE: usize = 5;
    with(EmulatedBackend::new().map(EmulatedBackend::warp_groups), |backend| {
        let device = backend.discover().unwrap().remove(0);
        let step = if std::env::var("PANOPLY_CASES").is_ok() { 1 } else { SAMPLE };
        let cases: Vec<Case> =
            cases().into_iter().filter(|case| case.name.starts_with("attention/")).step_by(step).collect();
        suite::check(backend, &device, &cases);
    });
}
