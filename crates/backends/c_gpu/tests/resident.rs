//! A sample of the suite with its inputs on the emulated device.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_c_gpu::EmulatedBackend;
use panoply_c_gpu_testing::resident;
use panoply_conformance::few_or_all;

/// The emulated device runs every n-th case, and fewer in a short run.
const SAMPLE: usize = 37;
const SHORT_SAMPLE: usize = 101;

#[test]
fn a_sample_of_cases_on_the_emulated_device() {
    match EmulatedBackend::new() {
        Ok(backend) => resident::run(&backend, few_or_all(SHORT_SAMPLE, SAMPLE)),
        Err(absence) => println!("skipped: {absence}"),
    }
}
