//! Published vectors of the crypto domain on every device of this machine.

#![allow(clippy::unwrap_used)] // A test panics on an unexpected value.

use panoply_c_gpu_testing::vectors;
use panoply_opencl::OpenClBackend;

#[test]
fn every_published_vector_on_every_device() {
    vectors::run(&OpenClBackend::new());
}

#[test]
fn messages_are_signed_on_every_device() {
    vectors::sign(&OpenClBackend::new(), 70);
}
