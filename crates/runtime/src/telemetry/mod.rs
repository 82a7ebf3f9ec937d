//! The runtime's metrics: always on, written by each worker for itself, readable by any thread.
//!
//! * [`Histogram`]: a distribution of times or sizes, in powers of two.
//! * [`Snapshot`]: all metrics of a runtime at one moment. `prometheus` writes it in the text
//!   format of Prometheus.
//!
//! The counters of one worker are written by that worker alone: a plain load and store each,
//! without a locked instruction or a contended cache line.

use panoply_core::DeviceId;

use crate::lane::WorkerReport;
pub use crate::metrics::{Distribution, Histogram};
use crate::router::SystemCapacity;

mod prometheus;

/// All metrics of a runtime at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The metrics of each device.
    pub devices: Vec<DeviceFigures>,
    /// How much of all devices' capacity is fit for work.
    pub system: SystemCapacity,
    /// Ops that wait to be sent to another device.
    pub relayed_now: usize,
    /// Ops for which the router chose among devices.
    pub routed: u64,
    /// Of the routed ops: those that were sent to learn how fast a device is.
    pub explored: u64,
}

/// The metrics of one device.
#[derive(Clone, Debug)]
pub struct DeviceFigures {
    /// The device.
    pub device: DeviceId,
    /// Its worker's state, counters and health.
    pub worker: WorkerReport,
    /// Nanoseconds from acceptance until the engine got the op.
    pub wait_ns: Distribution,
    /// Nanoseconds from then until the op was finished.
    pub run_ns: Distribution,
    /// Nanoseconds spent moving data, if the engine reports it.
    pub transfer_ns: Distribution,
    /// How many ops ran together.
    pub batch_size: Distribution,
    /// Bytes that crossed between host and device.
    pub bytes_moved: u64,
    /// The predicted time of all work that waits or runs, in nanoseconds.
    pub backlog_ns: u64,
    /// The contents of the engine's memory pools.
    pub memory: panoply_core::MemoryStats,
}

impl Snapshot {
    /// The metrics in the text format of Prometheus, version 0.0.4.
    pub fn prometheus_text(&self) -> String {
        prometheus::text(self)
    }
}
