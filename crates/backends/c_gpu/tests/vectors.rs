//! Published vectors of the crypto domain on the emulated device, with warps of 32 lanes and of 64.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_c_gpu::EmulatedBackend;
use panoply_c_gpu_testing::vectors;

#[test]
fn every_published_vector_on_the_emulated_device() {
    match EmulatedBackend::new() {
        Ok(backend) => {
            vectors::run(&backend);
            vectors::run(&backend.wide_warps());
        }
        Err(absence) => println!("skipped: {absence}"),
    }
}

#[test]
fn messages_are_signed_on_the_emulated_device() {
    match EmulatedBackend::new() {
        Ok(backend) => vectors::sign(&backend, 130),
        Err(absence) => println!("skipped: {absence}"),
    }
}
