//! The emulated device's engine is killed again and again under load.

#![allow(clippy::unwrap_used)] // A test says what it did not expect by panicking.

#[path = "bench/chaos.rs"]
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
