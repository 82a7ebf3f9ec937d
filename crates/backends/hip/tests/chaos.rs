//! An engine behind the test library is killed again and again under load.

#![allow(clippy::unwrap_used)] // A test says what it did not expect by panicking.
#![allow(unsafe_code)] // The test library is a C library.

#[path = "../../c_gpu/tests/bench/chaos.rs"]
mod chaos;
mod test_library;

use std::sync::Arc;

use panoply_hip::HipBackend;
use test_library::TestLibrary;

#[test]
fn a_hundred_deaths_lose_nothing() {
    let library = TestLibrary::open();
    chaos::kill_under_load(Arc::new(HipBackend::new().through(library.path())));
}

#[test]
fn a_hundred_deaths_of_a_gpu_lose_nothing() {
    chaos::kill_under_load(Arc::new(HipBackend::new()));
}
