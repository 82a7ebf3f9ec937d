//! Device memory: blocks from a pool, and the handles by which tensors know them.
//!
//! A block is one buffer of the API; small tensors that may take part in joined maps have slots of an [`Arena`]. The queue works
//! in order, so a block that comes home may be given to the next op that is recorded, even while the last one that used it has
//! not run yet.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use panoply_core::buffer::DeviceAllocation;
use panoply_core::lease::{Home, Lease};
use panoply_core::pool::{Pool, Pooled, Source};
use panoply_core::{DeviceBuffer, DeviceId, Error, MemoryStats, Result};

use crate::arena::{Arena, SLOT_BYTES, Slot};
use crate::fault::{Faults, checked};
use crate::joined::Place;

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

/// Memory on loan.
pub(crate) enum Lent {
    /// A block of its own.
    Own(Lease<Pooled<Block>>),
    /// A part of the arena.
    Slot(Slot),
}

impl Lent {
    /// The buffer that it is in.
    pub(crate) fn buffer(&self) -> &wgpu::Buffer {
        match self {
            Lent::Own(lease) => &lease.block.buffer,
            Lent::Slot(slot) => &slot.arena().buffer,
        }
    }

    /// Unique among this process' buffers: the key of cached bind groups, together with a start.
    pub(crate) fn buffer_id(&self) -> u64 {
        match self {
            Lent::Own(lease) => lease.block.id,
            Lent::Slot(slot) => slot.arena().id,
        }
    }

    /// Its first byte, counted from the buffer's start.
    pub(crate) fn start(&self) -> usize {
        match self {
            Lent::Own(_) => 0,
            Lent::Slot(slot) => slot.start(),
        }
    }

    /// How many bytes it has.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Lent::Own(lease) => lease.block.buffer.size(),
            Lent::Slot(_) => SLOT_BYTES as u64,
        }
    }
}

/// The memory of one opened device.
pub(crate) struct DeviceMemory {
    device: DeviceId,
    pool: Pool<Blocks>,
    home: Home<DeviceAllocation>,
    live: HashMap<u64, Rc<Lent>>,
    /// Makes the arena.
    blocks: Blocks,
    arena: Option<Rc<Arena>>,
    /// The size of an arena that is made when it is needed; nothing where there is none to be.
    arena_bytes: Option<u64>,
    /// The slots that were lent, and the arenas that were made for them.
    slots_lent: u64,
    arenas_made: u64,
    /// The most bytes that an arena had.
    arena_peak_bytes: u64,
}

impl DeviceMemory {
    pub(crate) fn new(
        id: DeviceId,
        device: &wgpu::Device,
        faults: &Arc<Faults>,
        pool_bytes_max: Option<usize>,
    ) -> DeviceMemory {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let blocks = || Blocks { id, device: device.clone(), faults: Arc::clone(faults), usage };
        let kept_bytes_max = pool_bytes_max.unwrap_or(POOL_BYTES_DEFAULT);
        let limits = device.limits();
        let seen = limits.max_buffer_size.min(limits.max_storage_buffer_binding_size);
        DeviceMemory {
            device: id,
            pool: Pool::new(blocks(), kept_bytes_max),
            blocks: blocks(),
            home: Home::new(),
            live: HashMap::new(),
            arena: None,
            arena_bytes: Arena::bytes_within(seen.min(kept_bytes_max as u64)),
            slots_lent: 0,
            arenas_made: 0,
            arena_peak_bytes: 0,
        }
    }

    /// A block of at least so many bytes, with whatever its last user left.
    pub(crate) fn take(&mut self, bytes: usize) -> Result<Lent> {
        self.collect();
        self.pool.lend(bytes.max(16)).map(Lent::Own)
    }

    /// A slot of the arena for at least so many bytes; nothing where they are too many or all are lent. Nothing that is
    /// bound for writing by itself may lie there.
    pub(crate) fn take_slot(&mut self, bytes: usize) -> Option<Slot> {
        if bytes > SLOT_BYTES {
            return None;
        }
        self.collect();
        if self.arena.is_none() {
            self.make_arena();
        }
        let slot = self.arena.as_ref()?.lend()?;
        self.slots_lent += 1;
        Some(slot)
    }

    fn make_arena(&mut self) {
        let Some(bytes) = self.arena_bytes else { return };
        match self.blocks.allocate(bytes as usize) {
            Ok(Block { id, buffer }) => {
                self.arena = Some(Arena::new(id, buffer));
                self.arenas_made += 1;
                self.arena_peak_bytes = bytes;
            }
            // Small tensors have blocks of their own then; whatever is wrong with the device, they will show it.
            Err(_) => self.arena_bytes = None,
        }
    }

    /// Frees the arena where nothing lies in it, for want of memory.
    pub(crate) fn shrink(&mut self) {
        self.collect();
        if self.arena.as_ref().is_some_and(|arena| arena.lent_and_free_bytes().0 == 0) {
            self.arena = None;
        }
    }

    /// The arena, where there is one.
    #[cfg(test)]
    pub(crate) fn arena(&self) -> Option<&Rc<Arena>> {
        self.arena.as_ref()
    }

    /// Where bytes lie in the arena; nothing where they lie elsewhere. The offset is a multiple of sixteen.
    pub(crate) fn place(&self, handle: &DeviceBuffer, offset_bytes: usize) -> Option<Place> {
        match &**self.live.get(&handle.token())? {
            Lent::Slot(slot) => Some(slot.place(offset_bytes)),
            Lent::Own(_) => None,
        }
    }

    /// Makes a block known under a handle.
    pub(crate) fn publish(&mut self, block: Rc<Lent>, len_bytes: usize) -> DeviceBuffer {
        let token = NEXT_TOKEN.fetch_add(1, Ordering::Relaxed);
        self.live.insert(token, block);
        DeviceBuffer::new(self.home.lend(DeviceAllocation { device: self.device, token, len_bytes }))
    }

    /// The block behind a handle.
    pub(crate) fn find(&self, handle: &DeviceBuffer) -> Result<Rc<Lent>> {
        let known = self.live.get(&handle.token()).filter(|_| handle.device() == self.device);
        known.cloned().ok_or_else(|| Error::DeviceFault {
            device: self.device,
            reason: "the data was in memory that is lost, or of another device; bring it here again".to_owned(),
        })
    }

    /// The figures of the pool and the arena. The peak is what both would have come to at once.
    pub(crate) fn stats(&mut self) -> MemoryStats {
        self.collect();
        let mut stats = self.pool.stats();
        let (lent, free) = self.arena.as_ref().map_or((0, 0), |arena| arena.lent_and_free_bytes());
        stats.lent_bytes += lent;
        stats.cached_bytes += free;
        stats.peak_bytes += self.arena_peak_bytes;
        stats.misses += self.arenas_made;
        stats.hits += self.slots_lent - self.arenas_made.min(self.slots_lent);
        stats
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
