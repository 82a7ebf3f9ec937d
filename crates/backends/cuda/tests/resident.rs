//! The suite's cases with resident inputs, on every GPU of this machine.

#![allow(clippy::unwrap_used)] // A test panics on an unexpected value.

#[path = "../../c_gpu/tests/bench/resident.rs"]
#[allow(clippy::module_inception)] // Its file is shared with other backends.
mod resident;

use panoply_cuda::CudaBackend;

#[test]
fn every_case_on_every_gpu() {
    resident::run(&CudaBackend::new(), 1);
}
