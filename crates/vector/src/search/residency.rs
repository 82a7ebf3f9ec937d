//! Which rows live on which device.
//!
//! The host always has every row, so a device's copy can be lost without harm: the rows are searched on the host until
//! they have been uploaded again. A segment's copy is made of blocks of consecutive rows, one for each device, or more
//! where the segment has grown since. Rows that no block covers are searched on the host.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use panoply_core::op::compute::Transfer;
use panoply_core::{DeviceId, DeviceKind, ErrorKind, Tensor};
use panoply_runtime::{RunOptions, Runtime};

use super::bits::slice_bits;
use crate::error::Result;
use crate::schema::Residency;
use crate::segment::SegmentView;
use crate::state::{Shared, Snapshot};

/// Bytes of rows from which a collection moves to devices by itself. Below that a CPU is done before a device has begun.
const AUTO_BYTES_MIN: usize = 8 << 20;
/// Rows that a growing segment has beyond its blocks, as a share of those in blocks, before they are uploaded.
const REST_SHARE_MAX: u32 = 8;
/// Bytes below which the rest of a segment is not worth a block of its own.
const BLOCK_BYTES_MIN: usize = 1 << 20;
/// Blocks of a segment; more are joined by uploading the segment anew.
const BLOCKS_MAX: usize = 8;

/// Filters whose bits a block keeps on its device.
const MASKS_MAX: usize = 4;

/// What of a segment lives on devices.
#[derive(Default)]
pub(crate) struct Resident {
    state: RwLock<Arc<State>>,
    uploading: Mutex<()>,
}

/// What of a segment lives on devices, at some time.
#[derive(Clone, Default)]
pub(crate) struct State {
    /// In the order of their rows.
    pub(crate) blocks: Vec<Arc<Block>>,
    /// Rows, from the first on, that were offered to devices.
    offered: u32,
    /// Those of them that did not fit into a device's memory.
    pub(crate) spilled: u32,
}

/// Consecutive rows in a device's memory.
pub(crate) struct Block {
    pub(crate) device: DeviceId,
    pub(crate) first_row: u32,
    pub(crate) count: u32,
    pub(crate) rows: Tensor,
    pub(crate) norms: Option<Tensor>,
    /// Filters that were used last, and their copies on the device.
    masks: Mutex<Vec<(Arc<[u32]>, Tensor)>>,
}

impl Block {
    /// The bits of the block's rows, out of those of its segment, on the device.
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
    /// What lives on devices now.
    pub(crate) fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Forgets a block whose device has failed. All rows are offered again when there is time.
    pub(crate) fn forget(&self, lost: &Arc<Block>) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        let blocks = state.blocks.iter().filter(|block| !Arc::ptr_eq(block, lost)).cloned().collect();
        *state = Arc::new(State { blocks, offered: 0, spilled: state.spilled });
    }

    fn set(&self, state: State) {
        *self.state.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(state);
    }
}

/// The devices that rows should live on, for a collection of this many bytes.
pub(crate) fn devices(runtime: &Runtime, residency: &Residency, bytes: usize) -> Vec<DeviceId> {
    match residency {
        Residency::Host => Vec::new(),
        Residency::Devices(devices) => devices.clone(),
        Residency::Auto if bytes < AUTO_BYTES_MIN => Vec::new(),
        Residency::Auto => {
            let suits = |kind: DeviceKind| matches!(kind, DeviceKind::DiscreteGpu | DeviceKind::Tpu);
            runtime.devices().filter(|info| suits(info.kind)).map(|info| info.id).collect()
        }
    }
}

/// The devices that search rows of the host.
pub(crate) fn host_devices(runtime: &Runtime) -> Vec<DeviceId> {
    let cpus = runtime.devices().filter(|info| info.kind == DeviceKind::Cpu && !info.is_simulated());
    cpus.map(|info| info.id).collect()
}

/// Whether an upload would change anything.
pub(crate) fn wants_upload(shared: &Shared, snapshot: &Snapshot) -> bool {
    if shared.options.residency == Residency::Host {
        return false;
    }
    let bytes = snapshot.segments.iter().map(|segment| segment.rows.len_bytes()).sum();
    !devices(&shared.runtime, &shared.options.residency, bytes).is_empty()
        && snapshot.segments.iter().any(|segment| uncovered(segment).is_some())
}

/// Uploads what should be on devices and is not. With `whole`, segments that are there in many blocks, or in part, are
/// uploaded anew, so that they are searched with as few ops as possible. A device's failure leaves rows on the host.
pub(crate) fn upload(shared: &Shared, snapshot: &Snapshot, whole: bool) -> Result<()> {
    let bytes = snapshot.segments.iter().map(|segment| segment.rows.len_bytes()).sum();
    let devices = devices(&shared.runtime, &shared.options.residency, bytes);
    if devices.is_empty() {
        return Ok(());
    }
    for (turn, segment) in snapshot.segments.iter().enumerate() {
        let _turn = segment.shared.resident.uploading.lock().unwrap_or_else(PoisonError::into_inner);
        let state = segment.shared.resident.state();
        let range = match whole && (is_scattered(segment, devices.len()) || state.spilled > 0) {
            true => Some(0..segment.count),
            false => uncovered(segment),
        };
        // It holds the blocks that may have to make room.
        drop(state);
        if let Some(range) = range {
            upload_range(shared, segment, range, &devices, turn)?;
        }
    }
    Ok(())
}

/// Whether some segment would be searched with fewer ops if it were uploaded anew.
pub(crate) fn wants_joining(shared: &Shared, snapshot: &Snapshot) -> bool {
    let bytes = snapshot.segments.iter().map(|segment| segment.rows.len_bytes()).sum();
    let devices = devices(&shared.runtime, &shared.options.residency, bytes);
    !devices.is_empty() && snapshot.segments.iter().any(|segment| is_scattered(segment, devices.len()))
}

fn is_scattered(segment: &SegmentView, devices: usize) -> bool {
    let state = segment.shared.resident.state();
    segment.count > state.offered || state.blocks.len() > devices
}

/// The rows that should be uploaded: `None` where too few are missing to bother.
fn uncovered(segment: &SegmentView) -> Option<Range<u32>> {
    let state = segment.shared.resident.state();
    let rest = segment.count.saturating_sub(state.offered);
    let too_few = rest as usize * segment.row_bytes < BLOCK_BYTES_MIN || rest < state.offered / REST_SHARE_MAX;
    if rest == 0 || (state.offered > 0 && too_few) {
        return None;
    }
    Some(if state.blocks.len() >= BLOCKS_MAX { 0..segment.count } else { state.offered..segment.count })
}

fn upload_range(
    shared: &Shared,
    segment: &SegmentView,
    range: Range<u32>,
    devices: &[DeviceId],
    turn: usize,
) -> Result<()> {
    let resident = &segment.shared.resident;
    let mut state = if range.start == 0 { State::default() } else { (*resident.state()).clone() };
    let rows = range.len();
    let split = rows * segment.row_bytes >= BLOCK_BYTES_MIN * devices.len();
    let share = if split { rows.div_ceil(devices.len()) } else { rows }.next_multiple_of(32).max(32);
    for (part, first) in range.clone().step_by(share).enumerate() {
        let last = range.end.min(first.saturating_add(share as u32));
        let device = devices[(part + turn) % devices.len()];
        let mut uploaded = upload_block(&shared.runtime, segment, first..last, device);
        if uploaded.is_err() && range.start == 0 && !resident.state().blocks.is_empty() {
            // The old blocks make room for the new ones.
            resident.set(State::default());
            uploaded = upload_block(&shared.runtime, segment, first..last, device);
        }
        match uploaded {
            Ok(block) => state.blocks.push(Arc::new(block)),
            Err(error) => match error.kind() {
                // The host has the rows; they are searched there until there is room.
                ErrorKind::Capacity | ErrorKind::Device => state.spilled += last - first,
                ErrorKind::Caller => return Err(error.into()),
            },
        }
    }
    state.offered = range.end;
    resident.set(state);
    Ok(())
}

fn upload_block(
    runtime: &Runtime,
    segment: &SegmentView,
    range: Range<u32>,
    device: DeviceId,
) -> panoply_core::Result<Block> {
    let send = |tensor: &Tensor| -> panoply_core::Result<Tensor> {
        let part = tensor.slice(0, range.start as usize, range.end as usize)?;
        let options = RunOptions { device: Some(device), ..RunOptions::default() };
        runtime.run_with(Transfer::to_device(&part, device), options).wait()
    };
    let rows = send(&segment.rows)?;
    let norms = segment.norms.as_ref().map(send).transpose()?;
    let (first_row, count) = (range.start, range.end - range.start);
    Ok(Block { device, first_row, count, rows, norms, masks: Mutex::default() })
}
