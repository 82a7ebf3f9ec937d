//! The way into device memory and out of it.
//!
//! Uploads go through a belt of mapped chunks: bytes are copied into a chunk, and the copy from there into the block is
//! recorded like any other command, so that it happens in its place among the ops. After the submission a chunk is mapped
//! again and comes back. Downloads are copied into a readable block, which is mapped when the submission is done.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use panoply_core::lease::Lease;
use panoply_core::pool::{Pool, Pooled, Source};
use panoply_core::{DeviceId, Error, HostBuffer, HostBufferMut, Result};

use crate::fault::{Faults, checked};
use crate::memory::{Block, Blocks};

/// The smallest chunk of the belt.
const CHUNK_BYTES_MIN: u64 = 256 << 10;
/// Larger uploads are cut into pieces of this size.
pub(crate) const PIECE_BYTES_MAX: usize = 64 << 20;
/// What the belt keeps for reuse; the rest is freed as it comes back.
const BELT_BYTES_MAX: u64 = 256 << 20;
/// What the pool of readable blocks keeps for reuse, and so does that of the host memory behind them.
const READABLE_BYTES_MAX: usize = 256 << 20;
/// The most threads that copy at once.
const THREADS_MAX: usize = 8;
/// Downloads of at least this size go to memory that is used again.
const POOLED_BYTES_MIN: usize = 64 << 10;
/// The least that is worth a thread.
const SHARE_BYTES_MIN: usize = 2 << 20;
/// Chunks are filled in steps of this.
const STEP_BYTES: u64 = 16;

/// A mapped buffer that is being filled.
struct Chunk {
    buffer: wgpu::Buffer,
    used: u64,
}

/// The belt of uploads.
pub(crate) struct Belt {
    device: wgpu::Device,
    faults: Arc<Faults>,
    free: Vec<wgpu::Buffer>,
    filling: Vec<Chunk>,
    returned: Arc<Mutex<Vec<wgpu::Buffer>>>,
}

impl Belt {
    pub(crate) fn new(device: &wgpu::Device, faults: &Arc<Faults>) -> Belt {
        Belt {
            device: device.clone(),
            faults: Arc::clone(faults),
            free: Vec::new(),
            filling: Vec::new(),
            returned: Arc::new(Mutex::new(Vec::new())),
        }
    }

    /// Copies bytes into a chunk and records the copy into `target`.
    pub(crate) fn upload(
        &mut self,
        encoder: &mut wgpu::CommandEncoder,
        target: &wgpu::Buffer,
        offset: u64,
        bytes: &[u8],
    ) -> Result<()> {
        let size = (bytes.len() as u64).next_multiple_of(STEP_BYTES);
        let place = self.room_for(size)?;
        let chunk = &mut self.filling[place];
        let start = chunk.used;
        let unmapped = |error: wgpu::MapRangeError| self.faults.translate(wgpu_internal(&error), size);
        let mut view = chunk.buffer.get_mapped_range_mut(start..start + size).map_err(unmapped)?;
        fill(view.slice(..bytes.len()), bytes);
        drop(view);
        encoder.copy_buffer_to_buffer(&chunk.buffer, start, target, offset, size);
        chunk.used += size;
        Ok(())
    }

    /// Ends the filling; to be called before the commands are submitted.
    pub(crate) fn close(&mut self) -> Vec<wgpu::Buffer> {
        let closed = self.filling.drain(..).map(|chunk| chunk.buffer);
        closed.inspect(wgpu::Buffer::unmap).collect()
    }

    /// Asks for the chunks of [`Belt::close`] to be mapped again; to be called after the submission.
    pub(crate) fn recall(&mut self, closed: Vec<wgpu::Buffer>) {
        for buffer in closed {
            let (returned, back) = (Arc::clone(&self.returned), buffer.clone());
            buffer.map_async(wgpu::MapMode::Write, .., move |mapped| {
                if let (Ok(()), Ok(mut returned)) = (mapped, returned.lock()) {
                    returned.push(back);
                }
            });
        }
    }

    /// The number of a chunk in use that has so much room.
    fn room_for(&mut self, size: u64) -> Result<usize> {
        if let Some(place) = self.filling.iter().position(|chunk| chunk.buffer.size() - chunk.used >= size) {
            return Ok(place);
        }
        self.collect();
        // The smallest that suffices: most are small, and large ones must not be spent on them.
        let suitable = self.free.iter().enumerate().filter(|(_, buffer)| buffer.size() >= size);
        let buffer = match suitable.min_by_key(|(_, buffer)| buffer.size()) {
            Some((place, _)) => self.free.swap_remove(place),
            None => self.make(size.max(CHUNK_BYTES_MIN))?,
        };
        self.filling.push(Chunk { buffer, used: 0 });
        Ok(self.filling.len() - 1)
    }

    fn make(&self, size: u64) -> Result<wgpu::Buffer> {
        let usage = wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC;
        let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: true };
        checked(&self.device, &self.faults, size, || self.device.create_buffer(&descriptor))
    }

    fn collect(&mut self) {
        if let Ok(mut returned) = self.returned.lock() {
            self.free.append(&mut returned);
        }
        let mut kept = 0;
        self.free.retain(|buffer| {
            kept += buffer.size();
            kept <= BELT_BYTES_MAX
        });
    }
}

/// Host memory for large downloads, used again and again: memory that was used before costs no page faults.
pub(crate) struct HostWords;

impl Source for HostWords {
    type Block = Vec<u64>;

    fn allocate(&mut self, bytes: usize) -> Result<Vec<u64>> {
        let (mut words, count) = (Vec::new(), bytes.div_ceil(8));
        let out_of_memory = |_| {
            let place = "the host".to_owned();
            Error::OutOfMemory { place, asked: bytes as u64, free: 0, largest: 0 }
        };
        words.try_reserve_exact(count).map_err(out_of_memory)?;
        words.resize(count, 0);
        Ok(words)
    }
}

/// A pool of them.
pub(crate) fn host_pool() -> Pool<HostWords> {
    Pool::new(HostWords, READABLE_BYTES_MAX)
}

/// Downloaded bytes, whose memory goes back with the last view of them.
struct Filled {
    words: Lease<Pooled<Vec<u64>>>,
    len_bytes: usize,
}

impl AsRef<[u8]> for Filled {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words.block)[..self.len_bytes]
    }
}

/// Copies bytes, many of them by several threads.
fn copy(target: &mut [u8], source: &[u8]) {
    let share = share_bytes(target.len());
    if share >= target.len() {
        return target.copy_from_slice(source);
    }
    std::thread::scope(|scope| {
        for (target, source) in target.chunks_mut(share).zip(source.chunks(share)) {
            scope.spawn(move || target.copy_from_slice(source));
        }
    });
}

/// How many of so many bytes one thread copies.
fn share_bytes(bytes: usize) -> usize {
    if bytes < 2 * SHARE_BYTES_MIN {
        return bytes;
    }
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(THREADS_MAX);
    bytes.div_ceil(threads).max(SHARE_BYTES_MIN)
}

/// A part of mapped memory that one thread fills.
struct Share<'a>(wgpu::WriteOnly<'a, [u8]>);

// SAFETY: like a `&mut [u8]`, it is the only way to memory that no other thread holds.
unsafe impl Send for Share<'_> {}

impl Share<'_> {
    fn copy_from_slice(mut self, bytes: &[u8]) {
        self.0.copy_from_slice(bytes);
    }
}

/// Copies bytes into mapped memory, which one core alone does not fill as fast as the device empties it.
fn fill(mut target: wgpu::WriteOnly<'_, [u8]>, bytes: &[u8]) {
    let share = share_bytes(bytes.len());
    if share >= bytes.len() {
        return target.copy_from_slice(bytes);
    }
    std::thread::scope(|scope| {
        for part in bytes.chunks(share) {
            let (own, others) = target.split_at(part.len());
            target = others;
            let own = Share(own);
            scope.spawn(move || own.copy_from_slice(part));
        }
    });
}

fn wgpu_internal(error: &wgpu::MapRangeError) -> wgpu::Error {
    let description = error.to_string();
    wgpu::Error::Internal { source: description.clone().into(), description }
}

/// Bytes on their way to the host.
pub(crate) struct Download {
    block: Lease<Pooled<Block>>,
    len_bytes: usize,
    state: Arc<AtomicU8>,
}

const PENDING: u8 = 0;
const MAPPED: u8 = 1;
const FAILED: u8 = 2;

impl Download {
    /// Asks for the bytes; to be called after the submission that copies them.
    pub(crate) fn ask(&self) {
        let state = Arc::clone(&self.state);
        self.block.block.buffer.map_async(wgpu::MapMode::Read, .., move |mapped| {
            state.store(if mapped.is_ok() { MAPPED } else { FAILED }, Ordering::Release);
        });
    }

    /// Whether there is anything more to wait for.
    pub(crate) fn is_over(&self) -> bool {
        self.state.load(Ordering::Acquire) != PENDING
    }

    /// The bytes, once, in memory that is used again where they are many.
    pub(crate) fn take(self, device: DeviceId, pool: &mut Pool<HostWords>) -> Result<HostBuffer> {
        let failed = |reason: &str| Error::DeviceFault { device, reason: reason.to_owned() };
        if self.state.load(Ordering::Acquire) != MAPPED {
            return Err(failed("a result could not be mapped for reading"));
        }
        let buffer = &self.block.block.buffer;
        let host = {
            let view = buffer.get_mapped_range(..).map_err(|error| failed(&error.to_string()))?;
            let source = &view[..self.len_bytes];
            if self.len_bytes < POOLED_BYTES_MIN {
                let mut host = HostBufferMut::zeroed(self.len_bytes)?;
                host.bytes_mut().copy_from_slice(source);
                host.freeze()
            } else {
                let mut words = pool.lend(self.len_bytes)?;
                copy(&mut bytemuck::cast_slice_mut(&mut words.block)[..self.len_bytes], source);
                HostBuffer::from_owner(Filled { words, len_bytes: self.len_bytes })
            }
        };
        buffer.unmap();
        Ok(host)
    }
}

/// The supply of readable blocks.
pub(crate) struct Readback {
    pool: Pool<Blocks>,
}

impl Readback {
    pub(crate) fn new(id: DeviceId, device: &wgpu::Device, faults: &Arc<Faults>) -> Readback {
        let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let blocks = Blocks { id, device: device.clone(), faults: Arc::clone(faults), usage };
        Readback { pool: Pool::new(blocks, READABLE_BYTES_MAX) }
    }

    /// Records a copy of so many bytes from `offset` on.
    pub(crate) fn download(
        &mut self,
        encoder: &mut wgpu::CommandEncoder,
        source: &wgpu::Buffer,
        offset: u64,
        len_bytes: usize,
    ) -> Result<Download> {
        let block = self.pool.lend(len_bytes.next_multiple_of(4))?;
        let size = (len_bytes as u64).next_multiple_of(4);
        encoder.copy_buffer_to_buffer(source, offset, &block.block.buffer, 0, size);
        Ok(Download { block, len_bytes, state: Arc::new(AtomicU8::new(PENDING)) })
    }
}
