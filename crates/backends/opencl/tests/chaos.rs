//! Kills a device's engine again and again under load.

#![allow(clippy::unwrap_used)] // A test panics on an unexpected value.

use std::sync::Arc;

use panoply_c_gpu_testing::chaos;
use panoply_opencl::OpenClBackend;

#[test]
fn a_hundred_deaths_lose_nothing() {
    chaos::kill_under_load(Arc::new(OpenClBackend::new()));
}
