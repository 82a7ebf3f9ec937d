//! Kills the emulated device's engine repeatedly under load.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;

use panoply_c_gpu::EmulatedBackend;
use panoply_c_gpu_testing::chaos;

#[test]
fn a_hundred_deaths_lose_nothing() {
    match EmulatedBackend::new() {
        Ok(backend) => chaos::kill_under_load(Arc::new(backend)),
        Err(absence) => println!("skipped: {absence}"),
    }
}
