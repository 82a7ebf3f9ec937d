//! Published vectors of the crypto domain on every GPU of this machine.

#![allow(clippy::unwrap_used)] // A test panics on an unexpected value.

use panoply_c_gpu_testing::vectors;
use panoply_cuda::CudaBackend;

#[test]
fn every_published_vector_on_every_device() {
    vectors::run(&CudaBackend::new());
}

#[test]
fn thousands_of_messages_are_signed_on_every_device() {
    vectors::sign(&CudaBackend::new(), 20_000);
}
