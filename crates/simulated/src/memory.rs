//! The memory of a virtual device: bytes that only the engine can reach, behind handles that anyone
//! can hold.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use panoply_core::buffer::DeviceAllocation;
use panoply_core::lease::Home;
use panoply_core::{Buffer, DeviceBuffer, DeviceId, Error, HostBuffer, HostBufferMut, Result, Tensor};

use crate::backend::VirtualControl;

/// The memory of one opened device.
pub(super) struct VirtualMemory {
    device: DeviceId,
    control: Arc<VirtualControl>,
    home: Home<DeviceAllocation>,
    blocks: HashMap<u64, HostBuffer>,
    live_bytes: u64,
    /// Size of the memory, as far as the script or the caller limits it.
    total_bytes: u64,
}

impl VirtualMemory {
    pub(super) fn new(device: DeviceId, control: Arc<VirtualControl>, bytes_max: Option<usize>) -> VirtualMemory {
        let scripted = control.script.memory_bytes.unwrap_or(u64::MAX);
        let total_bytes = bytes_max.map_or(scripted, |bytes_max| scripted.min(bytes_max as u64));
        VirtualMemory { device, control, home: Home::new(), blocks: HashMap::new(), live_bytes: 0, total_bytes }
    }

    /// Frees what was returned.
    pub(super) fn collect(&mut self) {
        let VirtualMemory { home, blocks, live_bytes, control, .. } = self;
        home.take_back(|allocation| {
            blocks.remove(&allocation.token);
            *live_bytes -= allocation.len_bytes as u64;
            control.counts.live_bytes.fetch_sub(allocation.len_bytes as u64, Ordering::Relaxed);
        });
    }

    pub(super) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// The tensor's elements moved into the device's memory.
    pub(super) fn store(&mut self, tensor: &Tensor) -> Result<Tensor> {
        self.collect();
        let bytes = tensor.len_bytes();
        let free = self.total_bytes.saturating_sub(self.live_bytes);
        if bytes as u64 > free {
            let (place, asked) = (self.device.to_string(), bytes as u64);
            return Err(Error::OutOfMemory { place, asked, free, largest: free });
        }
        let token = self.control.counts.next_token.fetch_add(1, Ordering::Relaxed);
        let mut block = HostBufferMut::zeroed(bytes)?;
        block.bytes_mut().copy_from_slice(tensor.contiguous()?.as_bytes()?);
        self.blocks.insert(token, block.freeze());
        self.live_bytes += bytes as u64;
        self.control.counts.live_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let allocation = DeviceAllocation { device: self.device, token, len_bytes: bytes };
        Tensor::from_device(tensor.dtype(), *tensor.shape(), DeviceBuffer::new(self.home.lend(allocation)))
    }

    /// The tensor as the device sees it. Its bytes must be on the host or in this memory.
    pub(super) fn load(&self, tensor: &Tensor) -> Result<Tensor> {
        let Buffer::Device(buffer) = tensor.buffer() else { return Ok(tensor.clone()) };
        let block = self.blocks.get(&buffer.token()).ok_or_else(|| Error::DeviceFault {
            device: self.device,
            reason: "the buffer was lost when the device was opened again".to_owned(),
        })?;
        let (shape, strides) = (*tensor.shape(), *tensor.strides());
        Tensor::from_parts(tensor.dtype(), shape, strides, tensor.offset(), Buffer::Host(block.clone()))
    }
}

impl Drop for VirtualMemory {
    fn drop(&mut self) {
        self.control.counts.live_bytes.fetch_sub(self.live_bytes, Ordering::Relaxed);
    }
}
