//! The suite's cases with resident inputs on every AMD GPU of this machine. The test library runs a
//! sample of them, or all of them over CUDA.

#![allow(clippy::unwrap_used)] // Tests panic on unexpected results.
#![allow(unsafe_code)] // The test library is a C library.

use crate::test_library::{TestLibrary, is_cuda};
use panoply_c_gpu_testing::resident;
use panoply_hip::HipBackend;

/// The emulated device runs every n-th case.
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
