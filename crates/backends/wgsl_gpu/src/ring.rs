//! Large uploads: several threads copy into the chunks of a ring, and the device fetches each chunk
//! while the next ones are filled.
//!
//! 1. Chunks are numbered over the ring's lifetime; chunk `n` uses slot `n % chunks`. Only the
//!    worker's thread calls the driver; the other threads only copy.
//! 2. A copier fills chunk `n` when the device has fetched the chunk that used its slot before,
//!    which the worker publishes as a count. Then the copier marks that the slot holds `n`.
//! 3. The worker records the copy of chunk `n` into the target when the slot holds `n`, and submits
//!    it together with the following chunks that are filled too: every submission leaves the link
//!    idle for a moment.
//! 4. After an error the worker stops the copiers, and returns when they have ended.

use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use panoply_core::Result;

use crate::driver::{Direction, Driver, Fence, Staging, Transfers};

/// Uploads of at least this size go through the ring.
pub const LARGE_BYTES_MIN: usize = 8 << 20;
/// The fewest bytes that are worth a thread.
const SHARE_BYTES_MIN: usize = 4 << 20;
/// Number of polls before a thread yields to others.
const SPINS: u32 = 64;

/// The chunks of large uploads.
pub struct Ring<D: Driver> {
    driver: Rc<D>,
    transfers: Transfers,
    chunks: Vec<Chunk<D>>,
    /// Number of chunks that were handed to the device, and of chunks that it has fetched.
    sent: u64,
    fetched: u64,
}

struct Chunk<D: Driver> {
    staging: D::Staging,
    fence: Option<Fence>,
}

/// A chunk that is filled.
pub struct FilledChunk<'a, D: Driver> {
    /// The chunk.
    pub chunk: &'a D::Staging,
    /// Number of bytes in the chunk.
    pub bytes: usize,
    /// Offset of these bytes in the upload.
    pub place: usize,
}

/// Records the copies of chunks, hands the chunks over to the device, and submits.
pub type Fetch<'a, D> = &'a mut dyn FnMut(&[FilledChunk<'_, D>]) -> Option<Fence>;

impl<D: Driver> Ring<D> {
    pub(crate) fn new(driver: &Rc<D>) -> Result<Ring<D>> {
        let transfers = driver.transfers();
        let make = |_| {
            let staging = driver.staging(transfers.chunk_bytes as u64, Direction::Up)?;
            Ok(Chunk { staging, fence: None })
        };
        let chunks = (0..transfers.chunks.max(2)).map(make).collect::<Result<_>>()?;
        Ok(Ring { driver: Rc::clone(driver), transfers, chunks, sent: 0, fetched: 0 })
    }

    /// Sends bytes. All bytes have been read when this returns; the device fetches the last chunks
    /// later.
    pub(crate) fn send(&mut self, bytes: &[u8], fetch: Fetch<'_, D>) -> Result<()> {
        let (size, places) = (self.transfers.chunk_bytes, self.chunks.len() as u64);
        let (first, last) = (self.sent, self.sent + bytes.len().div_ceil(size) as u64);
        let shared = SharedRing {
            starts: self.chunks.iter().map(|_| AtomicPtr::new(null_mut())).collect(),
            holds: self.chunks.iter().map(|_| AtomicU64::new(0)).collect(),
            fetched: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
        };
        // The chunks that the device does not have.
        for number in self.sent..self.fetched + places {
            self.publish(number, &shared)?;
        }
        shared.fetched.store(self.fetched, Ordering::Release);
        let part = |number: u64| {
            let begin = (number - first) as usize * size;
            &bytes[begin..bytes.len().min(begin + size)]
        };
        let copiers = copiers(bytes.len(), self.transfers.copiers_max);
        std::thread::scope(|scope| {
            for copier in 0..copiers as u64 {
                let (shared, part) = (&shared, &part);
                scope.spawn(move || {
                    (first + copier..last).step_by(copiers).all(|number| shared.fill(number, part(number)))
                });
            }
            let is_filled =
                |number: u64| shared.holds[(number % places) as usize].load(Ordering::Acquire) == number + 1;
            let mut sent = Ok(());
            while sent.is_ok() && self.sent < last {
                let mut spins = 0;
                while sent.is_ok() && !is_filled(self.sent) {
                    sent = self.notice_fetched(&shared);
                    rest(&mut spins);
                }
                // At most a quarter of the ring, so that copiers always have slots to fill.
                let together =
                    (self.sent..last.min(self.sent + (places / 4).max(1))).take_while(|number| is_filled(*number));
                let numbers: Vec<u64> = together.collect();
                let filled = numbers.iter().map(|number| FilledChunk {
                    chunk: &self.chunks[(number % places) as usize].staging,
                    bytes: part(*number).len(),
                    place: (number - first) as usize * size,
                });
                let fence = if sent.is_ok() { fetch(&filled.collect::<Vec<_>>()) } else { None };
                for number in numbers.iter().filter(|_| sent.is_ok()) {
                    self.chunks[(number % places) as usize].fence = fence;
                    self.sent = number + 1;
                }
                sent = sent.and_then(|()| self.notice_fetched(&shared));
            }
            shared.is_stopped.store(sent.is_err(), Ordering::Relaxed);
            sent
        })
    }

    /// Publishes the start of the chunk with this number to the copiers.
    fn publish(&self, number: u64, shared: &SharedRing) -> Result<()> {
        let place = (number % self.chunks.len() as u64) as usize;
        let start = self.chunks[place].staging.start()?;
        shared.starts[place].store(start.as_ptr(), Ordering::Relaxed);
        Ok(())
    }

    fn notice_fetched(&mut self, shared: &SharedRing) -> Result<()> {
        if self.fetched < self.sent {
            self.driver.look();
        }
        while self.fetched < self.sent {
            let chunk = &self.chunks[(self.fetched % self.chunks.len() as u64) as usize];
            if let Some(lost) = self.driver.faults().lost() {
                return Err(lost);
            }
            if !chunk.fence.is_none_or(|fence| self.driver.is_past(fence)) || !chunk.staging.is_back() {
                break;
            }
            self.publish(self.fetched, shared)?;
            self.fetched += 1;
            shared.fetched.store(self.fetched, Ordering::Release);
        }
        Ok(())
    }
}

/// The state that the worker and the copiers share.
struct SharedRing {
    /// The start of each slot's chunk.
    starts: Vec<AtomicPtr<u8>>,
    /// For each slot, the number of the chunk that it holds plus one.
    holds: Vec<AtomicU64>,
    fetched: AtomicU64,
    is_stopped: AtomicBool,
}

impl SharedRing {
    /// Fills a chunk when its slot is free. Returns `false` if the ring was stopped.
    fn fill(&self, number: u64, part: &[u8]) -> bool {
        let places = self.holds.len() as u64;
        let mut spins = 0;
        while number >= self.fetched.load(Ordering::Acquire) + places {
            if self.is_stopped.load(Ordering::Relaxed) {
                return false;
            }
            rest(&mut spins);
        }
        let place = (number % places) as usize;
        let start = self.starts[place].load(Ordering::Relaxed);
        // SAFETY: the chunk has room for the part and belongs to the host: the device has fetched
        // its old bytes, and one thread alone fills each number. Its start was published before the
        // count that this thread has read.
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), start, part.len()) };
        self.holds[place].store(number + 1, Ordering::Release);
        true
    }
}

/// Waits a little, and yields to other threads after many waits.
fn rest(spins: &mut u32) {
    *spins += 1;
    if *spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
}

/// Number of threads that copy `bytes` bytes.
pub fn copiers(bytes: usize, copiers_max: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (bytes / SHARE_BYTES_MIN).min(cores / 2).min(copiers_max).max(1)
}
