//! The runtime: each device is owned by one worker thread, and workers share nothing.
//!
//! Modules in reading order:
//!
//! * [`runtime`]: the program's entry point. It finds devices, starts their workers and accepts
//!   ops.
//! * [`pending`]: the futures that the runtime returns. They need no executor; `.wait()` blocks.
//! * `pending_many`: the future of a list of ops. [`task`]: work of several steps that runs like
//!   one op.
//! * `read_back`: reads a device's memory for callers that ask for the elements of a tensor.
//! * [`options`]: a caller's wishes for one op. `claims`: devices that one caller has for itself.
//! * [`router`]: picks the lane for an op.
//! * [`device_worker`]: one thread and one engine per device, and how every op gets exactly one
//!   outcome.
//! * `lane`: the state of one device that the router, the device worker, callers and the relay
//!   share.
//! * `learned`: what was learned about one device. `metrics`: the histograms of its worker.
//! * [`domain_pools`]: which kinds of work have workers of their own on a device.
//! * [`batcher`]: joins ops that can run as one.
//! * [`health`]: which devices are fit for work.
//! * `relay`: forwards ops whose device failed, or whose data is on another device.
//! * [`verify`]: which answers are compared with another device's, and how. `verifier` does the
//!   work.
//! * [`telemetry`]: the runtime's public metrics.
//! * [`worker`], [`pool`], [`partition`]: a program's own workers, in pools, with typed replies and
//!   supervision. `accelerated`: workers that own a device, or a part of one.
//! * [`stepped`]: a runtime without threads, for simulations of the layers above it.
//! * `errands`: where foreign code is called for the ops of a stuck or ended worker. `timers`:
//!   where wakers are called at a time. `threads`: the threads of a runtime.
//! * `address_space`: whether there is memory for large queues and for threads.
//!
//! Two crates below this one are parts of it: `panoply_lockfree` has the queue, slot, sleeper and
//! tenure that everything here is made of, and [`placement`] says which CPUs workers run on.
//! Pipelines are above it, in `panoply_pipeline`.
//!
//! A module knows the modules below it, and none above:
//!
//! ```text
//! accelerated
//! runtime         stepped
//! verifier, read_back, pending_many, task
//! relay, pending, telemetry
//! router          device_worker
//! lane
//! domain_pools
//! options   batcher   health   learned   metrics   verify
//! threads, timers, errands, claims, time, address_space
//! panoply_lockfree, panoply_placement
//! ```
//!
//! The crate knows no backend: backends are passed in as `dyn Backend`.

pub mod accelerated;
#[allow(unsafe_code)] // Maps memory, to learn whether the system would give it.
mod address_space;
pub mod batcher;
mod claims;
pub mod device_worker;
pub mod domain_pools;
#[doc(hidden)]
pub mod errands;
pub mod health;
mod lane;
mod learned;
mod metrics;
pub mod options;
pub mod partition;
pub mod pending;
mod pending_many;
pub mod pool;
mod read_back;
mod relay;
pub mod router;
pub mod runtime;
#[doc(hidden)]
pub mod stepped;
pub mod task;
pub mod telemetry;
#[doc(hidden)]
pub mod threads;
#[doc(hidden)]
pub mod time;
mod timers;
mod verifier;
pub mod verify;
pub mod worker;

#[cfg(test)]
mod simulation;

pub use accelerated::{AcceleratedWorker, DeviceShare, OnDevice};
pub use batcher::Batching;
pub use claims::{Claim, Share};
pub use device_worker::supervisor::Shutdown;
pub use device_worker::{PoolWorkerReport, WorkerCounters, WorkerLimits, WorkerReport, WorkerState};
pub use domain_pools::{DevicePool, PoolName, PoolPriority, Pools};
pub use health::{Circuit, HealthReport, HealthRules};
pub use options::{FallbackPolicy, Goal, Priority, RunOptions};
#[doc(hidden)]
pub use panoply_lockfree::process;
pub use panoply_placement as placement;
pub use pending::{Pending, PendingOutcome};
pub use pending_many::{PendingMany, PendingManyOutcomes};
pub use pool::{PoolOptions, WorkerPool};
pub use router::profile::{Profile, ProfileError};
pub use router::{Exploration, SystemCapacity};
pub use runtime::{BackendReport, BuildError, Builder, DeviceChange, Rediscovery, Runtime};
pub use task::{PendingTask, PendingTaskOutcome, TASK_STEPS_MAX, TaskError, TaskOutcome, TaskReport, TaskStep};
pub use verify::Verify;
pub use worker::{Envelope, Worker, WorkerError};
