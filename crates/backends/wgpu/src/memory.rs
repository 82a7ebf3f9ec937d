//! Device memory: blocks from a pool, and the handles by which tensors know them.
//!
//! A block is one buffer of the API. The queue works in order, so a block that comes home may be given to the next op that
//! is recorded, even while the last one that used it has not run yet.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use panoply_core::buffer::DeviceAllocation;
use panoply_core::lease::{Home, Lease};
use panoply_core::pool::{Pool, Pooled, Source};
use panoply_core::{DeviceBuffer, DeviceId, Error, MemoryStats, Result};

use crate::fault::{Faults, checked};

/// What the pool keeps for reuse where the caller does not say.
const POOL_BYTES_DEFAULT: usize = 8 << 30;

/// Tokens are never used twice in a process, so that a handle that outlives its engine is recognised.
static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);

/// One buffer of the API.
#[derive(Debug)]
pub(crate) struct Block {
    /// Unique among this process' blocks: the key of cached bind groups.
    pub(crate) id: u64,
    pub(crate) buffer: wgpu::Buffer,
}

/// A block on loan.
pub(crate) type BlockLease = Lease<Pooled<Block>>;

/// The memory of one opened device.
pub(crate) struct DeviceMemory {
    device: DeviceId,
    pool: Pool<Blocks>,
    home: Home<DeviceAllocation>,
    live: HashMap<u64, Rc<BlockLease>>,
}

impl DeviceMemory {
    pub(crate) fn new(
        id: DeviceId,
        device: &wgpu::Device,
        faults: &Arc<Faults>,
        pool_bytes_max: Option<usize>,
    ) -> DeviceMemory {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let blocks = Blocks { id, device: device.clone(), faults: Arc::clone(faults), usage };
        let pool = Pool::new(blocks, pool_bytes_max.unwrap_or(POOL_BYTES_DEFAULT));
        DeviceMemory { device: id, pool, home: Home::new(), live: HashMap::new() }
    }

    /// A block of at least so many bytes, with whatever its last user left.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<BlockLease> {
        self.collect();
        self.pool.lend(bytes.max(16))
    }

    /// Makes a block known under a handle.
    pub(crate) fn publish(&mut self, block: Rc<BlockLease>, len_bytes: usize) -> DeviceBuffer {
        let token = NEXT_TOKEN.fetch_add(1, Ordering::Relaxed);
        self.live.insert(token, block);
        DeviceBuffer::new(self.home.lend(DeviceAllocation { device: self.device, token, len_bytes }))
    }

    /// The block behind a handle.
    pub(crate) fn find(&self, handle: &DeviceBuffer) -> Result<Rc<BlockLease>> {
        let known = self.live.get(&handle.token()).filter(|_| handle.device() == self.device);
        known.cloned().ok_or_else(|| Error::DeviceFault {
            device: self.device,
            reason: "the data was in memory that is lost, or of another device; bring it here again".to_owned(),
        })
    }

    /// The pool's figures.
    pub(crate) fn stats(&mut self) -> MemoryStats {
        self.collect();
        self.pool.stats()
    }

    fn collect(&mut self) {
        let DeviceMemory { home, live, .. } = self;
        home.take_back(|allocation| {
            live.remove(&allocation.token);
        });
    }
}

/// Makes buffers of one usage.
pub(crate) struct Blocks {
    pub(crate) id: DeviceId,
    pub(crate) device: wgpu::Device,
    pub(crate) faults: Arc<Faults>,
    pub(crate) usage: wgpu::BufferUsages,
}

impl Source for Blocks {
    type Block = Block;

    fn allocate(&mut self, bytes: usize) -> Result<Block> {
        let size = bytes as u64;
        let largest = self.device.limits().max_buffer_size;
        if size > largest {
            return Err(Error::OutOfMemory { place: self.id.to_string(), asked: size, free: largest, largest });
        }
        let descriptor = wgpu::BufferDescriptor { label: None, size, usage: self.usage, mapped_at_creation: false };
        let buffer = checked(&self.device, &self.faults, size, || self.device.create_buffer(&descriptor))?;
        Ok(Block { id: NEXT_TOKEN.fetch_add(1, Ordering::Relaxed), buffer })
    }
}
