//! A sample of the suite with its inputs on the emulated device.

#![allow(clippy::unwrap_used)] // A test says what it did not expect by panicking.

#[path = "bench/resident.rs"]
mod resident;

use panoply_c_gpu::EmulatedBackend;

/// The emulated device gets every n-th case.
const SAMPLE: usize = 37;

#[test]
fn a_sample_of_cases_on_the_emulated_device() {
    match EmulatedBackend::new() {
        Ok(backend) => resident::run(&backend, SAMPLE),
        Err(absence) => println!("skipped: {absence}"),
    }
}
