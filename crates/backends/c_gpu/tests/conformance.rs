//! A sample of the suite on the emulated device, with warps of 32 and of 64 lanes, if there is a
//! C++ compiler. The compiler must compile every kernel, so the whole suite would take long.
//! `PANOPLY_CASES=prefix` runs all cases whose names have that prefix.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_c_gpu::EmulatedBackend;
use panoply_c_gpu_testing::{graphs, larger, suite};
use panoply_conformance::{Case, cases, few_or_all};
use panoply_core::{Absence, Backend};

/// The emulated device runs every n-th case, and fewer in a short run; with wide warps, which
/// differ only in a few families, fewer as well.
const SAMPLE: usize = 17;
const SHORT_SAMPLE: usize = 47;
const WIDE_SAMPLE: usize = 41;
const SHORT_WIDE_SAMPLE: usize = 113;

fn with(backend: Result<EmulatedBackend, Absence>, test: impl FnOnce(&EmulatedBackend)) {
    match backend {
        Ok(backend) => test(&backend),
        Err(absence) => println!("skipped: {absence}"),
    }
}

#[test]
fn a_sample_of_cases_on_the_emulated_device() {
    with(EmulatedBackend::new(), |backend| suite::run(backend, few_or_all(SHORT_SAMPLE, SAMPLE)));
}

#[test]
fn a_sample_of_cases_with_warps_of_64() {
    with(EmulatedBackend::new().map(EmulatedBackend::wide_warps), |backend| {
        suite::run(backend, few_or_all(SHORT_WIDE_SAMPLE, WIDE_SAMPLE))
    });
}

/// Each structure has separate kernels, which take long to compile, so graphs share a few
/// structures.
#[test]
fn random_graphs_on_the_emulated_device() {
    with(EmulatedBackend::new(), |backend| graphs::random(backend, 120, few_or_all(5, 12)));
}

#[test]
fn suite_graphs_on_the_emulated_device() {
    with(EmulatedBackend::new(), |backend| graphs::of_the_suite(backend, few_or_all(12, 24)));
}

/// A case that is too slow for the sample: a transform by tiles, and its inverse.
#[test]
fn a_long_transform_on_the_emulated_device() {
    with(EmulatedBackend::new(), |backend| {
        let device = backend.discover().unwrap().remove(0);
        suite::check(backend, &device, &larger::transforms()[..2]);
    });
}

/// Frames of long filters that fit only devices with much block memory.
#[test]
fn long_filters_on_the_emulated_device() {
    with(EmulatedBackend::new().map(EmulatedBackend::warp_groups), |backend| {
        let device = backend.discover().unwrap().remove(0);
        suite::check(backend, &device, &larger::filters());
    });
}

/// Attention in groups of four warps, which the other devices do not have: every type, masks and
/// views.
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

/// Short tail-biting frames: warps of 64 lanes decode two, whose searches do not end at the same
/// time.
#[test]
fn short_tail_biting_frames_on_the_emulated_device() {
    for wide in [false, true] {
        let backend = EmulatedBackend::new().map(|backend| if wide { backend.wide_warps() } else { backend });
        with(backend, |backend| {
            let device = backend.discover().unwrap().remove(0);
            let is_short = |case: &Case| case.name.starts_with("viterbi/171_133/seven_eighths/TailBiting/clean");
            let cases: Vec<Case> = cases().into_iter().filter(is_short).collect();
            assert!(!cases.is_empty());
            suite::check(backend, &device, &cases);
        });
    }
}

/// Random ops of every kind. `PANOPLY_OPS=n` runs n of them; `PANOPLY_SEED=s` sets the seed.
#[test]
fn random_ops_on_the_emulated_device() {
    with(EmulatedBackend::new(), |backend| panoply_conformance::run_ops(backend, 60));
}
