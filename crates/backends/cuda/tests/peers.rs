//! This machine's GPUs reading each other's memory, where there are two.

#![allow(clippy::unwrap_used)] // A test says what it did not expect by panicking.

#[path = "../../c_gpu/tests/bench/peers.rs"]
mod peers;

use std::sync::Arc;

use panoply_cuda::CudaBackend;

#[test]
fn an_engine_reads_what_lives_on_another() {
    peers::an_engine_reads_what_lives_on_another(&CudaBackend::new());
}

#[test]
fn the_runtime_makes_no_detour() {
    peers::the_runtime_makes_no_detour(Arc::new(CudaBackend::new()));
}
