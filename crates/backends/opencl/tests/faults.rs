//! Fault tests on every OpenCL device of the machine, and two processes that share one.

#![allow(clippy::unwrap_used)] // A test panics on an unexpected value.

use panoply_c_gpu_testing::faults;
use panoply_core::Backend;
use panoply_opencl::OpenClBackend;

fn on_each_device(test: faults::Test) {
    let backend = OpenClBackend::new();
    match backend.discover() {
        Ok(devices) => devices.iter().for_each(|device| test(&backend, device)),
        Err(absence) => println!("skipped: {absence}"),
    }
}

// Graphs need kernels that read addresses from memory, which OpenCL lacks.
panoply_c_gpu_testing::portable_fault_tests!(on_each_device);

#[test]
fn two_processes_share_a_device() {
    let backend = OpenClBackend::new();
    match backend.discover() {
        Ok(devices) => faults::shares_a_device(&backend, &devices[0], "faults::two_processes_share_a_device"),
        Err(absence) => println!("skipped: {absence}"),
    }
}
