//! Two devices behind the test library that read each other's memory directly.

#![allow(clippy::unwrap_used)] // Tests panic on unexpected results.
#![allow(unsafe_code)] // The test library is a C library.

mod test_library;

use std::sync::Arc;

use panoply_c_gpu_testing::peers;
use panoply_hip::HipBackend;
use test_library::TestLibrary;

fn two_devices() -> HipBackend {
    let library = TestLibrary::open();
    library.devices(2);
    let backend = HipBackend::new().through(library.path());
    // The number of devices is state of the loaded library, so it must stay loaded.
    std::mem::forget(library);
    backend
}

#[test]
fn an_engine_reads_what_lives_on_another() {
    peers::an_engine_reads_what_lives_on_another(&two_devices());
}

#[test]
fn the_runtime_makes_no_detour() {
    peers::the_runtime_makes_no_detour(Arc::new(two_devices()));
}
