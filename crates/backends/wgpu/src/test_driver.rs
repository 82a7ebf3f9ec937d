//! The hooks that the engine's tests need from this backend, and tests of finding adapters.

use panoply_core::{Absence, Backend, DeviceInfo, OpenOptions, Result};

use crate::backend::{WgpuBackend, WgpuEngine};

pub(crate) type TestBackend = WgpuBackend;
pub(crate) type TestEngine = WgpuEngine;

/// Limits of a simulated device; limits that are not given are WebGPU's defaults.
#[derive(Default)]
pub(crate) struct Limited {
    pub(crate) binding_bytes_max: Option<u64>,
    pub(crate) workgroup_bytes_max: Option<u32>,
    pub(crate) without_immediates: bool,
}

pub(crate) fn backend() -> TestBackend {
    WgpuBackend::new()
}

/// A backend whose devices have these limits.
pub(crate) fn limited(limited: Limited) -> TestBackend {
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
    WgpuBackend::with_limits(limits)
}

pub(crate) fn open_engine(backend: &TestBackend, device: &DeviceInfo, options: &OpenOptions) -> Result<TestEngine> {
    backend.open_engine(device, options)
}

/// Destroys the device, so that it is lost from here on.
pub(crate) fn lose(engine: &mut TestEngine) {
    engine.context().driver.device.destroy();
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
