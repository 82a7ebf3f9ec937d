//! Large uploads: several threads copy into the chunks of a ring, each of which the device fetches while the next are filled.
//!
//! 1. Chunks are numbered from the start of time; chunk `n` lives in place `n % chunks`. The worker's thread alone talks to
//!    the driver; the others only copy.
//! 2. A copier fills chunk `n` when the device has fetched the chunk that was in its place before, which the worker tells by
//!    a count, and then says that the place holds `n`.
//! 3. The worker records the copy of chunk `n` into the target when the place holds `n`, and submits it together with those behind it
//!    that are filled too: every submission leaves the link idle for a moment.
//! 4. When anything goes wrong the worker tells the copiers to stop, and returns when they have.

use std::ptr::null_mut;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use panoply_core::Result;

use crate::driver::{Direction, Driver, Fence, Staging, Transfers};

/// Uploads from this size on go through the ring.
pub const LARGE_BYTES_MIN: usize = 8 << 20;
/// The least that is worth a thread.
const SHARE_BYTES_MIN: usize = 4 << 20;
/// How often a thread looks before it lets others run.
const SPINS: u32 = 64;

/// The chunks of large uploads.
pub struct Ring<D: Driver> {
    driver: Rc<D>,
    transfers: Transfers,
    chunks: Vec<Chunk<D>>,
    /// Chunks that were handed to the device, and those that it has fetched.
    sent: u64,
    fetched: u64,
}

struct Chunk<D: Driver> {
    staging: D::Staging,
    fence: Option<Fence>,
}

/// A chunk that is filled.
pub struct Filled<'a, D: Driver> {
    /// The chunk.
    pub chunk: &'a D::Staging,
    /// How many bytes it has.
    pub bytes: usize,
    /// How many bytes come before them.
    pub place: usize,
}

/// Where the device is told to fetch chunks: records their copies, hands them over, submits.
pub type Fetch<'a, D> = &'a mut dyn FnMut(&[Filled<'_, D>]) -> Option<Fence>;

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

    /// Sends bytes. They have been read when this returns; the device fetches the last of them later.
    pub(crate) fn send(&mut self, bytes: &[u8], fetch: Fetch<'_, D>) -> Result<()> {
        let (size, places) = (self.transfers.chunk_bytes, self.chunks.len() as u64);
        let (first, last) = (self.sent, self.sent + bytes.len().div_ceil(size) as u64);
        let shared = Shared {
            starts: self.chunks.iter().map(|_| AtomicPtr::new(null_mut())).collect(),
            holds: self.chunks.iter().map(|_| AtomicU64::new(0)).collect(),
            fetched: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
        };
        // Chunks that the device does not have.
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
                // A quarter of the ring at the most, so that copiers always have places to fill.
                let together =
                    (self.sent..last.min(self.sent + (places / 4).max(1))).take_while(|number| is_filled(*number));
                let numbers: Vec<u64> = together.collect();
                let filled = numbers.iter().map(|number| Filled {
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

    /// Lets copiers know where the chunk with this number begins.
    fn publish(&self, number: u64, shared: &Shared) -> Result<()> {
        let place = (number % self.chunks.len() as u64) as usize;
        let start = self.chunks[place].staging.start()?;
        shared.starts[place].store(start.as_ptr(), Ordering::Relaxed);
        Ok(())
    }

    fn notice_fetched(&mut self, shared: &Shared) -> Result<()> {
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

/// What the worker and the copiers tell each other.
struct Shared {
    /// Where each place's chunk begins.
    starts: Vec<AtomicPtr<u8>>,
    /// One more than the number of the chunk that each place holds.
    holds: Vec<AtomicU64>,
    fetched: AtomicU64,
    is_stopped: AtomicBool,
}

impl Shared {
    /// Fills a chunk when its place is free. Returns whether it did.
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
        // SAFETY: the chunk has room for the part and is the host's: the device has fetched what was there, and each number
        // is filled by one thread. Its start was published before the count that this thread has seen.
        unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), start, part.len()) };
        self.holds[place].store(number + 1, Ordering::Release);
        true
    }
}

/// Waits a little, and lets others run when it was often.
fn rest(spins: &mut u32) {
    *spins += 1;
    if *spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
}

/// How many threads copy so many bytes.
pub fn copiers(bytes: usize, copiers_max: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (bytes / SHARE_BYTES_MIN).min(cores / 2).min(copiers_max).max(1)
}
