//! The device memory of one engine: a pool of blocks for tensors and for the scratch memory of ops.
//!
//! A block returns to the pool only when the ops that used it have finished: an op holds its inputs
//! and its scratch memory until then, and its outputs are handed out then. Therefore a block from
//! the pool can be used on any stream immediately.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use panoply_core::buffer::DeviceAllocation;
use panoply_core::lease::{Home, Lease};
use panoply_core::pool::{BlockSource, Pool, PooledBlock};
use panoply_core::{DeviceBuffer, DeviceId, Error, MemoryLimits, MemoryStats, Result};

use crate::driver::{Address, Driver, LANES_MAX};
use crate::peers::Peer;

/// The next allocation token. Tokens are unique in this process, so that a handle of a dropped
/// engine is never mistaken for another. Modulo [`LANES_MAX`], a token is the lane of the op that
/// made the tensor.
static NEXT_TOKEN: AtomicU64 = AtomicU64::new(LANES_MAX as u64);

/// The lane of the op that made a tensor.
pub(crate) fn lane_of(token: u64) -> usize {
    (token % LANES_MAX as u64) as usize
}

/// A block lent to the engine itself.
pub(crate) type LeasedBlock = Lease<PooledBlock<DeviceBlock>>;

/// One allocation of the driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceBlock(pub(crate) Address);

pub(crate) struct DeviceMemory {
    device: DeviceId,
    pool: Pool<DeviceSource>,
    home: Home<DeviceAllocation>,
    tensors: HashMap<u64, LeasedBlock>,
    /// The lane of the current op.
    pub(crate) lane: usize,
    /// The view of this memory for other engines, if there are any.
    peer: Option<Arc<Peer>>,
}

impl DeviceMemory {
    /// Memory with a pool of this size.
    pub(crate) fn new(
        driver: Rc<dyn Driver>,
        device: DeviceId,
        limits: &MemoryLimits,
        peer: Option<Arc<Peer>>,
    ) -> DeviceMemory {
        let cached_bytes_max = limits.pool_bytes_max.unwrap_or(usize::MAX);
        let pool = Pool::new(DeviceSource { driver, device }, cached_bytes_max);
        let pool = pool.with_bytes_max(limits.device_bytes_max.map(|bytes| bytes as u64));
        DeviceMemory { device, pool, home: Home::new(), tensors: HashMap::new(), lane: 0, peer }
    }

    /// Memory for a tensor: its handle and its address.
    pub(crate) fn tensor(&mut self, bytes: usize) -> Result<(DeviceBuffer, Address)> {
        let block = self.scratch(bytes)?;
        let address = block.block.0;
        let token = NEXT_TOKEN.fetch_add(LANES_MAX as u64, Ordering::Relaxed) + self.lane as u64;
        self.tensors.insert(token, block);
        if let Some(peer) = &self.peer {
            peer.insert(token, address);
        }
        let allocation = DeviceAllocation { device: self.device, token, len_bytes: bytes };
        Ok((DeviceBuffer::new(self.home.lend(allocation)), address))
    }

    /// Memory for the engine's own use, until the lease is dropped.
    pub(crate) fn scratch(&mut self, bytes: usize) -> Result<LeasedBlock> {
        self.collect();
        self.pool.lend(bytes)
    }

    /// The smallest token that a future tensor can have.
    pub(crate) fn next_token(&self) -> u64 {
        NEXT_TOKEN.load(Ordering::Relaxed)
    }

    /// Takes the memory of every tensor from this token on: a failed op hands out none of them.
    pub(crate) fn tensors_since(&mut self, first_token: u64) -> impl Iterator<Item = LeasedBlock> {
        let DeviceMemory { tensors, peer, .. } = self;
        tensors.extract_if(move |token, _| *token >= first_token).map(move |(token, block)| {
            peer.iter().for_each(|peer| peer.remove(token));
            block
        })
    }

    /// The address of a tensor's memory.
    pub(crate) fn address(&self, buffer: &DeviceBuffer) -> Result<Address> {
        self.tensors.get(&buffer.token()).map(|block| block.block.0).ok_or_else(|| Error::DeviceFault {
            device: self.device,
            reason: "the tensor's memory was lost when the device was opened again; upload it again".to_owned(),
        })
    }

    /// The pool's figures.
    pub(crate) fn stats(&mut self) -> MemoryStats {
        self.collect();
        self.pool.stats()
    }

    /// Frees cached blocks until at most `keep_bytes` are cached.
    pub(crate) fn trim(&mut self, keep_bytes: usize) {
        self.collect();
        self.pool.trim(keep_bytes);
    }

    /// Reclaims the memory of tensors whose last handle is gone.
    fn collect(&mut self) {
        let DeviceMemory { home, tensors, peer, .. } = self;
        home.take_back(|allocation| {
            peer.iter().for_each(|peer| peer.remove(allocation.token));
            tensors.remove(&allocation.token);
        });
    }

    /// Marks the device as lost: its memory must not be read any more.
    pub(crate) fn lose(&mut self) {
        self.peer.iter().for_each(|peer| peer.lose());
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.lose();
    }
}

pub(crate) struct DeviceSource {
    driver: Rc<dyn Driver>,
    device: DeviceId,
}

impl BlockSource for DeviceSource {
    type Block = DeviceBlock;

    fn allocate(&mut self, bytes: usize) -> Result<DeviceBlock> {
        self.driver.allocate(bytes).map(DeviceBlock).map_err(|error| match error {
            Error::OutOfMemory { asked, free, largest, .. } => {
                Error::OutOfMemory { place: self.device.to_string(), asked, free, largest }
            }
            other => other,
        })
    }

    fn release(&mut self, block: DeviceBlock) {
        self.driver.free(block.0);
    }

    fn place(&self) -> String {
        self.device.to_string()
    }
}
