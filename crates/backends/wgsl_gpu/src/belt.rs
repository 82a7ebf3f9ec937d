//! The belt for small uploads. Bytes are copied into chunks of staging memory, and the copy from
//! there into a block is recorded like any other command, so that it keeps its order among the ops.
//! After the submission a chunk comes back.

use std::collections::VecDeque;
use std::rc::Rc;

use panoply_core::Result;

use crate::driver::{BufferOffset, Commands, Direction, Driver, Fence, Staging};

/// The smallest chunk of the belt.
const CHUNK_BYTES_MIN: u64 = 256 << 10;
/// The most bytes that the belt keeps for reuse, if the caller sets no smaller limit; more are
/// freed when they come back.
const BELT_BYTES_MAX: u64 = 256 << 20;
/// Alignment of data in a chunk.
const STEP_BYTES: u64 = 16;

/// Free chunks, chunks that are being filled, and chunks that the device reads.
pub struct StagingBelt<D: Driver> {
    driver: Rc<D>,
    free: Vec<D::Staging>,
    filling: Vec<Chunk<D>>,
    away: VecDeque<(D::Staging, Option<Fence>)>,
    kept_bytes_max: u64,
}

/// A chunk that is being filled.
struct Chunk<D: Driver> {
    staging: D::Staging,
    used: u64,
}

impl<D: Driver> StagingBelt<D> {
    pub(crate) fn new(driver: &Rc<D>, kept_bytes_max: Option<usize>) -> StagingBelt<D> {
        let kept_bytes_max = kept_bytes_max.map_or(BELT_BYTES_MAX, |bytes| BELT_BYTES_MAX.min(bytes as u64));
        let (free, filling, away) = (Vec::new(), Vec::new(), VecDeque::new());
        StagingBelt { driver: Rc::clone(driver), free, filling, away, kept_bytes_max }
    }

    /// Copies bytes into a chunk and records the copy into `target`.
    pub(crate) fn upload(
        &mut self,
        commands: &mut D::Commands,
        target: BufferOffset<'_, D::Buffer>,
        bytes: &[u8],
    ) -> Result<()> {
        let (chunk, offset) = self.put(bytes)?;
        let size = (bytes.len() as u64).next_multiple_of(STEP_BYTES);
        commands.upload(BufferOffset { buffer: self.chunk(chunk), offset }, target, size);
        Ok(())
    }

    /// Copies bytes into a chunk. Returns the chunk's number and the offset of the bytes in it.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<(usize, u64)> {
        let size = (bytes.len() as u64).next_multiple_of(STEP_BYTES);
        let number = self.room_for(size)?;
        let chunk = &mut self.filling[number];
        let (start, offset) = (chunk.staging.start()?, chunk.used);
        // SAFETY: the host owns the chunk, which has room for the bytes after those that were
        // copied before.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start.as_ptr().add(offset as usize), bytes.len()) };
        chunk.used += size;
        Ok((number, offset))
    }

    /// A chunk that is being filled.
    pub(crate) fn chunk(&self, number: usize) -> &D::Staging {
        &self.filling[number].staging
    }

    /// Ends the filling. Call before the commands are submitted.
    pub(crate) fn close(&mut self) {
        self.filling.iter().for_each(|chunk| chunk.staging.hand_over());
    }

    /// Asks for the chunks back. Call after the submission, if there was one.
    pub(crate) fn recall(&mut self, fence: Option<Fence>) {
        for Chunk { staging, .. } in self.filling.drain(..) {
            staging.call_back();
            self.away.push_back((staging, fence));
        }
    }

    /// The number of a chunk that is being filled and has room for `size` bytes.
    fn room_for(&mut self, size: u64) -> Result<usize> {
        if let Some(place) = self.filling.iter().position(|chunk| chunk.staging.len_bytes() - chunk.used >= size) {
            return Ok(place);
        }
        self.collect();
        // Takes the smallest chunk that suffices: most uploads are small, and large chunks must
        // stay free for large ones.
        let suitable = self.free.iter().enumerate().filter(|(_, staging)| staging.len_bytes() >= size);
        let staging = match suitable.min_by_key(|(_, staging)| staging.len_bytes()) {
            Some((place, _)) => self.free.swap_remove(place),
            None => self.driver.staging(size.next_power_of_two().max(CHUNK_BYTES_MIN), Direction::Up)?,
        };
        self.filling.push(Chunk { staging, used: 0 });
        Ok(self.filling.len() - 1)
    }

    /// Takes back chunks that the device has finished with.
    fn collect(&mut self) {
        let is_back = |(staging, fence): &(D::Staging, Option<Fence>)| {
            fence.is_none_or(|fence| self.driver.is_past(fence)) && staging.is_back()
        };
        while self.away.front().is_some_and(is_back) {
            // A chunk that cannot be mapped again is not reused.
            self.free.extend(self.away.pop_front().map(|(staging, _)| staging).filter(|chunk| chunk.start().is_ok()));
        }
        self.keep(self.kept_bytes_max);
    }

    /// Frees free chunks, until at most this many bytes are left.
    fn keep(&mut self, bytes_max: u64) {
        let mut kept = 0;
        self.free.retain(|staging| {
            kept += staging.len_bytes();
            kept <= bytes_max
        });
    }

    /// Frees chunks that are not in use, until at most this many bytes are left.
    pub(crate) fn trim(&mut self, keep_bytes: u64) {
        self.collect();
        self.keep(keep_bytes);
    }
}
