//! Callers whose ops overlap, on every GPU of this machine.

#![allow(clippy::unwrap_used)] // A test panics on an unexpected value.

use panoply_c_gpu_testing::overlap;
use panoply_cuda::CudaBackend;

#[test]
fn callers_on_every_gpu() {
    for seed in 1..=5 {
        overlap::run(&CudaBackend::new(), seed);
    }
}
