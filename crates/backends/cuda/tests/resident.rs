//! The suite's cases with resident inputs, on every GPU of this machine.

#![allow(clippy::unwrap_used)] // A test panics on an unexpected value.

use panoply_c_gpu_testing::resident;
use panoply_cuda::CudaBackend;

#[test]
fn every_case_on_every_gpu() {
    resident::run(&CudaBackend::new(), 1);
}
