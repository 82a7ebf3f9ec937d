//! Kernels, fills and copies on the compute stream of the current lane.

use panoply_core::{Error, Result};
use panoply_kernels::c::Kernel;

use super::{Context, Mode};
use crate::arguments::Arguments;
use crate::driver::{Address, GRID_MAX, Launch, Stream};

/// Number of counters that [`Context::counters`] provides.
pub const COUNTERS: usize = 4096;
/// Approximate number of threads of a multiprocessor.
const MULTIPROCESSOR_THREADS: usize = 2048;
/// Blocks of a grid-stride loop per block that runs at once, so that the last blocks end together.
const WAVES: usize = 4;

impl Context {
    /// Queues a kernel. The arguments must match the kernel's declaration; addresses must come from
    /// this context. Sizes that exceed the kernel's or the grid's counters are refused.
    pub fn launch(&mut self, kernel: &Kernel, launch: Launch, arguments: &mut Arguments) -> Result<()> {
        arguments.check()?;
        check_grid(&launch)?;
        if self.mode == Mode::Request {
            self.kernels.request(kernel);
            return Ok(());
        }
        let function = self.kernels.get(&*self.driver, kernel)?;
        if self.mode == Mode::Load {
            return Ok(());
        }
        self.launches += 1;
        // SAFETY: ops build the arguments for the kernel that they name, from addresses that this
        // context allocated and keeps until the op has finished.
        unsafe { self.driver.launch(function, &launch, arguments, Stream::Compute) }
    }

    /// Fills memory with one byte.
    pub fn fill(&mut self, target: Address, byte: u8, bytes: usize) -> Result<()> {
        if bytes == 0 || self.is_rehearsal() { Ok(()) } else { self.driver.fill(target, byte, bytes, Stream::Compute) }
    }

    /// Copies within the device.
    pub fn copy(&mut self, target: Address, source: Address, bytes: usize) -> Result<()> {
        if bytes == 0 || self.is_rehearsal() {
            Ok(())
        } else {
            self.driver.copy(target, source, bytes, Stream::Compute)
        }
    }

    /// A launch for a grid-stride loop over `elements` elements, `per_thread` for each thread, with
    /// at most as many blocks as keep the device busy.
    pub(crate) fn blocks(&self, elements: usize, threads: usize, per_thread: usize) -> Launch {
        let wanted = elements.div_ceil(threads * per_thread).max(1);
        let most = self.multiprocessors() * (MULTIPROCESSOR_THREADS / threads.max(1)).max(1) * WAVES;
        Launch::new(wanted.min(most), threads)
    }

    /// `u32` counters that are zero when a kernel starts, and that it must leave at zero. With them
    /// the last of several blocks to finish detects that it is the last.
    pub(crate) fn counters(&mut self) -> Result<Address> {
        let lane = self.lane();
        if let Some(block) = &self.counters[lane] {
            return Ok(block.block.0);
        }
        let block = self.memory.scratch(COUNTERS * 4)?;
        let address = block.block.0;
        self.lasting(|context| context.fill(address, 0, COUNTERS * 4))?;
        self.counters[lane] = Some(block);
        Ok(address)
    }

    /// An error word for the kernels of the current op: zero, unless one of them reports an invalid
    /// input. The op then ends with the error that `describe` makes of the word and of `detail`.
    pub(crate) fn complaint(&mut self, describe: fn(u64, u64) -> Error, detail: u64) -> Result<Address> {
        if let Some(address) = self.words.as_mut().and_then(|words| words.next(describe, detail)) {
            return Ok(address);
        }
        let (complaint, address) = self.complaints.lend(describe, detail)?;
        self.queued.complaints.push(complaint);
        Ok(address)
    }

    /// Like `complaint`, but a kernel must confirm success by writing all ones:
    /// if no kernel writes, the op ends with a device fault.
    pub(crate) fn approval(&mut self, describe: fn(u64, u64) -> Error, detail: u64) -> Result<Address> {
        let (complaint, address) = self.complaints.lend(describe, detail)?;
        self.queued.complaints.push(complaint.approval());
        Ok(address)
    }
}

fn check_grid(launch: &Launch) -> Result<()> {
    match launch.blocks.iter().zip(GRID_MAX).find(|(blocks, most)| **blocks > *most) {
        None => Ok(()),
        Some((got, limit)) => Err(Error::OutOfBounds { what: "blocks of a launch", limit, got: *got }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_that_no_device_has_are_refused() {
        assert_eq!(check_grid(&Launch::grid(GRID_MAX, 256)), Ok(()));
        for axis in 0..3 {
            let mut blocks = [1; 3];
            blocks[axis] = GRID_MAX[axis] + 1;
            let refused = Error::OutOfBounds { what: "blocks of a launch", limit: GRID_MAX[axis], got: blocks[axis] };
            assert_eq!(check_grid(&Launch::grid(blocks, 256)), Err(refused));
        }
        // A grid that would wrap to a small 32-bit number is refused too.
        assert!(check_grid(&Launch::new((1 << 32) + 1, 256)).is_err());
    }
}
