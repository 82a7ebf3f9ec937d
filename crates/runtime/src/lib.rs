//! The runtime: it keeps every device in one worker, and every worker shares nothing.
//!
//! Modules in reading order:
//!
//! * [`runtime`]: what a program holds: it finds devices, starts their workers, takes ops.
//! * [`pending`]: the futures it hands out. They need no executor; `.wait()` blocks.
//! * [`options`]: a caller's wishes for one op.
//! * [`router`]: picks the lane for an op.
//! * [`device_worker`]: one thread and one engine per device, and how every op gets exactly one outcome.
//! * `lane`: what those two, callers and the relay share of one device.
//! * `learned`: what was learned about one device; `metrics`: what its worker counts.
//! * [`batcher`]: joins ops that can run as one.
//! * [`health`]: which devices are fit for work.
//! * `relay`: sends ops on when their device fails them, or their data is elsewhere.
//! * [`telemetry`]: what the runtime counts.
//! * [`worker`], [`pool`], [`partition`]: a program's own workers, in pools, with typed replies and supervision.
//! * [`pipeline`]: chains of stages, on the CPU and on devices, that run overlapped.
//! * [`placement`]: which CPUs workers run on.
//! * `queue`, `sleeper`, `slot`: the three lock-free parts that everything above is made of, and `uneven_fence`, which
//!   makes waking cheap; `tenure` and `flight_table`, by which a stuck driver is replaced.
//! * `foreign`: how code that is not ours is called; `errands`: where it is called for the ops of a stuck or ended worker.
//!
//! Modules know those below them, and none above:
//!
//! ```text
//! pipeline
//! runtime, pending, telemetry
//! relay
//! router          device_worker
//! lane
//! options   batcher   health   learned   metrics
//! slot, queue, sleeper, wakes, tenure, flight_table, threads, foreign, time
//! ```
//!
//! The crate knows no backend: they are handed in as `dyn Backend`.
#![allow(unsafe_code)] // The lock-free queue, slot, sleeper and table of flights, and the scheduler's system calls.

#[cfg(not(loom))]
pub mod batcher;
#[cfg(not(loom))]
mod blocking;
#[cfg(not(loom))]
pub mod device_worker;
#[cfg(not(loom))]
mod errands;
#[cfg_attr(loom, allow(dead_code))]
mod flight_table;
mod foreign;
#[cfg(not(loom))]
pub mod health;
#[cfg(not(loom))]
mod lane;
#[cfg(not(loom))]
mod learned;
#[cfg(not(loom))]
mod metrics;
#[cfg(not(loom))]
pub mod options;
#[cfg(not(loom))]
pub mod partition;
#[cfg(not(loom))]
pub mod pending;
#[cfg(not(loom))]
pub mod pipeline;
/// Under the model checker: where a pipeline's threads meet.
#[cfg(loom)]
#[allow(dead_code)]
mod pipeline {
    mod bell;
    mod ring;
}
#[cfg(not(loom))]
pub mod placement;
#[cfg(not(loom))]
pub mod pool;
mod queue;
#[cfg(not(loom))]
mod relay;
#[cfg(not(loom))]
mod room;
#[cfg(not(loom))]
pub mod router;
#[cfg(not(loom))]
pub mod runtime;
#[cfg_attr(loom, allow(dead_code))] // Under the model checker only the lock-free parts are built.
mod sleeper;
#[cfg_attr(loom, allow(dead_code))]
mod slot;
mod sync;
#[cfg(not(loom))]
pub mod telemetry;
#[cfg_attr(loom, allow(dead_code))]
mod tenure;
#[cfg(not(loom))]
mod threads;
#[cfg(not(loom))]
mod time;
#[cfg(not(loom))]
mod timers;
mod uneven_fence;
#[cfg_attr(loom, allow(dead_code))]
mod wakes;
#[cfg(not(loom))]
pub mod worker;

#[cfg(all(test, not(loom)))]
mod simulation;

#[cfg(not(loom))]
pub use batcher::Batching;
#[cfg(not(loom))]
pub use device_worker::supervisor::Shutdown;
#[cfg(not(loom))]
pub use device_worker::{WorkerCounters, WorkerLimits, WorkerReport, WorkerState};
#[cfg(not(loom))]
pub use health::{Circuit, HealthReport, HealthRules};
#[cfg(not(loom))]
pub use options::{FallbackPolicy, Goal, Priority, RunOptions};
#[cfg(not(loom))]
pub use pending::{Pending, PendingOutcome};
#[cfg(not(loom))]
pub use pipeline::Pipeline;
#[cfg(not(loom))]
pub use pool::{PoolOptions, WorkerPool};
#[cfg(not(loom))]
pub use router::Exploration;
#[cfg(not(loom))]
pub use router::profile::{Profile, ProfileError};
#[cfg(not(loom))]
pub use runtime::{BackendReport, BuildError, Builder, DeviceChange, Rediscovery, Runtime};
#[cfg(not(loom))]
pub use worker::{Envelope, Worker, WorkerError};
