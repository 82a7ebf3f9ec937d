//! The runtime: each device is owned by one worker thread, and workers share nothing.
//!
//! Modules in reading order:
//!
//! * [`runtime`]: the program's entry point. It finds devices, starts their workers and accepts
//!   ops.
//! * [`pending`]: the futures that the runtime returns. They need no executor; `.wait()` blocks.
//! * [`options`]: a caller's wishes for one op.
//! * [`router`]: picks the lane for an op.
//! * [`device_worker`]: one thread and one engine per device, and how every op gets exactly one
//!   outcome.
//! * `lane`: the state of one device that the router, the device worker, callers and the relay
//!   share.
//! * `learned`: what was learned about one device. `metrics`: the histograms of its worker.
//! * [`batcher`]: joins ops that can run as one.
//! * [`health`]: which devices are fit for work.
//! * `relay`: forwards ops whose device failed, or whose data is on another device.
//! * [`verify`]: which answers are compared with another device's, and how. `verifier` does the
//!   work.
//! * [`telemetry`]: the runtime's public metrics.
//! * [`worker`], [`pool`], [`partition`]: a program's own workers, in pools, with typed replies and
//!   supervision.
//! * [`pipeline`]: chains of overlapping stages, on the CPU and on devices.
//! * [`placement`]: which CPUs workers run on.
//! * `queue`, `sleeper`, `slot`: the three lock-free parts that everything above is made of.
//!   `uneven_fence` makes waking cheap. `tenure` and `flight_table` make it possible to replace a
//!   stuck driver.
//! * [`process`]: detects forks, in which none of the threads exist.
//! * `foreign`: how foreign code is called. `errands`: where foreign code is called for the ops of
//!   a stuck or ended worker.
//! * `address_space`: whether there is memory for large queues and for threads.
//!
//! A module knows the modules below it, and none above:
//!
//! ```text
//! pipeline
//! runtime
//! verifier
//! relay, pending, telemetry
//! router          device_worker
//! lane
//! options   batcher   health   learned   metrics   verify
//! slot, queue, sleeper, wakes, tenure, flight_table, threads, process, foreign, time,
//! address_space
//! ```
//!
//! The crate knows no backend: backends are passed in as `dyn Backend`.
// The lock-free queue, slot, sleeper and table of flights, and the scheduler's system calls.
#![allow(unsafe_code)]

#[cfg(not(loom))]
mod address_space;
#[cfg(not(loom))]
pub mod batcher;
#[cfg(not(loom))]
mod blocking;
#[cfg(not(loom))]
pub mod device_worker;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod errands;
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
/// Under the model checker: the places where a pipeline's threads meet.
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
#[cfg(not(loom))]
#[doc(hidden)]
pub mod process;
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
#[cfg(not(loom))]
mod verifier;
#[cfg(not(loom))]
pub mod verify;
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
pub use verify::Verify;
#[cfg(not(loom))]
pub use worker::{Envelope, Worker, WorkerError};
