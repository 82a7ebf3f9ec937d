//! The suite's cases with their inputs on every AMD GPU of this machine; a sample through the test library, all where that runs on CUDA.

#![allow(clippy::unwrap_used)] // A test says what it did not expect by panicking.
#![allow(unsafe_code)] // The test library is a C library.

#[path = "../../c_gpu/tests/bench/resident.rs"]
mod resident;
mod test_library;

use panoply_hip::HipBackend;
use test_library::{TestLibrary, is_cuda};

/// The emulated device gets every n-th case.
const SAMPLE: usize = 797;

#[test]
fn every_case_on_every_gpu() {
    match is_cuda() {
        true => resident::run(&HipBackend::new().through(TestLibrary::open().path()), 1),
        false => resident::run(&HipBackend::new(), 1),
    }
}

#[test]
fn cases_through_the_test_library() {
    if is_cuda() {
        return println!("skipped: the device is CUDA's, on which every_case_on_every_gpu runs");
    }
    resident::run(&HipBackend::new().through(TestLibrary::open().path()), SAMPLE);
}
