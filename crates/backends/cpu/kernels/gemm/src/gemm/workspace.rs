//! Memory that matrix products reuse from call to call.

use std::ptr::NonNull;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use panoply_core::buffer::HOST_ALIGN_BYTES;

use crate::memory::Pages;

/// Pack buffers and scratch tiles. Each engine owns one workspace; once warm, a product of a size
/// seen before allocates nothing.
pub struct Workspace {
    pub(super) pack_bytes_max: usize,
    pub(super) packed_a: AlignedBuffer,
    pub(super) packed_b: AlignedBuffer,
    pub(super) scratch: AlignedBuffer,
    pub(super) partial_sums: AlignedBuffer,
    pub(super) stages: Vec<super::driver::Stage>,
    pub(super) progress: super::by_depth::Progress,
    pub(super) scratch_taken: Vec<AtomicBool>,
    /// One workspace for each thread that multiplies small matrices of a batch by itself.
    pub(super) members: Vec<Mutex<Workspace>>,
}

/// The workspace could not grow; the output is unspecified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Requested bytes of the buffer.
    pub asked_bytes: usize,
}

/// Default for the bytes of one operand that are packed at a time.
const PACK_BYTES_MAX: usize = 24 << 20;

impl Default for Workspace {
    fn default() -> Workspace {
        Workspace::with_pack_bytes_max(PACK_BYTES_MAX)
    }
}

impl Workspace {
    /// An empty workspace.
    pub fn new() -> Workspace {
        Workspace::default()
    }

    /// A workspace that packs about `pack_bytes_max` bytes of each operand at a time (at least one
    /// panel), with two buffers for each operand.
    pub fn with_pack_bytes_max(pack_bytes_max: usize) -> Workspace {
        Workspace {
            pack_bytes_max,
            packed_a: AlignedBuffer::default(),
            packed_b: AlignedBuffer::default(),
            scratch: AlignedBuffer::default(),
            partial_sums: AlignedBuffer::default(),
            stages: Vec::new(),
            progress: super::by_depth::Progress::default(),
            scratch_taken: Vec::new(),
            members: Vec::new(),
        }
    }

    /// Bytes currently held.
    pub fn held_bytes(&self) -> usize {
        let members: usize = self.members.iter().map(|member| lock(member).held_bytes()).sum();
        let own = [&self.packed_a, &self.packed_b, &self.scratch, &self.partial_sums];
        own.into_iter().map(AlignedBuffer::held_bytes).sum::<usize>() + members
    }

    /// Frees all memory.
    pub fn release(&mut self) {
        *self = Workspace::with_pack_bytes_max(self.pack_bytes_max);
    }

    pub(super) fn reserve_members(&mut self, count: usize) {
        if self.members.len() < count {
            self.members.resize_with(count, Default::default);
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Scratch tiles, one for each thread of a job. A task claims one while it runs.
pub(super) struct ScratchPool<'a> {
    pub(super) taken: &'a [AtomicBool],
}

impl ScratchPool<'_> {
    /// The index of a free tile. There are as many tiles as threads, so one is always free.
    pub(super) fn claim(&self) -> usize {
        loop {
            for (index, taken) in self.taken.iter().enumerate() {
                if !taken.load(Ordering::Relaxed) && !taken.swap(true, Ordering::Acquire) {
                    return index;
                }
            }
            std::hint::spin_loop();
        }
    }

    pub(super) fn give_back(&self, index: usize) {
        self.taken[index].store(false, Ordering::Release);
    }
}

/// Initialised memory that is aligned to a cache line.
#[derive(Default)]
pub(super) struct AlignedBuffer {
    pages: Option<Pages>,
}

impl AlignedBuffer {
    /// `len` elements with unspecified (but initialised) values. Grows if necessary.
    pub(super) fn get<T: bytemuck::Pod>(&mut self, len: usize) -> Result<&mut [T], OutOfMemory> {
        self.get_from(len, Pages::zeroed)
    }

    /// As [`AlignedBuffer::get`], in memory for long-lived contents.
    pub(super) fn get_kept<T: bytemuck::Pod>(&mut self, len: usize) -> Result<&mut [T], OutOfMemory> {
        self.get_from(len, Pages::kept)
    }

    fn get_from<T: bytemuck::Pod>(
        &mut self,
        len: usize,
        source: fn(usize) -> Option<Pages>,
    ) -> Result<&mut [T], OutOfMemory> {
        const { assert!(align_of::<T>() <= HOST_ALIGN_BYTES) };
        let bytes = len.saturating_mul(size_of::<T>());
        if self.held_bytes() < bytes {
            // The old contents are not needed: freeing first keeps the peak low.
            self.pages = None;
            self.pages = Some(source(bytes).ok_or(OutOfMemory { asked_bytes: bytes })?);
        }
        let start = self.pages.as_ref().map_or(NonNull::dangling(), |pages| pages.start().cast());
        // SAFETY: the block holds at least `bytes` initialised bytes (possibly none if `bytes` is
        // zero), any of which are a valid `T`. It starts on a cache line, and is borrowed mutably
        // as long as the slice.
        Ok(unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) })
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.pages.as_ref().map_or(0, Pages::bytes)
    }
}
