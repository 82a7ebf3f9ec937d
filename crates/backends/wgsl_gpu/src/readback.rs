//! Downloads from device memory. They are copied into staging memory, which a tensor then keeps if
//! it may. Otherwise, and if they are small, the bytes are copied once more.

use std::rc::Rc;
use std::sync::Arc;

use panoply_core::lease::Lease;
use panoply_core::pool::{BlockSource, Pool, PooledBlock};
use panoply_core::{HostBuffer, HostBufferMut, MemoryStats, Result};

use crate::driver::{BufferOffset, Commands, Direction, Driver, Staging};
use crate::ring::copiers;

/// The most staging memory of downloads that is kept for reuse, if the caller sets no limit.
const STAGING_BYTES_MAX: usize = 4 << 30;
/// The same for host memory that downloads are copied to.
const HOST_BYTES_MAX: usize = 1 << 30;
/// Downloads of at least this size go to memory that is reused.
const POOLED_BYTES_MIN: usize = 64 << 10;
/// The most threads that copy at once.
const COPIERS_MAX: usize = 8;

/// The memory pools for downloads.
pub struct Readback<D: Driver> {
    staging: Pool<Stagings<D>>,
    host: Pool<HostMemory>,
}

/// Bytes on their way to the host.
pub struct Download<D: Driver> {
    staging: Lease<PooledBlock<D::Staging>>,
    len_bytes: usize,
}

impl<D: Driver> Readback<D> {
    /// Pools that keep at most this much memory for reuse.
    pub(crate) fn new(driver: &Rc<D>, kept_bytes_max: Option<usize>) -> Readback<D> {
        let kept_bytes_max = kept_bytes_max.unwrap_or(STAGING_BYTES_MAX);
        let staging = Pool::new(Stagings { driver: Rc::clone(driver) }, kept_bytes_max);
        Readback { staging, host: Pool::new(HostMemory, kept_bytes_max.min(HOST_BYTES_MAX)) }
    }

    /// Frees cached memory, until at most `keep_bytes` are cached in each pool.
    pub(crate) fn trim(&mut self, keep_bytes: usize) {
        self.staging.trim(keep_bytes);
        self.host.trim(keep_bytes);
    }

    /// The figures of both pools.
    pub(crate) fn stats(&mut self) -> MemoryStats {
        let (staging, host) = (self.staging.stats(), self.host.stats());
        MemoryStats {
            lent_bytes: staging.lent_bytes + host.lent_bytes,
            cached_bytes: staging.cached_bytes + host.cached_bytes,
            peak_bytes: staging.peak_bytes + host.peak_bytes,
            hits: staging.hits + host.hits,
            misses: staging.misses + host.misses,
        }
    }

    /// Records a copy of `len_bytes` bytes.
    pub(crate) fn download(
        &mut self,
        commands: &mut D::Commands,
        source: BufferOffset<'_, D::Buffer>,
        len_bytes: usize,
    ) -> Result<Download<D>> {
        let download = self.prepare(len_bytes)?;
        let size = (len_bytes as u64).next_multiple_of(4);
        commands.download(source, BufferOffset { buffer: download.staging(), offset: 0 }, size);
        Ok(download)
    }

    /// Memory for `len_bytes` bytes, handed over to the device.
    pub(crate) fn prepare(&mut self, len_bytes: usize) -> Result<Download<D>> {
        let staging = self.staging.lend(len_bytes.next_multiple_of(4))?;
        staging.block.hand_over();
        Ok(Download { staging, len_bytes })
    }

    /// The bytes of a finished download.
    pub(crate) fn take(&mut self, download: Download<D>) -> Result<HostBuffer> {
        let Download { staging, len_bytes } = download;
        let start = staging.block.start()?;
        if len_bytes >= POOLED_BYTES_MIN && staging.block.is_kept() {
            // SAFETY: the host owns the memory, which the device's copy has initialised up to here
            // and which is aligned to a page. No one else uses it until the lease returns with the
            // last view of it.
            return Ok(unsafe { HostBufferMut::from_raw(start, len_bytes, Arc::new(staging)) }.freeze());
        }
        // SAFETY: the host owns the memory, and the device has written `len_bytes` bytes of it; the
        // lease outlives the slice.
        let source = unsafe { std::slice::from_raw_parts(start.as_ptr(), len_bytes) };
        if len_bytes < POOLED_BYTES_MIN {
            let mut host = HostBufferMut::zeroed(len_bytes)?;
            host.bytes_mut().copy_from_slice(source);
            return Ok(host.freeze());
        }
        let mut lease = self.host.lend(len_bytes)?;
        copy(&mut lease.block.bytes_mut()[..len_bytes], source);
        Ok(HostBuffer::from_owner(DownloadedBytes { lease, len_bytes }))
    }
}

impl<D: Driver> Download<D> {
    /// The memory that receives the bytes.
    pub(crate) fn staging(&self) -> &D::Staging {
        &self.staging.block
    }

    /// The download with fewer bytes than its memory holds.
    pub(crate) fn shortened(self, len_bytes: usize) -> Download<D> {
        Download { len_bytes, ..self }
    }

    /// Asks for the bytes. Call after the submission that copies them.
    pub(crate) fn ask(&self) {
        self.staging.block.call_back();
    }

    /// Whether the download has ended, with or without an error.
    pub(crate) fn is_over(&self) -> bool {
        self.staging.block.is_back()
    }
}

/// Makes staging memory for downloads.
struct Stagings<D: Driver> {
    driver: Rc<D>,
}

impl<D: Driver> BlockSource for Stagings<D> {
    type Block = D::Staging;

    fn allocate(&mut self, bytes: usize) -> Result<D::Staging> {
        self.driver.staging(bytes as u64, Direction::Down)
    }
}

/// Host memory for large downloads, which is reused: memory that was used before costs no page
/// faults.
struct HostMemory;

impl BlockSource for HostMemory {
    type Block = HostBufferMut;

    fn allocate(&mut self, bytes: usize) -> Result<HostBufferMut> {
        HostBufferMut::zeroed(bytes)
    }
}

/// Downloaded bytes, whose memory goes back with the last view of them.
struct DownloadedBytes {
    lease: Lease<PooledBlock<HostBufferMut>>,
    len_bytes: usize,
}

impl AsRef<[u8]> for DownloadedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.lease.block.bytes()[..self.len_bytes]
    }
}

/// Copies bytes, with several threads if there are many.
fn copy(target: &mut [u8], source: &[u8]) {
    let copiers = copiers(target.len(), COPIERS_MAX);
    if copiers == 1 {
        return target.copy_from_slice(source);
    }
    let share = target.len().div_ceil(copiers);
    std::thread::scope(|scope| {
        for (target, source) in target.chunks_mut(share).zip(source.chunks(share)) {
            scope.spawn(move || target.copy_from_slice(source));
        }
    });
}
