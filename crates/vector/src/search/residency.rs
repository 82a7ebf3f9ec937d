//! The rows that each device stores.
//!
//! The host always has every row, so a device's copy can be lost without harm: its rows are
//! searched on the host until they are uploaded again. `placement` chooses the devices, and
//! `resident` has the blocks of one segment.

use std::ops::Range;
use std::sync::{Arc, PoisonError};

use panoply_core::op::compute::Transfer;
use panoply_core::{DeviceId, ErrorKind, Tensor};
use panoply_runtime::{RunOptions, Runtime};

use super::placement::{DeviceShare, shares};
use super::resident::{BLOCK_BYTES_MIN, ResidentBlocks, ResidentRows, UploadExtent};
use super::run::may_be_elsewhere;
use crate::error::Result;
use crate::segment::SegmentView;
use crate::state::{CollectionState, Snapshot};

/// Blocks begin at multiples of so many rows, which is a word of a mask.
const ROWS_MULTIPLE: usize = 32;

/// Whether an upload would change anything.
pub(crate) fn wants_upload(shared: &CollectionState, snapshot: &Snapshot, effort: UploadExtent) -> bool {
    let shares = shares(shared, snapshot);
    snapshot.segments.iter().any(|segment| {
        has_strays(shared, segment, &shares) || !shares.is_empty() && wanted(segment, shares.len(), effort).is_some()
    })
}

/// Uploads the rows that should be on devices and are not. Blocks on devices that should hold none
/// are dropped. If a device fails, its rows go to another, or stay on the host.
pub(crate) fn upload(shared: &CollectionState, snapshot: &Snapshot, effort: UploadExtent) -> Result<()> {
    if effort == UploadExtent::Whole {
        shared.placement.forgive();
    }
    let shares = shares(shared, snapshot);
    let mut held = vec![0; shares.len()];
    for segment in &snapshot.segments {
        let resident = &segment.shared.resident;
        let _turn = resident.uploading.lock().unwrap_or_else(PoisonError::into_inner);
        if has_strays(shared, segment, &shares) {
            resident.keep_on(&|device| shares.iter().any(|share| share.device == device));
        }
        if shares.is_empty() {
            continue;
        }
        if let Some(range) = wanted(segment, shares.len(), effort) {
            upload_range(shared, segment, range, &shares, &held)?;
        }
        for block in &resident.state().blocks {
            let place = shares.iter().position(|share| share.device == block.device);
            place.into_iter().for_each(|place| held[place] += block.rows.len_bytes());
        }
    }
    Ok(())
}

/// The device blocks of a segment, also in a fork; see [`CollectionState::read`].
pub(crate) fn blocks(shared: &CollectionState, segment: &SegmentView) -> Arc<ResidentBlocks> {
    shared.read(&segment.shared.resident.state)
}

/// Whether a segment has blocks on devices that should hold none.
fn has_strays(shared: &CollectionState, segment: &SegmentView, shares: &[DeviceShare]) -> bool {
    let strays = |device: DeviceId| !shares.iter().any(|share| share.device == device);
    blocks(shared, segment).blocks.iter().any(|block| strays(block.device))
}

fn wanted(segment: &SegmentView, devices: usize, effort: UploadExtent) -> Option<Range<u32>> {
    segment.shared.resident.state().wanted(segment.count, segment.row_bytes, devices, effort)
}

/// Uploads rows of a segment. `held`: the bytes of earlier segments on each device.
fn upload_range(
    shared: &CollectionState,
    segment: &SegmentView,
    range: Range<u32>,
    shares: &[DeviceShare],
    held: &[usize],
) -> Result<()> {
    let resident = &segment.shared.resident;
    let mut state = (*resident.state()).clone();
    state.blocks.retain(|block| block.first_row < range.start);
    let mut is_complete = true;
    for (place, rows) in divide(&range, segment.row_bytes, shares, held) {
        // If the device has no room, the others may have; without any, the host searches the rows.
        let others = (0..shares.len()).filter(|other| *other != place);
        let (mut is_placed, mut has_failed) = (false, false);
        for place in std::iter::once(place).chain(others) {
            let device = shares[place].device;
            let mut uploaded = upload_block(&shared.runtime, segment, rows.clone(), device);
            if uploaded.is_err() && resident.state().blocks.iter().any(|block| block.first_row >= range.start) {
                // Release the old blocks to make room for the new ones.
                resident.set(ResidentBlocks { blocks: state.blocks.clone(), offered: rows.start });
                uploaded = upload_block(&shared.runtime, segment, rows.clone(), device);
            }
            match uploaded {
                Ok(block) => {
                    state.blocks.push(Arc::new(block));
                    is_placed = true;
                    break;
                }
                Err(error) if !may_be_elsewhere(&error) => return Err(error.into()),
                // A device without room is not asked again, one that failed is.
                Err(error) => has_failed |= error.kind() != ErrorKind::Capacity,
            }
        }
        is_complete &= is_placed || !has_failed;
    }
    // All rows are offered again if a device failed.
    state.offered = if is_complete { range.end } else { 0 };
    resident.set(state);
    if !is_complete {
        shared.placement.expire();
    }
    Ok(())
}

/// Divides rows between devices: their places in `shares`, each with its rows. The rows that no
/// device should hold are left out; they are the last ones.
fn divide(range: &Range<u32>, row_bytes: usize, shares: &[DeviceShare], held: &[usize]) -> Vec<(usize, Range<u32>)> {
    let bytes = range.len() * row_bytes;
    let all: f64 = shares.iter().map(|share| share.share).sum();
    if bytes < BLOCK_BYTES_MIN * shares.len() {
        // Too little to divide: it goes to the device that has the least of its share.
        let fullness = |place: &usize| held[*place] as f64 / shares[*place].share.max(f64::MIN_POSITIVE);
        let emptiest = (0..shares.len()).min_by(|one, other| fullness(one).total_cmp(&fullness(other)));
        return emptiest.map(|place| (place, range.clone())).into_iter().collect();
    }
    let (mut parts, mut next, mut sum) = (Vec::new(), range.start, 0.0);
    for (place, share) in shares.iter().enumerate() {
        sum += share.share;
        let is_last = place + 1 == shares.len() && all > 1.0 - 1.0e-6;
        let end = (range.len() as f64 * sum) as usize;
        let end = if is_last { range.len() } else { end.next_multiple_of(ROWS_MULTIPLE).min(range.len()) };
        let end = range.start + end as u32;
        if end > next {
            parts.push((place, next..end));
            next = end;
        }
    }
    parts
}

fn upload_block(
    runtime: &Runtime,
    segment: &SegmentView,
    range: Range<u32>,
    device: DeviceId,
) -> panoply_core::Result<ResidentRows> {
    let send = |tensor: &Tensor| -> panoply_core::Result<Tensor> {
        let part = tensor.slice(0, range.start as usize, range.end as usize)?;
        let options = RunOptions { device: Some(device), ..RunOptions::default() };
        runtime.run_with(Transfer::to_device(&part, device), options).wait()
    };
    let rows = send(&segment.rows)?;
    let norms = segment.norms.as_ref().map(send).transpose()?;
    Ok(ResidentRows::new(device, range, rows, norms))
}
