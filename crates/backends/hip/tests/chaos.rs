//! An engine behind the test library is killed again and again under load.

#![allow(clippy::unwrap_used)] // Tests panic on unexpected results.
#![allow(unsafe_code)] // The test library is a C library.

use std::sync::Arc;

use crate::test_library::TestLibrary;
use panoply_c_gpu_testing::chaos;
use panoply_hip::HipBackend;

#[test]
fn a_hundred_deaths_lose_nothing() {
    let library = TestLibrary::open();
    chaos::kill_under_load(Arc::new(HipBackend::new().through(library.path())));
}

#[test]
fn a_hundred_deaths_of_a_gpu_lose_nothing() {
    chaos::kill_under_load(Arc::new(HipBackend::new()));
}
