//! Kills a device's engine again and again under load.

#![allow(clippy::unwrap_used)] // A test panics on an unexpected value.

#[path = "../../c_gpu/tests/bench/chaos.rs"]
#[allow(clippy::module_inception)] // Its file is shared with other backends.
mod chaos;

use std::sync::Arc;

use panoply_vulkan::VulkanBackend;

#[test]
fn a_hundred_deaths_lose_nothing() {
    chaos::kill_under_load(Arc::new(VulkanBackend::new()));
}
