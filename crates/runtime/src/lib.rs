//! The runtime: it keeps every device in one worker, and every worker shares nothing.
//!
//! Modules in reading order:
//!
//! * [`runtime`]: what a program holds: it finds devices, starts their workers, takes ops.
//! * [`pending`]: the futures it hands out. They need no executor; `.wait()` blocks.
//! * `router`: picks the device for an op.
//! * [`device_worker`]: one thread and one engine per device, and how every op gets exactly one outcome.
//! * [`worker`], [`pool`], [`partition`]: a program's own workers, in pools, with typed replies and supervision.
//! * [`placement`]: which CPUs workers run on.
//! * `queue`, `sleeper`, `slot`: the three lock-free parts that everything above is made of, and `uneven_fence`, which
//!   makes waking cheap.
//!
//! The crate knows no backend: they are handed in as `dyn Backend`.
#![allow(unsafe_code)] // The lock-free queue, slot, sleeper and table of flights, and the scheduler's system calls.

#[cfg(not(loom))]
mod blocking;
#[cfg(not(loom))]
pub mod device_worker;
#[cfg(not(loom))]
pub mod partition;
#[cfg(not(loom))]
pub mod pending;
#[cfg(not(loom))]
pub mod placement;
#[cfg(not(loom))]
pub mod pool;
mod queue;
#[cfg(not(loom))]
mod room;
#[cfg(not(loom))]
mod router;
#[cfg(not(loom))]
pub mod runtime;
#[cfg_attr(loom, allow(dead_code))] // Under the model checker only the lock-free parts are built.
mod sleeper;
#[cfg_attr(loom, allow(dead_code))]
mod slot;
mod sync;
mod uneven_fence;
#[cfg(not(loom))]
pub mod worker;

#[cfg(all(test, not(loom)))]
mod simulation;

#[cfg(not(loom))]
pub use device_worker::supervisor::Shutdown;
#[cfg(not(loom))]
pub use device_worker::{WorkerCounters, WorkerLimits, WorkerReport, WorkerState};
#[cfg(not(loom))]
pub use pending::{Pending, PendingOutcome};
#[cfg(not(loom))]
pub use pool::{PoolOptions, WorkerPool};
#[cfg(not(loom))]
pub use runtime::{BackendReport, BuildError, Builder, RunOptions, Runtime};
#[cfg(not(loom))]
pub use worker::{Envelope, Worker, WorkerError};
