//! The hooks that the engine's tests need from this backend, and tests of finding adapters.

use panoply_core::{Absence, Backend, DeviceInfo, OpenOptions, Result};
use panoply_wgsl_gpu_testing::{DeviceLimits, Losable, TestBackend, TestEngine};

use crate::backend::WgpuBackend;
use crate::driver::WgpuDriver;

/// Limits that are not given are WebGPU's defaults.
impl TestBackend for WgpuBackend {
    fn limited(&self, limited: DeviceLimits) -> Box<dyn TestBackend> {
        let mut limits = wgpu::Limits::defaults();
        if let Some(bytes) = limited.binding_bytes_max {
            limits.max_storage_buffer_binding_size = bytes;
        }
        if let Some(bytes) = limited.workgroup_bytes_max {
            limits.max_compute_workgroup_storage_size = bytes;
        }
        if limited.without_immediates {
            limits.max_immediate_size = 0;
        }
        Box::new(WgpuBackend::with_limits(limits))
    }

    fn open_engine(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn TestEngine>> {
        Ok(Box::new(WgpuBackend::open_engine(self, device, options)?))
    }
}

impl Losable for WgpuDriver {
    /// Destroys the device.
    fn lose(&self) {
        self.device.destroy();
    }
}

#[test]
fn no_adapter_is_an_absence() {
    let backend = WgpuBackend::with_backends(wgpu::Backends::empty());
    assert!(matches!(backend.discover(), Err(Absence::NoDevice { .. })));
}

#[test]
fn an_adapter_with_too_small_limits_is_refused_with_a_reason() {
    if let Err(absence) = WgpuBackend::new().discover() {
        eprintln!("skipped: {absence}");
        return;
    }
    let limits = wgpu::Limits { max_compute_invocations_per_workgroup: 128, ..wgpu::Limits::defaults() };
    match WgpuBackend::with_limits(limits).discover() {
        Err(Absence::NoDevice { reason }) => assert!(reason.contains("128 invocations"), "{reason}"),
        other => panic!("expected an absence, got {other:?}"),
    }
}
