//! The hooks that the engine's tests need from this backend, and tests of finding devices.

use panoply_core::{Absence, Backend, DeviceInfo, OpenOptions, Result};
use panoply_wgsl_gpu::Driver;

use crate::backend::{VulkanBackend, VulkanEngine};
use crate::quirks::{Limits, UNLIMITED};

pub(crate) type TestBackend = VulkanBackend;
pub(crate) type TestEngine = VulkanEngine;

/// The smallest limits that kernels are written for.
const SMALL: Limits = Limits {
    binding_bytes_max: 128 << 20,
    buffer_bytes_max: 256 << 20,
    workgroup_bytes_max: 16_384,
    invocations_max: 256,
    buffers_max: 8,
    immediate_bytes_max: 128,
};

/// Limits of a simulated device; limits that are not given are small.
#[derive(Default)]
pub(crate) struct Limited {
    pub(crate) binding_bytes_max: Option<u64>,
    pub(crate) workgroup_bytes_max: Option<u32>,
    pub(crate) without_immediates: bool,
}

pub(crate) fn backend() -> TestBackend {
    VulkanBackend::new()
}

/// A backend whose devices have at most these limits.
pub(crate) fn limited(limited: Limited) -> TestBackend {
    VulkanBackend::with_limits(Limits {
        binding_bytes_max: limited.binding_bytes_max.unwrap_or(SMALL.binding_bytes_max),
        workgroup_bytes_max: limited.workgroup_bytes_max.unwrap_or(SMALL.workgroup_bytes_max),
        immediate_bytes_max: if limited.without_immediates { 0 } else { SMALL.immediate_bytes_max },
        ..SMALL
    })
}

pub(crate) fn open_engine(backend: &TestBackend, device: &DeviceInfo, options: &OpenOptions) -> Result<TestEngine> {
    backend.open_engine(device, options)
}

/// Marks the device as lost from here on.
pub(crate) fn lose(engine: &mut TestEngine) {
    engine.context().driver.faults().lose("a test says so".to_owned());
}

#[test]
fn a_device_with_too_small_limits_is_refused_with_a_reason() {
    if let Err(absence) = VulkanBackend::new().discover() {
        eprintln!("skipped: {absence}");
        return;
    }
    match VulkanBackend::with_limits(Limits { invocations_max: 128, ..UNLIMITED }).discover() {
        Err(Absence::NoDevice { reason }) => assert!(reason.contains("128 invocations"), "{reason}"),
        other => panic!("expected an absence, got {other:?}"),
    }
}
