//! Kills the emulated device's engine repeatedly under load.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

#[path = "bench/chaos.rs"]
#[allow(clippy::module_inception)] // Its file is shared with other backends.
mod chaos;

use std::sync::Arc;

use panoply_c_gpu::EmulatedBackend;

#[test]
fn a_hundred_deaths_lose_nothing() {
    match EmulatedBackend::new() {
        Ok(backend) => chaos::kill_under_load(Arc::new(backend)),
        Err(absence) => println!("skipped: {absence}"),
    }
}
