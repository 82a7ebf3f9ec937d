//! The blocks of one segment's rows in the memory of devices, and which rows are uploaded next.
//!
//! A segment's copy consists of blocks of consecutive rows: one for each device, or more if the
//! segment has grown since. Rows without a block are searched on the host.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use panoply_core::op::compute::Transfer;
use panoply_core::{DeviceId, Tensor};
use panoply_runtime::{RunOptions, Runtime};

use super::bits::slice_bits;

/// Share (1/8) for two limits. Rows beyond a growing segment's blocks are uploaded when they reach
/// this share of the rows already offered. Blocks beyond one per device are joined when their rows
/// reach this share of all rows.
const REST_SHARE_MAX: u32 = 8;
/// Minimum size of a new block, in bytes.
pub(super) const BLOCK_BYTES_MIN: usize = 1 << 20;
/// Number of filters whose bits a block keeps on its device.
const MASKS_MAX: usize = 4;

/// The device blocks of a segment.
#[derive(Default)]
pub(crate) struct Resident {
    pub(super) state: RwLock<Arc<ResidentBlocks>>,
    /// Held during an upload.
    pub(super) uploading: Mutex<()>,
}

/// The device blocks of a segment at some point in time.
#[derive(Clone, Default)]
pub(crate) struct ResidentBlocks {
    /// Ordered by their rows.
    pub(crate) blocks: Vec<Arc<ResidentRows>>,
    /// Number of rows, from the first on, that were offered to devices.
    pub(super) offered: u32,
}

/// Consecutive rows in a device's memory.
pub(crate) struct ResidentRows {
    pub(crate) device: DeviceId,
    pub(crate) first_row: u32,
    pub(crate) count: u32,
    pub(crate) rows: Tensor,
    pub(crate) norms: Option<Tensor>,
    /// The most recently used filters, and their copies on the device.
    masks: Mutex<Vec<(Arc<[u32]>, Tensor)>>,
}

impl ResidentRows {
    /// The block of these rows of a segment.
    pub(super) fn new(device: DeviceId, range: Range<u32>, rows: Tensor, norms: Option<Tensor>) -> ResidentRows {
        let (first_row, count) = (range.start, range.end - range.start);
        ResidentRows { device, first_row, count, rows, norms, masks: Mutex::default() }
    }

    /// The bits of the block's rows on the device, taken from the bits of the segment.
    pub(crate) fn mask(&self, runtime: &Runtime, words: &Arc<[u32]>) -> panoply_core::Result<Tensor> {
        let mut masks = self.masks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, mask)) = masks.iter().find(|(other, _)| Arc::ptr_eq(other, words)) {
            return Ok(mask.clone());
        }
        let own = slice_bits(words, self.first_row, self.count);
        let shape = [own.len()];
        let options = RunOptions { device: Some(self.device), ..RunOptions::default() };
        let copy = Transfer::to_device(&Tensor::from_vec(own, shape)?, self.device);
        let mask = runtime.run_with(copy, options).wait()?;
        if masks.len() >= MASKS_MAX {
            masks.remove(0);
        }
        masks.push((Arc::clone(words), mask.clone()));
        Ok(mask)
    }
}

impl Resident {
    /// The present blocks.
    pub(crate) fn state(&self) -> Arc<ResidentBlocks> {
        Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Removes a block whose device has failed. All rows are offered again by the next upload.
    pub(crate) fn forget(&self, lost: &Arc<ResidentRows>) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let blocks = state.blocks.iter().filter(|block| !Arc::ptr_eq(block, lost)).cloned().collect();
        *state = Arc::new(ResidentBlocks { blocks, offered: 0 });
    }

    /// Removes the blocks of devices that should hold none. All rows are offered again by the next
    /// upload.
    pub(super) fn keep_on(&self, holds: &dyn Fn(DeviceId) -> bool) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let blocks = state.blocks.iter().filter(|block| holds(block.device)).cloned().collect();
        *state = Arc::new(ResidentBlocks { blocks, offered: 0 });
    }

    /// Replaces the blocks.
    pub(super) fn set(&self, state: ResidentBlocks) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
    }
}

/// The extent of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UploadExtent {
    /// While the collection changes: only segments that have grown much.
    Growing,
    /// When it has not changed for a while: all but small rests; many blocks are joined if that is
    /// cheap.
    Quiet,
    /// On request: everything, in as few blocks as there are devices.
    Whole,
}

impl ResidentBlocks {
    /// Number of rows that were offered and did not fit into a device's memory.
    pub(crate) fn spilled(&self) -> u32 {
        self.offered.saturating_sub(self.blocks.iter().map(|block| block.count).sum())
    }

    /// The rows to upload of a segment with `count` rows, up to its last row: the rows not yet
    /// offered, and the rows of blocks before them that are joined with them.
    pub(super) fn wanted(
        &self,
        count: u32,
        row_bytes: usize,
        devices: usize,
        effort: UploadExtent,
    ) -> Option<Range<u32>> {
        let rest = count.saturating_sub(self.offered);
        let scattered = self.blocks.len() > devices;
        if self.offered == 0 && count > 0 {
            return Some(0..count);
        }
        let beyond: u32 = self.blocks.iter().skip(devices).map(|block| block.count).sum();
        let large = rest as usize * row_bytes >= BLOCK_BYTES_MIN;
        let uploads = match effort {
            UploadExtent::Whole if scattered || rest > 0 || self.spilled() > 0 => return Some(0..count),
            UploadExtent::Quiet if scattered && beyond.saturating_add(rest) >= count / REST_SHARE_MAX => {
                return Some(0..count);
            }
            UploadExtent::Whole => false,
            UploadExtent::Quiet => large,
            UploadExtent::Growing => large && rest >= self.offered / REST_SHARE_MAX,
        };
        uploads.then(|| self.joined_with(self.offered..count))
    }

    /// The range of new rows, extended over the blocks before it that are less than twice as long
    /// as everything after them. Therefore a segment has few blocks, each much longer than the
    /// next, and a row is uploaded again only after as many rows have come after it.
    fn joined_with(&self, new: Range<u32>) -> Range<u32> {
        let mut start = new.start;
        for block in self.blocks.iter().rev() {
            if u64::from(block.count) >= 2 * u64::from(new.end - start) {
                break;
            }
            start = block.first_row;
        }
        start..new.end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use panoply_core::Api;

    /// The size of a test row: one kibibyte, so that a block has at least 1,024 rows.
    const ROW_BYTES: usize = 1024;

    fn block(range: Range<u32>) -> Arc<ResidentRows> {
        let device = DeviceId { api: Api::SIMULATED, index: 0 };
        let rows = Tensor::from_vec(vec![0.0_f32], [1, 1]).unwrap();
        Arc::new(ResidentRows::new(device, range, rows, None))
    }

    /// Performs the wanted upload, and returns the number of rows that it uploads.
    fn step(state: &mut ResidentBlocks, count: u32, effort: UploadExtent) -> u64 {
        let Some(range) = state.wanted(count, ROW_BYTES, 1, effort) else { return 0 };
        state.blocks.retain(|block| block.first_row < range.start);
        state.blocks.push(block(range.clone()));
        state.offered = range.end;
        let covered: u32 = state.blocks.iter().map(|block| block.count).sum();
        assert_eq!((covered, range.end), (count, count), "every row is in one block");
        range.len() as u64
    }

    #[test]
    fn a_few_new_rows_upload_nothing() {
        let mut state = ResidentBlocks::default();
        assert_eq!(step(&mut state, 1_000_000, UploadExtent::Growing), 1_000_000);
        for effort in [UploadExtent::Growing, UploadExtent::Quiet] {
            assert_eq!(state.wanted(1_000_001, ROW_BYTES, 1, effort), None);
            assert_eq!(state.wanted(1_001_000, ROW_BYTES, 1, effort), None);
        }
        // More rows become a block of their own; `Whole` puts everything into one block.
        assert_eq!(state.wanted(1_002_000, ROW_BYTES, 1, UploadExtent::Growing), None);
        assert_eq!(state.wanted(1_002_000, ROW_BYTES, 1, UploadExtent::Quiet), Some(1_000_000..1_002_000));
        assert_eq!(state.wanted(1_000_001, ROW_BYTES, 1, UploadExtent::Whole), Some(0..1_000_001));
        assert_eq!(state.wanted(1_000_000, ROW_BYTES, 1, UploadExtent::Whole), None);
    }

    #[test]
    fn a_growing_segment_is_uploaded_a_few_times_over_and_stays_in_few_blocks() {
        for (effort, step_rows, times_max) in [(UploadExtent::Growing, 1000, 6), (UploadExtent::Quiet, 2000, 12)] {
            let (mut state, mut uploaded, mut blocks_max) = (ResidentBlocks::default(), 0, 0);
            let mut count = 0;
            while count < 1_000_000 {
                count += step_rows;
                uploaded += step(&mut state, count, effort);
                blocks_max = blocks_max.max(state.blocks.len());
            }
            let times = uploaded / u64::from(count);
            assert!(times < times_max, "{effort:?}: every row was uploaded {times} times");
            assert!(blocks_max <= 10, "{effort:?}: {blocks_max} blocks");
        }
    }

    #[test]
    fn many_blocks_are_joined_when_it_is_quiet() {
        let mut state = ResidentBlocks { blocks: vec![block(0..9000), block(9000..10_000)], offered: 10_000 };
        assert_eq!(state.wanted(10_000, ROW_BYTES, 1, UploadExtent::Quiet), None);
        assert_eq!(state.wanted(10_000, ROW_BYTES, 1, UploadExtent::Whole), Some(0..10_000));
        state.blocks = vec![block(0..8000), block(8000..10_000)];
        assert_eq!(state.wanted(10_000, ROW_BYTES, 1, UploadExtent::Quiet), Some(0..10_000));
        assert_eq!(state.wanted(10_000, ROW_BYTES, 2, UploadExtent::Quiet), None);
        // After a device failure its block is offered again. Rows that did not fit are offered
        // again on request.
        state.blocks.pop();
        assert_eq!(state.spilled(), 2000);
        assert_eq!(state.wanted(10_000, ROW_BYTES, 1, UploadExtent::Growing), None);
        assert_eq!(state.wanted(10_000, ROW_BYTES, 1, UploadExtent::Whole), Some(0..10_000));
        state.offered = 0;
        assert_eq!(state.wanted(10_000, ROW_BYTES, 1, UploadExtent::Growing), Some(0..10_000));
    }
}
