//! Host memory for outputs: small ones from the allocator, large ones from a pool of warm pages.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, TryLockError, Weak};

use panoply_core::buffer::{HOST_ALIGN_BYTES, HostBufferMut};
use panoply_core::pool::{BlockSource, Pool};
use panoply_core::{Error, MemoryLimits, MemoryStats, Result};

/// Outputs of at least this size come from the pool. Below it the allocator reuses its own memory
/// well.
const POOLED_BYTES_MIN: usize = 64 << 10;
/// Blocks of at least this size ask for huge pages: fewer faults and fewer TLB misses.
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Long-lived memory lies in regions of this size, each shared by a few blocks.
const REGION_BYTES: usize = 2 * HUGE_PAGE_BYTES;
/// The largest block that shares a region, and the smallest: sharing gains nothing for smaller
/// ones.
const SHARED_BYTES_MAX: usize = REGION_BYTES / 2;
const SHARED_BYTES_MIN: usize = 64 << 10;
/// Default limit of the pool.
const POOL_BYTES_DEFAULT: usize = 1 << 30;

/// The engine's supply of output memory.
pub struct HostMemory {
    pool: Pool<HostPages>,
}

impl HostMemory {
    /// Memory with a pool of this size.
    pub fn new(limits: MemoryLimits) -> HostMemory {
        let pool = Pool::new(HostPages, limits.pool_bytes_max.unwrap_or(POOL_BYTES_DEFAULT));
        HostMemory { pool: pool.with_bytes_max(limits.device_bytes_max.map(|bytes| bytes as u64)) }
    }

    /// Frees cached blocks, until at most `keep_bytes` are cached.
    pub fn trim(&mut self, keep_bytes: usize) {
        self.pool.trim(keep_bytes);
    }

    /// Initialised memory with arbitrary contents, to be overwritten.
    pub fn take(&mut self, bytes: usize) -> Result<HostBufferMut> {
        if bytes < POOLED_BYTES_MIN {
            return HostBufferMut::zeroed(bytes);
        }
        let lease = self.pool.lend(bytes)?;
        let start = lease.block.start();
        // SAFETY: the block is aligned to a cache line, holds at least `bytes` initialised bytes,
        // and belongs to the lease alone until that is dropped.
        Ok(unsafe { HostBufferMut::from_raw(start, bytes, Arc::new(lease)) })
    }

    /// The pool's statistics.
    pub fn stats(&mut self) -> MemoryStats {
        self.pool.stats()
    }
}

struct HostPages;

impl BlockSource for HostPages {
    type Block = Pages;

    fn allocate(&mut self, bytes: usize) -> Result<Pages> {
        Pages::zeroed(bytes).ok_or_else(|| Error::OutOfMemory {
            place: "the host".to_owned(),
            asked: bytes as u64,
            free: 0,
            largest: 0,
        })
    }

    fn place(&self) -> String {
        "the host".to_owned()
    }
}

/// One block of host memory, zeroed when it was allocated. Large blocks lie on huge pages if the
/// system grants them.
pub struct Pages {
    start: NonNull<u8>,
    layout: Layout,
    /// The region that contains the block, unless it is a block of its own.
    region: Option<Arc<Pages>>,
}

/// The region that blocks are cut from, and its used bytes. It is freed with the last of its
/// blocks. The lock is never waited for: in a fork of the process, a thread that no longer exists
/// may hold it forever.
static REGION: Mutex<(Weak<Pages>, usize)> = Mutex::new((Weak::new(), 0));

impl Pages {
    /// Allocates `bytes` zeros; `None` if there is no memory.
    pub fn zeroed(bytes: usize) -> Option<Pages> {
        let align = if bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { HOST_ALIGN_BYTES };
        let layout = Layout::from_size_align(bytes.max(1), align).ok()?;
        // SAFETY: the layout has a size above zero.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        // Advised before the first write, which decides the kind of pages.
        advise_huge_pages(start, bytes);
        // SAFETY: the block was just allocated with this size.
        unsafe { start.as_ptr().write_bytes(0, layout.size()) };
        Some(Pages { start, layout, region: None })
    }

    /// The same for memory that is kept for long and read again and again, such as the weights of a
    /// network: several blocks share huge pages, so that reading all of them causes fewer TLB
    /// misses.
    pub fn kept(bytes: usize) -> Option<Pages> {
        if !(SHARED_BYTES_MIN..=SHARED_BYTES_MAX).contains(&bytes) {
            return Pages::zeroed(bytes);
        }
        let layout = Layout::from_size_align(bytes, HOST_ALIGN_BYTES).ok()?;
        let mut current = match REGION.try_lock() {
            Ok(current) => current,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Another thread is using the region: make a separate block.
            Err(TryLockError::WouldBlock) => return Pages::zeroed(bytes),
        };
        let region = current.0.upgrade().filter(|region| region.bytes() - current.1 >= bytes);
        let (region, used) = match region {
            Some(region) => (region, current.1),
            None => (Arc::new(Pages::zeroed(REGION_BYTES)?), 0),
        };
        *current = (Arc::downgrade(&region), (used + bytes).next_multiple_of(HOST_ALIGN_BYTES).min(region.bytes()));
        // SAFETY: the region has at least `bytes` from `used` on.
        let start = unsafe { region.start.add(used) };
        Some(Pages { start, layout, region: Some(region) })
    }

    /// Start of the block, at least cache-line aligned.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Length of the block in bytes.
    pub fn bytes(&self) -> usize {
        self.layout.size()
    }
}

// SAFETY: the block is plain memory with one owner.
unsafe impl Send for Pages {}
// SAFETY: sharing a block shares its address only; its bytes are reached through the buffer that
// holds the lease.
unsafe impl Sync for Pages {}

impl Drop for Pages {
    fn drop(&mut self) {
        if self.region.is_none() {
            // SAFETY: allocated in `zeroed` with this layout, freed once.
            unsafe { dealloc(self.start.as_ptr(), self.layout) };
        }
    }
}

/// Asks for huge pages under memory that has not been touched yet. Only a hint: if it is refused,
/// the memory still works.
fn advise_huge_pages(start: NonNull<u8>, bytes: usize) {
    #[cfg(target_os = "linux")]
    if bytes >= HUGE_PAGE_BYTES {
        const PAGE_BYTES: usize = 4096;
        let skip = start.as_ptr().align_offset(PAGE_BYTES).min(bytes);
        let page = start.as_ptr().wrapping_add(skip);
        // SAFETY: whole pages of memory that the caller owns; the advice changes no contents.
        unsafe { libc::madvise(page.cast(), bytes - skip, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_outputs_reuse_their_pages() {
        let mut memory = HostMemory::new(MemoryLimits::default());
        let first = memory.take(3 << 20).unwrap().freeze();
        let address = first.bytes().as_ptr();
        drop(first);
        let second = memory.take(3 << 20).unwrap().freeze();
        assert_eq!(second.bytes().as_ptr(), address);
        let stats = memory.stats();
        assert_eq!((stats.hits, stats.misses), (1, 1));
    }

    #[test]
    fn a_limit_bounds_what_is_lent_and_trimming_frees_the_rest() {
        let limits = MemoryLimits { device_bytes_max: Some(8 << 20), ..MemoryLimits::default() };
        let mut memory = HostMemory::new(limits);
        let first = memory.take(6 << 20).unwrap();
        let refused = memory.take(4 << 20).map(drop);
        assert!(matches!(refused, Err(Error::OutOfMemory { free: 0x20_0000, .. })), "{refused:?}");
        drop(first);
        memory.take(4 << 20).unwrap();
        assert_eq!(memory.stats().cached_bytes, 4 << 20);
        memory.trim(0);
        assert_eq!(memory.stats().cached_bytes, 0);
    }

    #[test]
    fn kept_blocks_do_not_overlap_and_hold_what_was_written() {
        let sizes = [64 << 10, (300 << 10) + 4, SHARED_BYTES_MAX, 100 << 10, SHARED_BYTES_MAX - 60, 1, REGION_BYTES];
        let blocks: Vec<Pages> = sizes.iter().cycle().take(40).map(|bytes| Pages::kept(*bytes).unwrap()).collect();
        let slice = |block: &Pages| {
            assert_eq!(block.start().as_ptr() as usize % HOST_ALIGN_BYTES, 0);
            // SAFETY: the block has this many bytes, all initialised, and only this test uses it.
            unsafe { std::slice::from_raw_parts_mut(block.start().as_ptr(), block.bytes()) }
        };
        for (number, block) in blocks.iter().enumerate() {
            assert!(slice(block).iter().all(|byte| *byte == 0), "block {number}");
            slice(block).fill(number as u8 + 1);
        }
        for (number, block) in blocks.iter().enumerate() {
            assert!(slice(block).iter().all(|byte| *byte == number as u8 + 1), "block {number}");
        }
    }

    #[test]
    fn nobody_waits_for_the_region() {
        let held = REGION.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // As in a fork: the lock is never released.
        let block = Pages::kept(SHARED_BYTES_MIN).unwrap();
        drop(held);
        assert!(block.region.is_none() && block.bytes() == SHARED_BYTES_MIN);
    }

    #[test]
    fn absurd_sizes_are_out_of_memory() {
        let mut memory = HostMemory::new(MemoryLimits::default());
        assert!(matches!(memory.take(isize::MAX as usize / 2), Err(Error::OutOfMemory { .. })));
    }
}
