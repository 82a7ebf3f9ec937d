//! The rows that each device stores.
//!
//! The host always has every row, so a device's copy can be lost without harm: its rows are
//! searched on the host until they are uploaded again. `resident` has the blocks of one segment.

use std::ops::Range;
use std::sync::{Arc, PoisonError};

use panoply_core::op::compute::Transfer;
use panoply_core::{DeviceId, DeviceKind, ErrorKind, Tensor};
use panoply_runtime::{RunOptions, Runtime};

use super::resident::{BLOCK_BYTES_MIN, ResidentRows, State, UploadExtent};
use crate::error::Result;
use crate::schema::Residency;
use crate::segment::SegmentView;
use crate::state::{CollectionState, Snapshot};

/// Bytes of rows from which a collection is uploaded automatically. Below this a CPU finishes
/// before a device has begun.
const AUTO_BYTES_MIN: usize = 8 << 20;

/// The devices that should store the rows of a collection of `bytes` bytes.
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

/// Whether an upload would change anything.
pub(crate) fn wants_upload(shared: &CollectionState, snapshot: &Snapshot, effort: UploadExtent) -> bool {
    let devices = devices_of(shared, snapshot);
    !devices.is_empty() && snapshot.segments.iter().any(|segment| wanted(segment, devices.len(), effort).is_some())
}

/// Uploads the rows that should be on devices and are not. If a device fails, its rows stay on the
/// host.
pub(crate) fn upload(shared: &CollectionState, snapshot: &Snapshot, effort: UploadExtent) -> Result<()> {
    let devices = devices_of(shared, snapshot);
    for (turn, segment) in snapshot.segments.iter().enumerate() {
        if devices.is_empty() {
            return Ok(());
        }
        let _turn = segment.shared.resident.uploading.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(range) = wanted(segment, devices.len(), effort) {
            upload_range(shared, segment, range, &devices, turn)?;
        }
    }
    Ok(())
}

/// The device blocks of a segment, also in a fork; see [`CollectionState::read`].
pub(crate) fn blocks(shared: &CollectionState, segment: &SegmentView) -> Arc<State> {
    shared.read(&segment.shared.resident.state)
}

fn devices_of(shared: &CollectionState, snapshot: &Snapshot) -> Vec<DeviceId> {
    let bytes = snapshot.segments.iter().map(|segment| segment.rows.len_bytes()).sum();
    devices(&shared.runtime, &shared.options.residency, bytes)
}

fn wanted(segment: &SegmentView, devices: usize, effort: UploadExtent) -> Option<Range<u32>> {
    segment.shared.resident.state().wanted(segment.count, segment.row_bytes, devices, effort)
}

fn upload_range(
    shared: &CollectionState,
    segment: &SegmentView,
    range: Range<u32>,
    devices: &[DeviceId],
    turn: usize,
) -> Result<()> {
    let resident = &segment.shared.resident;
    let mut state = (*resident.state()).clone();
    state.blocks.retain(|block| block.first_row < range.start);
    let rows = range.len();
    let split = rows * segment.row_bytes >= BLOCK_BYTES_MIN * devices.len();
    let share = if split { rows.div_ceil(devices.len()) } else { rows }.next_multiple_of(32).max(32);
    for (part, first) in range.clone().step_by(share).enumerate() {
        let last = range.end.min(first.saturating_add(share as u32));
        let device = devices[(part + turn) % devices.len()];
        let mut uploaded = upload_block(&shared.runtime, segment, first..last, device);
        if uploaded.is_err() && resident.state().blocks.iter().any(|block| block.first_row >= range.start) {
            // Release the old blocks to make room for the new ones.
            resident.set(State { blocks: state.blocks.clone(), offered: first });
            uploaded = upload_block(&shared.runtime, segment, first..last, device);
        }
        match uploaded {
            Ok(block) => state.blocks.push(Arc::new(block)),
            Err(error) => match error.kind() {
                // The host has the rows and searches them until the device has room.
                ErrorKind::Capacity | ErrorKind::Device => {}
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
