//! Tests that this machine's GPUs read each other's memory, if there are two.

#![allow(clippy::unwrap_used)] // A test panics on an unexpected value.

use std::sync::Arc;

use panoply_c_gpu_testing::peers;
use panoply_cuda::CudaBackend;

#[test]
fn an_engine_reads_what_lives_on_another() {
    peers::an_engine_reads_what_lives_on_another(&CudaBackend::new());
}

#[test]
fn the_runtime_makes_no_detour() {
    peers::the_runtime_makes_no_detour(Arc::new(CudaBackend::new()));
}
