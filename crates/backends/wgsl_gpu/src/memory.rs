//! Device memory: blocks from a pool, and the handles by which tensors refer to them.
//!
//! A block is one buffer of the API; small tensors that may take part in joined maps have slots of
//! an [`Arena`]. The queue works in order, so a returned block may be lent to the next op that is
//! recorded, even if its last user has not run yet.

use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use panoply_core::buffer::DeviceAllocation;
use panoply_core::lease::{Home, Lease};
use panoply_core::pool::{BlockSource, Pool, PooledBlock};
use panoply_core::{DeviceBuffer, DeviceId, Error, MemoryLimits, MemoryStats, Result};

use crate::arena::{Arena, ArenaSlot, SLOT_BYTES};
use crate::driver::Driver;
use crate::joined::ArenaPosition;
use crate::profile::Profile;

/// The most bytes that the pool keeps for reuse, if the caller sets no limit.
const POOL_BYTES_DEFAULT: usize = 8 << 30;

/// The arena is at most this part of the device memory that the caller permits.
const ARENA_PART_OF_LIMIT: u64 = 4;

/// Tokens are never reused in a process, so that a handle that outlives its engine is recognised.
static NEXT_TOKEN: AtomicU64 = AtomicU64::new(1);

/// One buffer of the API.
pub struct MemoryBlock<D: Driver> {
    /// Unique among this process' blocks: the key of cached bindings.
    pub(crate) id: u64,
    pub(crate) buffer: D::Buffer,
    bytes: u64,
}

/// Memory on loan.
pub enum LentMemory<D: Driver> {
    /// A block of its own.
    Own(Lease<PooledBlock<MemoryBlock<D>>>),
    /// A part of the arena.
    Slot(ArenaSlot<D>),
    /// Host memory, which is only read.
    Host(MemoryBlock<D>),
}

impl<D: Driver> LentMemory<D> {
    /// The buffer that contains the memory.
    pub fn buffer(&self) -> &D::Buffer {
        match self {
            LentMemory::Own(lease) => &lease.block.buffer,
            LentMemory::Slot(slot) => &slot.arena().buffer,
            LentMemory::Host(block) => &block.buffer,
        }
    }

    /// Unique among this process' buffers: the key of cached bindings, together with a start.
    pub fn buffer_id(&self) -> u64 {
        match self {
            LentMemory::Own(lease) => lease.block.id,
            LentMemory::Slot(slot) => slot.arena().id,
            LentMemory::Host(block) => block.id,
        }
    }

    /// Offset of the first byte from the buffer's start.
    pub fn start(&self) -> usize {
        match self {
            LentMemory::Own(_) | LentMemory::Host(_) => 0,
            LentMemory::Slot(slot) => slot.start(),
        }
    }

    /// Whether this is host memory.
    pub fn is_host(&self) -> bool {
        matches!(self, LentMemory::Host(_))
    }

    /// Number of bytes.
    pub fn size(&self) -> u64 {
        match self {
            LentMemory::Own(lease) => lease.block.bytes,
            LentMemory::Slot(_) => SLOT_BYTES as u64,
            LentMemory::Host(block) => block.bytes,
        }
    }
}

impl<D: Driver> MemoryBlock<D> {
    /// A block around a buffer that no pool has made.
    pub(crate) fn foreign(buffer: D::Buffer, bytes: u64) -> MemoryBlock<D> {
        MemoryBlock { id: NEXT_TOKEN.fetch_add(1, Ordering::Relaxed), buffer, bytes }
    }
}

/// The memory of one opened device.
pub struct DeviceMemory<D: Driver> {
    device: DeviceId,
    pool: Pool<Blocks<D>>,
    home: Home<DeviceAllocation>,
    live: HashMap<u64, Rc<LentMemory<D>>>,
    /// Allocates the arena's buffer.
    blocks: Blocks<D>,
    arena: Option<Rc<Arena<D>>>,
    /// Size of the arena, which is made when it is needed; `None` if there can be no arena.
    arena_bytes: Option<u64>,
    /// Number of slots that were lent, and of arenas that were made.
    slots_lent: u64,
    arenas_made: u64,
    /// Size of the largest arena so far.
    arena_peak_bytes: u64,
}

impl<D: Driver> DeviceMemory<D> {
    pub(crate) fn new(driver: &Rc<D>, profile: &Profile, limits: &MemoryLimits) -> DeviceMemory<D> {
        let bytes_max = profile.buffer_bytes_max;
        let blocks = || Blocks { id: profile.id, driver: Rc::clone(driver), bytes_max };
        let kept_bytes_max = limits.pool_bytes_max.unwrap_or(POOL_BYTES_DEFAULT);
        let device_bytes_max = limits.device_bytes_max.map(|bytes| bytes as u64);
        let seen = bytes_max.min(profile.binding_bytes_max).min(kept_bytes_max as u64);
        // The arena is no part of the pool, but counts towards the device's limit.
        let arena_bytes_max = seen.min(device_bytes_max.map_or(u64::MAX, |bytes| bytes / ARENA_PART_OF_LIMIT));
        let arena_bytes = Arena::<D>::bytes_within(arena_bytes_max);
        let pool_bytes_max = device_bytes_max.map(|bytes| bytes - arena_bytes.unwrap_or(0));
        DeviceMemory {
            device: profile.id,
            pool: Pool::new(blocks(), kept_bytes_max).with_bytes_max(pool_bytes_max),
            blocks: blocks(),
            home: Home::new(),
            live: HashMap::new(),
            arena: None,
            arena_bytes,
            slots_lent: 0,
            arenas_made: 0,
            arena_peak_bytes: 0,
        }
    }

    /// Lends a block of at least `bytes` bytes with the old contents of its last user.
    pub fn take(&mut self, bytes: usize) -> Result<LentMemory<D>> {
        self.collect();
        self.pool.lend(bytes.max(16)).map(LentMemory::Own)
    }

    /// Lends a slot of the arena for at least `bytes` bytes; `None` if that is more than a slot, or
    /// all slots are lent. Kernels that bind their outputs separately must not write to a slot.
    pub fn take_slot(&mut self, bytes: usize) -> Option<ArenaSlot<D>> {
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
            Ok(MemoryBlock { id, buffer, bytes }) => {
                self.arena = Some(Arena::new(id, buffer, bytes));
                self.arenas_made += 1;
                self.arena_peak_bytes = bytes;
            }
            // Small tensors then have blocks of their own. If the device has a fault, those
            // allocations will report it.
            Err(_) => self.arena_bytes = None,
        }
    }

    /// Frees cached blocks until at most `keep_bytes` are cached, and an empty arena beyond that.
    pub(crate) fn trim(&mut self, keep_bytes: usize) {
        self.collect();
        self.pool.trim(keep_bytes);
        if self.arena.as_ref().is_some_and(|arena| arena.bytes() > keep_bytes as u64) {
            self.shrink();
        }
    }

    /// Frees an empty arena when memory is short.
    pub fn shrink(&mut self) {
        self.collect();
        if self.arena.as_ref().is_some_and(|arena| arena.lent_and_free_bytes().0 == 0) {
            self.arena = None;
        }
    }

    /// The arena, if there is one.
    pub fn arena(&self) -> Option<&Rc<Arena<D>>> {
        self.arena.as_ref()
    }

    /// The place of bytes in the arena; `None` if they lie elsewhere. The offset is a multiple of
    /// sixteen.
    pub fn place(&self, handle: &DeviceBuffer, offset_bytes: usize) -> Option<ArenaPosition> {
        match &**self.live.get(&handle.token())? {
            LentMemory::Slot(slot) => Some(slot.place(offset_bytes)),
            LentMemory::Own(_) | LentMemory::Host(_) => None,
        }
    }

    /// Makes a block available under a handle.
    pub fn publish(&mut self, block: Rc<LentMemory<D>>, len_bytes: usize) -> DeviceBuffer {
        let token = NEXT_TOKEN.fetch_add(1, Ordering::Relaxed);
        self.live.insert(token, block);
        DeviceBuffer::new(self.home.lend(DeviceAllocation { device: self.device, token, len_bytes }))
    }

    /// The block of a handle.
    pub fn find(&self, handle: &DeviceBuffer) -> Result<Rc<LentMemory<D>>> {
        let known = self.live.get(&handle.token()).filter(|_| handle.device() == self.device);
        known.cloned().ok_or_else(|| Error::DeviceFault {
            device: self.device,
            reason: "the data was in memory that is lost, or of another device; bring it here again".to_owned(),
        })
    }

    /// The figures of the pool and the arena. The peak is the sum of both peaks.
    pub fn stats(&mut self) -> MemoryStats {
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

/// Allocates blocks.
pub struct Blocks<D: Driver> {
    id: DeviceId,
    driver: Rc<D>,
    bytes_max: u64,
}

impl<D: Driver> BlockSource for Blocks<D> {
    type Block = MemoryBlock<D>;

    fn allocate(&mut self, bytes: usize) -> Result<MemoryBlock<D>> {
        let (bytes, largest) = ((bytes as u64).next_multiple_of(16), self.bytes_max);
        if bytes > largest {
            return Err(Error::OutOfMemory { place: self.id.to_string(), asked: bytes, free: largest, largest });
        }
        let buffer = self.driver.buffer(bytes)?;
        Ok(MemoryBlock::foreign(buffer, bytes))
    }

    fn place(&self) -> String {
        self.id.to_string()
    }
}
