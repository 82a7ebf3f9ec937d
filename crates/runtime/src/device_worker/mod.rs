//! Device workers: one pinned thread per device that owns its engine, fed by one bounded queue.
//!
//! * `lane`, below this module: the state that callers, the worker and its supervisor share.
//! * `driver`: the worker's loop as a machine that takes one step at a time, so that a simulation
//!   can run it under a virtual clock. `intake`: its steps that take ops out of the lane. `visit`:
//!   its calls into foreign code. `memory`: its answers to requests for the device's memory.
//! * `flights`: the ops inside the engine.
//! * `landing`: answers or forwards the ops that the engine has finished.
//! * `supervisor`: starts the worker's thread, and replaces it when it hangs. `vigil`: how the
//!   supervisor detects that.
//!
//! How every accepted op gets exactly one outcome:
//!
//! 1. An op is a ticket from the moment it is accepted, and a ticket that is dropped answers.
//! 2. A ticket is in one place at a time: in the queue, in the table of flights, or owned by the
//!    thread that took it out.
//! 3. The queue is closed before the last consumer leaves it, and nothing can enter a closed queue.
//! 4. An engine that panics, loses its device or loses track of an op is dropped. Every op that it
//!    held is answered with a device error, and the device is opened again with back-off.
//! 5. An op whose device failed, or that must be brought to another device, is handed to the relay
//!    under its fallback policy. The relay's queue is bounded too, and an op that does not fit
//!    there is answered with its error.
//! 6. A worker that is stuck in foreign code (its engine, a waker, a destructor) for longer than
//!    the op's bound is replaced: the supervisor answers the ops that the engine held, and a new
//!    thread with a new engine continues with the same queue. The stuck thread touches neither the
//!    queue nor the device's state again, and ends when the foreign call returns. A thread that
//!    ended without being stopped is replaced in the same way.
//! 7. Foreign code is called in such a way that its panics end at the call (see `foreign`).

use std::time::Instant;

pub(crate) mod driver;
pub(crate) mod flights;
mod intake;
mod landing;
mod memory;
pub(crate) mod supervisor;
mod vigil;
pub(crate) mod visit;

pub use crate::lane::{PoolWorkerReport, WorkerCounters, WorkerLimits, WorkerReport, WorkerState};

/// When an op was accepted, and when it was given to the engine.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) accepted: Instant,
    pub(crate) submitted: Instant,
}
