//! The suite's cases with their inputs on every GPU of this machine.

#![allow(clippy::unwrap_used)] // A test says what it did not expect by panicking.

#[path = "../../c_gpu/tests/bench/resident.rs"]
mod resident;

use panoply_cuda::CudaBackend;

#[test]
fn every_case_on_every_gpu() {
    resident::run(&CudaBackend::new(), 1);
}
