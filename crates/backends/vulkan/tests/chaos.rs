//! A device's engine is killed again and again under load.

#![allow(clippy::unwrap_used)] // A test says what it did not expect by panicking.

#[path = "../../c_gpu/tests/bench/chaos.rs"]
mod chaos;

use std::sync::Arc;

use panoply_vulkan::VulkanBackend;

#[test]
fn a_hundred_deaths_lose_nothing() {
    chaos::kill_under_load(Arc::new(VulkanBackend::new()));
}
