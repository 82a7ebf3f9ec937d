//! Device memory of one engine: the plugin's buffers, lent to tensors that leave the engine.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use panoply_core::buffer::DeviceAllocation;
use panoply_core::lease::Home;
use panoply_core::{Buffer as Place, DType, DeviceBuffer, DeviceId, Error, MemoryStats, Result, Shape, Tensor};

use crate::client::Buffer;

/// The next token of an allocation. Tokens are unique in this process, so that tensors of a dropped
/// engine are never mistaken for another's.
static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);

pub(crate) struct DeviceMemory {
    device: DeviceId,
    home: Home<DeviceAllocation>,
    tensors: HashMap<u64, ShapedBuffer>,
    lent_bytes: u64,
    peak_bytes: u64,
    allocations: u64,
}

/// A buffer and its dimensions in the plugin.
pub(crate) struct ShapedBuffer {
    pub(crate) buffer: Buffer,
    pub(crate) dims: Vec<usize>,
}

impl DeviceMemory {
    pub(crate) fn new(device: DeviceId) -> DeviceMemory {
        let (home, tensors) = (Home::new(), HashMap::new());
        DeviceMemory { device, home, tensors, lent_bytes: 0, peak_bytes: 0, allocations: 0 }
    }

    /// Wraps a whole buffer in a tensor.
    pub(crate) fn tensor(&mut self, dtype: DType, shape: Shape, buffer: Buffer) -> Result<Tensor> {
        self.collect();
        let token = NEXT_TOKEN.fetch_add(1, Ordering::Relaxed);
        let len_bytes = shape.elements() * dtype.size_bytes();
        self.tensors.insert(token, ShapedBuffer { buffer, dims: shape.to_vec() });
        self.lent_bytes += len_bytes as u64;
        self.peak_bytes = self.peak_bytes.max(self.lent_bytes);
        self.allocations += 1;
        let allocation = DeviceAllocation { device: self.device, token, len_bytes };
        Tensor::from_device(dtype, shape, DeviceBuffer::new(self.home.lend(allocation)))
    }

    /// The buffer behind a tensor of this engine.
    pub(crate) fn stored(&self, tensor: &Tensor) -> Result<&ShapedBuffer> {
        let token = match tensor.buffer() {
            Place::Device(buffer) if buffer.device() == self.device => Some(buffer.token()),
            _ => None,
        };
        token.and_then(|token| self.tensors.get(&token)).ok_or_else(|| Error::DeviceFault {
            device: self.device,
            reason: "the tensor's memory was lost when the device was opened again; upload it again".to_owned(),
        })
    }

    /// Frees the buffers that no tensor uses any more.
    pub(crate) fn collect(&mut self) {
        let DeviceMemory { home, tensors, lent_bytes, .. } = self;
        home.take_back(|allocation| {
            tensors.remove(&allocation.token);
            *lent_bytes -= allocation.len_bytes as u64;
        });
    }

    pub(crate) fn stats(&mut self) -> MemoryStats {
        self.collect();
        MemoryStats {
            lent_bytes: self.lent_bytes,
            peak_bytes: self.peak_bytes,
            misses: self.allocations,
            ..MemoryStats::default()
        }
    }
}
