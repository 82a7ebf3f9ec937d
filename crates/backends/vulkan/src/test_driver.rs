//! The hooks that the engine's tests need from this backend, and tests of finding devices.

use panoply_core::{Absence, Backend, DeviceInfo, OpenOptions, Result};
use panoply_wgsl_gpu::Driver;
use panoply_wgsl_gpu_testing::{DeviceLimits, Losable, TestBackend, TestEngine};

use crate::backend::VulkanBackend;
use crate::driver::VulkanDriver;
use crate::quirks::{Limits, UNLIMITED};

/// The smallest limits that kernels are written for.
const SMALL: Limits = Limits {
    binding_bytes_max: 128 << 20,
    buffer_bytes_max: 256 << 20,
    workgroup_bytes_max: 16_384,
    invocations_max: 256,
    buffers_max: 8,
    immediate_bytes_max: 128,
};

impl TestBackend for VulkanBackend {
    fn limited(&self, limited: DeviceLimits) -> Box<dyn TestBackend> {
        Box::new(VulkanBackend::with_limits(Limits {
            binding_bytes_max: limited.binding_bytes_max.unwrap_or(SMALL.binding_bytes_max),
            workgroup_bytes_max: limited.workgroup_bytes_max.unwrap_or(SMALL.workgroup_bytes_max),
            immediate_bytes_max: if limited.without_immediates { 0 } else { SMALL.immediate_bytes_max },
            ..SMALL
        }))
    }

    fn open_engine(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn TestEngine>> {
        Ok(Box::new(VulkanBackend::open_engine(self, device, options)?))
    }
}

impl Losable for VulkanDriver {
    fn lose(&self) {
        self.faults().lose("a test says so".to_owned());
    }
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
