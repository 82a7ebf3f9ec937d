//! A sample of the suite with its inputs on the emulated device.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

#[path = "bench/resident.rs"]
#[allow(clippy::module_inception)] // Its file is shared with other backends.
mod resident;

use panoply_c_gpu::EmulatedBackend;

/// The emulated device runs every n-th case.
const SAMPLE: usize = 37;

#[test]
fn a_sample_of_cases_on_the_emulated_device() {
    match EmulatedBackend::new() {
        Ok(backend) => resident::run(&backend, SAMPLE),
        Err(absence) => println!("skipped: {absence}"),
    }
}
