//! The public view of a lane: the limits of its worker, its state, and its counters.

use std::time::Duration;

use panoply_core::{DeviceId, Error};
use panoply_placement::Placement;

use crate::domain_pools::PoolName;
use crate::health::HealthReport;

/// Limits of one device worker.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerLimits {
    /// How many ops may wait in the queue: 1 to 2^20. Rounded up to a power of two, at least 2.
    pub queue_depth_max: usize,
    /// The largest number of ops that are given to the engine at once.
    pub batch_max: usize,
    /// The largest number of ops that the engine holds at once.
    pub in_flight_max: usize,
    /// How long the engine may take for one op before the device counts as hung.
    pub op_time_max: Duration,
    /// The wait before the first attempt to reopen a lost device. It doubles with each further
    /// attempt.
    pub reopen_wait_min: Duration,
    /// The longest wait between two attempts.
    pub reopen_wait_max: Duration,
    /// How many attempts to reopen may fail in a row, or how many threads may be replaced without a
    /// completed op in between, before the device is given up.
    pub reopen_attempts_max: u32,
    /// How many threads may be stuck at once before the device is given up.
    pub stuck_threads_max: u32,
}

impl Default for WorkerLimits {
    fn default() -> WorkerLimits {
        WorkerLimits {
            queue_depth_max: 1024,
            batch_max: 64,
            in_flight_max: 256,
            op_time_max: Duration::from_secs(60),
            reopen_wait_min: Duration::from_millis(10),
            reopen_wait_max: Duration::from_secs(5),
            reopen_attempts_max: 10,
            stuck_threads_max: 4,
        }
    }
}

/// The state of a device worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WorkerState {
    /// The device is being opened for the first time.
    Opening = 0,
    /// Ready for ops.
    Ready = 1,
    /// The device was lost and is being opened again.
    Reopening = 2,
    /// The device was given up; ops are refused.
    Failed = 3,
    /// The worker has ended.
    Stopped = 4,
}

impl WorkerState {
    pub(super) fn from_u8(value: u8) -> WorkerState {
        match value {
            0 => WorkerState::Opening,
            1 => WorkerState::Ready,
            2 => WorkerState::Reopening,
            3 => WorkerState::Failed,
            _ => WorkerState::Stopped,
        }
    }
}

/// A worker's counters. `accepted` = `completed` + `failed` + `cancelled` + `moved` + the ops that
/// are queued or in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerCounters {
    /// Ops that entered the queue.
    pub accepted: u64,
    /// Ops that returned an output.
    pub completed: u64,
    /// Ops that returned an error.
    pub failed: u64,
    /// Ops whose callers had gone before the ops were started.
    pub cancelled: u64,
    /// Ops that went on to another device, or back to the end of the queue.
    pub moved: u64,
    /// Of the moved ops: those that left because the device failed, or was about to.
    pub fallbacks: u64,
    /// Of the moved ops: those that had not been started and were expected to finish sooner
    /// elsewhere.
    pub relieved: u64,
    /// Panics inside the engine.
    pub panics: u64,
    /// How often the device was opened again.
    pub reopened: u64,
    /// Threads that were stuck, or ended without having been stopped, and were replaced.
    pub replaced: u64,
    /// Answers of the engine that matched no op that it held.
    pub stray_answers: u64,
    /// Answers that another device confirmed.
    pub verified: u64,
    /// Answers that differed from another device's.
    pub mismatched: u64,
    /// Answers that were selected for a comparison and could not be compared.
    pub unverified: u64,
}

/// One device as its users see it: its own worker and those of its pools together.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerReport {
    /// The device.
    pub device: DeviceId,
    /// The state of the device's own worker.
    pub state: WorkerState,
    /// Why the worker is not ready, if it is not.
    pub trouble: Option<Error>,
    /// Where the worker's thread runs, and which wishes for that the system refused.
    pub placement: Placement,
    /// Ops that wait in the queues.
    pub queued: usize,
    /// Ops whose callers wait for room in a queue.
    pub waiting: usize,
    /// The capacity of its own worker's queue.
    pub queue_depth_max: usize,
    /// The sums of all workers' counters.
    pub counters: WorkerCounters,
    /// The device's health.
    pub health: HealthReport,
    /// The workers of pools on this device.
    pub pool_workers: Vec<PoolWorkerReport>,
}

/// One worker of a pool on one device.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolWorkerReport {
    /// The pool.
    pub pool: PoolName,
    /// The worker's state.
    pub state: WorkerState,
    /// Why the worker is not ready, if it is not.
    pub trouble: Option<Error>,
    /// Where the worker's thread runs, and which wishes for that the system refused.
    pub placement: Placement,
    /// Ops that wait in its queue.
    pub queued: usize,
    /// Ops whose callers wait for room in its queue.
    pub waiting: usize,
    /// The capacity of its queue.
    pub queue_depth_max: usize,
    /// Its counters.
    pub counters: WorkerCounters,
}

impl WorkerReport {
    /// Adds the report of a pool's worker on the same device.
    pub(crate) fn add(&mut self, pool: PoolName, other: WorkerReport) {
        let WorkerReport { state, trouble, placement, queued, waiting, queue_depth_max, counters, .. } = other;
        self.queued += queued;
        self.waiting += waiting;
        self.counters.add(&counters);
        let worker = PoolWorkerReport { pool, state, trouble, placement, queued, waiting, queue_depth_max, counters };
        self.pool_workers.push(worker);
    }
}

impl WorkerCounters {
    fn add(&mut self, other: &WorkerCounters) {
        let WorkerCounters {
            accepted,
            completed,
            failed,
            cancelled,
            moved,
            fallbacks,
            relieved,
            panics,
            reopened,
            replaced,
            stray_answers,
            verified,
            mismatched,
            unverified,
        } = self;
        *accepted += other.accepted;
        *completed += other.completed;
        *failed += other.failed;
        *cancelled += other.cancelled;
        *moved += other.moved;
        *fallbacks += other.fallbacks;
        *relieved += other.relieved;
        *panics += other.panics;
        *reopened += other.reopened;
        *replaced += other.replaced;
        *stray_answers += other.stray_answers;
        *verified += other.verified;
        *mismatched += other.mismatched;
        *unverified += other.unverified;
    }
}
