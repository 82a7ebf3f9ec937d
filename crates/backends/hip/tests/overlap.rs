//! Callers whose ops overlap, on every AMD GPU of this machine, and through the test library.

#![allow(clippy::unwrap_used)] // Tests panic on unexpected results.
#![allow(unsafe_code)] // The test library is a C library.

use crate::test_library::{TestLibrary, is_cuda};
use panoply_c_gpu_testing::overlap;
use panoply_hip::HipBackend;

#[test]
fn callers_on_every_gpu() {
    match is_cuda() {
        true => overlap::run(&HipBackend::new().through(TestLibrary::open().path()), 1),
        false => overlap::run(&HipBackend::new(), 1),
    }
}

#[test]
fn callers_through_the_test_library() {
    if is_cuda() {
        return println!("skipped: the device is CUDA's, on which callers_on_every_gpu runs");
    }
    overlap::run(&HipBackend::new().through(TestLibrary::open().path()), 1);
}
