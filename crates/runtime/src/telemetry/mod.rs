//! What the runtime counts: always on, written by each worker for itself, read by whoever asks.
//!
//! * [`Histogram`]: how often something took how long, in powers of two.
//! * [`Snapshot`]: every figure of a runtime at one moment; `prometheus` writes it in the text format that scrapers read.
//!
//! Counters of one worker are written by that worker alone: a plain load and store each, no locked instruction, no line
//! that two threads fight for.

use panoply_core::DeviceId;

use crate::lane::WorkerReport;
pub use crate::metrics::{Distribution, Histogram};

mod prometheus;

/// Every figure of a runtime at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// One for each device.
    pub devices: Vec<DeviceFigures>,
    /// Ops that wait to be sent to another device.
    pub relayed_now: usize,
    /// Ops for which the router chose among devices.
    pub routed: u64,
    /// Those of them that were sent to learn how fast a device is.
    pub explored: u64,
}

/// The figures of one device.
#[derive(Clone, Debug)]
pub struct DeviceFigures {
    /// The device.
    pub device: DeviceId,
    /// Its worker's state, counters and health.
    pub worker: WorkerReport,
    /// Nanoseconds from acceptance until the engine got the op.
    pub wait_ns: Distribution,
    /// Nanoseconds from then until it was finished.
    pub run_ns: Distribution,
    /// Nanoseconds spent moving data, where the engine tells.
    pub transfer_ns: Distribution,
    /// How many ops ran together.
    pub batch_size: Distribution,
    /// Bytes that crossed between host and device.
    pub bytes_moved: u64,
    /// The work that waits or runs, in nanoseconds as predicted.
    pub backlog_ns: u64,
    /// What the engine's memory pools hold.
    pub memory: panoply_core::MemoryStats,
}

impl Snapshot {
    /// The figures in the text format of Prometheus, version 0.0.4.
    pub fn prometheus_text(&self) -> String {
        prometheus::text(self)
    }
}
