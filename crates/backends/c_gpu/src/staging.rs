//! Transfers between host memory and the device.
//!
//! * The device itself copies pinned memory, in one piece.
//! * Several threads copy ordinary memory into pinned chunks; the device fetches each chunk while
//!   the next are filled. Only the worker's thread calls the driver; the other threads only copy.
//! * Downloads go into pinned memory from a pool, and the tensor keeps that memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use panoply_core::pool::{BlockSource, Pool};
use panoply_core::{Error, HostBufferMut, MemoryStats, Result};

use crate::driver::{Address, Driver, Event, Stream};

/// Size of one chunk of the ring, and number of chunks.
const CHUNK_BYTES: usize = 4 << 20;
const CHUNKS: usize = 16;
/// Below this size the worker copies alone: threads would cost more than they save.
const SPREAD_BYTES_MIN: usize = 8 << 20;
/// Maximum number of copying threads.
const COPIERS_MAX: usize = 8;
/// Up to this size the driver's own copy from ordinary memory is as fast as any.
pub(crate) const SMALL_BYTES_MAX: usize = 256 << 10;
/// Maximum bytes of pinned memory kept for reuse, unless the caller sets a limit.
const PINNED_CACHE_BYTES: usize = 4 << 30;
const PAGE_BYTES: usize = 4096;
/// Minimum size of blocks that request huge pages, so that the device's copies touch fewer pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The pinned memory of one engine.
pub(crate) struct Staging {
    driver: Rc<dyn Driver>,
    pool: Pool<PinnedSource>,
    ring: Option<Ring>,
    copiers: usize,
}

/// Chunks that are filled and fetched in turn. Chunk number `g`, counted since the ring was made,
/// uses slot `g % CHUNKS`.
struct Ring {
    places: Vec<StagingSlot>,
    /// Number of chunks submitted to the device.
    sent: u64,
    /// Number of chunks that the device has fetched.
    fetched: u64,
}

struct StagingSlot {
    pages: Pages,
    fetched: Event,
}

impl Staging {
    /// Memory whose pool keeps at most this many bytes for reuse.
    pub(crate) fn new(driver: Rc<dyn Driver>, cached_bytes_max: Option<usize>) -> Staging {
        let cached_bytes_max = cached_bytes_max.unwrap_or(PINNED_CACHE_BYTES);
        let pool = Pool::new(PinnedSource { driver: Rc::clone(&driver) }, cached_bytes_max);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Staging { driver, pool, ring: None, copiers: (cores / 2).clamp(1, COPIERS_MAX) }
    }

    /// Queues a copy to the device on the upload stream. Pinned memory must not change until the
    /// stream has passed this point; ordinary memory has been read when this returns.
    pub(crate) fn upload(&mut self, target: Address, bytes: &[u8]) -> Result<()> {
        if self.driver.is_pinned(bytes.as_ptr()) {
            // SAFETY: the op being submitted holds the bytes and the target until it has finished.
            return unsafe { self.driver.upload(target, bytes.as_ptr(), bytes.len(), Stream::Upload) };
        }
        if self.ring.is_none() {
            self.ring = Some(Ring::new(&*self.driver)?);
        }
        let Some(ring) = &mut self.ring else { return Ok(()) };
        let copiers = if bytes.len() < SPREAD_BYTES_MIN { 0 } else { self.copiers };
        ring.send(&*self.driver, target, bytes, copiers)
    }

    /// Pinned memory for a download.
    pub(crate) fn target(&mut self, bytes: usize) -> Result<HostBufferMut> {
        let lease = self.pool.lend(bytes)?;
        let start = lease.block.start;
        // SAFETY: the block holds at least `bytes` initialised bytes, is aligned to a page, and
        // belongs to the lease alone.
        Ok(unsafe { HostBufferMut::from_raw(start, bytes, Arc::new(lease)) })
    }

    /// Frees cached blocks until at most `keep_bytes` are cached.
    pub(crate) fn trim(&mut self, keep_bytes: usize) {
        self.pool.trim(keep_bytes);
    }

    /// Figures of the pinned pool.
    pub(crate) fn stats(&mut self) -> MemoryStats {
        self.pool.stats()
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Release the pinned blocks that are not lent while the context still exists.
        self.pool.trim(0);
        for place in self.ring.iter().flat_map(|ring| &ring.places) {
            self.driver.unpin(place.pages.start);
        }
    }
}

impl Ring {
    fn new(driver: &dyn Driver) -> Result<Ring> {
        let mut places = Vec::new();
        for _ in 0..CHUNKS {
            let pages = Pages::new(CHUNK_BYTES)?;
            // SAFETY: the pages live as long as the ring, which unpins them before dropping them.
            unsafe { driver.pin(pages.start, CHUNK_BYTES)? };
            places.push(StagingSlot { pages, fetched: driver.event()? });
        }
        Ok(Ring { places, sent: 0, fetched: 0 })
    }

    fn send(&mut self, driver: &dyn Driver, target: Address, bytes: &[u8], copiers: usize) -> Result<()> {
        let first = self.sent;
        let count = bytes.len().div_ceil(CHUNK_BYTES) as u64;
        let starts: Vec<ChunkStart> = self.places.iter().map(|place| ChunkStart(place.pages.start)).collect();
        // The number of chunks fetched, for the filling threads to read; and the chunk in each
        // slot.
        let fetched = AtomicU64::new(self.fetched);
        let holds: Vec<AtomicU64> = (0..CHUNKS).map(|_| AtomicU64::new(0)).collect();
        let fill = |number: u64| {
            let place = (number % CHUNKS as u64) as usize;
            let begin = (number - first) as usize * CHUNK_BYTES;
            let part = &bytes[begin..bytes.len().min(begin + CHUNK_BYTES)];
            // SAFETY: the chunk has room for the part, and one thread has exclusive access to it:
            // the device has fetched the previous content, and each number is filled by one thread.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), starts[place].0.as_ptr(), part.len()) };
            holds[place].store(number + 1, Ordering::Release);
        };
        let last = first + count;
        let free = |number: u64| number < fetched.load(Ordering::Acquire) + CHUNKS as u64;
        let stopped = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for copier in 0..copiers as u64 {
                let (fill, free, stopped) = (&fill, &free, &stopped);
                scope.spawn(move || {
                    for number in (first + copier..last).step_by(copiers) {
                        while !free(number) {
                            if stopped.load(Ordering::Relaxed) != 0 {
                                return;
                            }
                            std::hint::spin_loop();
                        }
                        fill(number);
                    }
                });
            }
            let sent = (first..last).try_for_each(|number| {
                let place = (number % CHUNKS as u64) as usize;
                while !free(number) || (copiers > 0 && holds[place].load(Ordering::Acquire) != number + 1) {
                    self.notice_fetched(driver, &fetched)?;
                    std::hint::spin_loop();
                }
                if copiers == 0 {
                    fill(number);
                }
                let begin = (number - first) as usize * CHUNK_BYTES;
                let len = CHUNK_BYTES.min(bytes.len() - begin);
                let StagingSlot { pages, fetched: mark } = &self.places[place];
                // SAFETY: the chunk does not change until its event has been passed.
                unsafe { driver.upload(target + begin, pages.start.as_ptr(), len, Stream::Upload)? };
                driver.record(*mark, Stream::Upload)?;
                self.sent = number + 1;
                self.notice_fetched(driver, &fetched)
            });
            stopped.store(u64::from(sent.is_err()), Ordering::Relaxed);
            sent
        })
    }

    fn notice_fetched(&mut self, driver: &dyn Driver, told: &AtomicU64) -> Result<()> {
        while self.fetched < self.sent {
            let place = &self.places[(self.fetched % CHUNKS as u64) as usize];
            if !driver.is_past(place.fetched)? {
                break;
            }
            self.fetched += 1;
            told.store(self.fetched, Ordering::Release);
        }
        Ok(())
    }
}

/// The address of a chunk, for the threads that fill it.
#[derive(Clone, Copy)]
struct ChunkStart(NonNull<u8>);

// SAFETY: only an address; the protocol in `Ring::send` decides which thread may write there.
unsafe impl Sync for ChunkStart {}

/// Page-aligned host memory. It outlives the engine if a tensor holds it.
pub(crate) struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

impl Pages {
    fn new(bytes: usize) -> Result<Pages> {
        let out_of_memory =
            || Error::OutOfMemory { place: "the host".to_owned(), asked: bytes as u64, free: 0, largest: 0 };
        let align = if bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { PAGE_BYTES };
        let layout = Layout::from_size_align(bytes.max(1), align).map_err(|_| out_of_memory())?;
        // SAFETY: the layout's size is above zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(out_of_memory)?;
        #[cfg(target_os = "linux")]
        if bytes >= HUGE_PAGE_BYTES {
            // SAFETY: whole pages of memory that was just allocated; the advice changes no
            // contents.
            unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
        }
        Ok(Pages { start, layout })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pages {}
// SAFETY: a shared reference gives access only to the address.
unsafe impl Sync for Pages {}

pub(crate) struct PinnedSource {
    driver: Rc<dyn Driver>,
}

impl BlockSource for PinnedSource {
    type Block = Pages;

    fn allocate(&mut self, bytes: usize) -> Result<Pages> {
        let pages = Pages::new(bytes)?;
        // SAFETY: the pages are unpinned before they are freed, or the context no longer exists by
        // then.
        unsafe { self.driver.pin(pages.start, bytes)? };
        Ok(pages)
    }

    fn release(&mut self, block: Pages) {
        self.driver.unpin(block.start);
    }

    fn place(&self) -> String {
        "the host's pinned memory".to_owned()
    }
}
