//! Stubs for systems without thread placement.

use std::env::consts::OS;
use std::time::Duration;

use panoply_core::cpu_set::CpuSet;

use super::affinity::{RealtimePriority, Scheduling};
use super::error::PlacementError;

pub(super) fn affinity() -> Result<CpuSet, PlacementError> {
    Err(PlacementError::Unsupported { what: "reading a thread's CPU affinity", os: OS })
}

pub(super) fn affinity_of_process() -> Result<CpuSet, PlacementError> {
    affinity()
}

pub(super) fn set_affinity(_cpus: &CpuSet) -> Result<(), PlacementError> {
    Err(PlacementError::Unsupported { what: "pinning a thread to CPUs", os: OS })
}

pub(super) fn set_timer_slack_min() -> Result<(), PlacementError> {
    Err(PlacementError::Unsupported { what: "precise sleeps", os: OS })
}

pub(super) fn set_realtime(_priority: RealtimePriority) -> Result<(), PlacementError> {
    Err(PlacementError::Unsupported { what: "a real-time priority", os: OS })
}

pub(super) fn give_way() -> Result<(), PlacementError> {
    Err(PlacementError::Unsupported { what: "a lower priority", os: OS })
}

pub(super) fn set_slice_min() -> Result<(), PlacementError> {
    Err(PlacementError::Unsupported { what: "short slices of a CPU", os: OS })
}

pub(super) fn set_normal() -> Result<(), PlacementError> {
    Err(PlacementError::Unsupported { what: "a scheduling policy", os: OS })
}

pub(super) fn lock_memory() -> Result<(), PlacementError> {
    Err(PlacementError::Unsupported { what: "locked memory", os: OS })
}

pub(super) fn own_time() -> Option<Duration> {
    None
}

pub(super) fn ticks_per_second() -> Option<u64> {
    None
}

pub(super) fn scheduling() -> Result<Scheduling, PlacementError> {
    Err(PlacementError::Unsupported { what: "reading a thread's scheduling policy", os: OS })
}
