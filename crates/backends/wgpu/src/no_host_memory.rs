//! A stand-in on systems without Vulkan: all staging memory is wgpu's own.

use std::convert::Infallible;
use std::ptr::NonNull;

use panoply_core::HostBuffer;
use panoply_wgsl_gpu::driver::Direction;

use crate::quirks::Memory;

/// Never constructed.
pub(crate) struct HostMemory(Infallible);

impl HostMemory {
    pub(crate) fn open(_device: &wgpu::Device) -> Option<HostMemory> {
        None
    }

    pub(crate) fn staging(
        &self,
        _device: &wgpu::Device,
        _bytes: u64,
        _memory: Memory,
        _direction: Direction,
    ) -> Option<OwnStaging> {
        match self.0 {}
    }

    pub(crate) fn import(
        &self,
        _device: &wgpu::Device,
        _host: &HostBuffer,
        _bytes: &[u8],
    ) -> Option<(wgpu::Buffer, u64)> {
        match self.0 {}
    }
}

/// Never constructed.
pub struct OwnStaging(Infallible);

impl OwnStaging {
    pub(crate) fn start(&self) -> NonNull<u8> {
        match self.0 {}
    }

    pub(crate) fn is_cached(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn buffer(&self) -> &wgpu::Buffer {
        match self.0 {}
    }
}
