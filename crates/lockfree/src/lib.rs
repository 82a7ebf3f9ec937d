//! The parts in which threads meet: queues, answer slots, and ways to sleep and be woken. All of
//! them are checked by loom, which builds this crate with `--cfg loom` and its own primitives.
//!
//! Modules in reading order:
//!
//! * [`queue`]: a bounded queue of many producers, which can be closed.
//! * [`slot`]: one question and one answer, and [`wakes`]: how many callers are woken at once.
//! * [`sleeper`]: spins, then parks; `uneven_fence` makes waking cheap. [`blocking`]: a thread that
//!   waits for a future.
//! * [`tenure`], [`flight_table`]: who acts for a device, and which ops its engine has, so that a
//!   driver that is stuck can be replaced.
//! * [`ring`], [`bell`]: the buffer between two stages of a pipeline, and how the pipeline's
//!   threads sleep. Both have a lock, which is held for a few instructions.
//! * `room`: callers that wait for room in a full queue.
//! * [`foreign`]: how foreign code is called. [`process`]: detects forks, in which none of the
//!   threads exist.
//! * `sync`: the primitives, and [`CacheLine`].
//!
//! Every queue, ring and table has a fixed capacity. No part starts a thread, and none knows ops or
//! devices.
//!
//! The crate is an internal part of `panoply-runtime` and `panoply-pipeline`: programs use those.
#![allow(unsafe_code)] // Cells that two threads share by the rules at the head of each module.

pub mod bell;
#[cfg(not(loom))] // In a model no thread blocks.
pub mod blocking;
pub mod flight_table;
pub mod foreign;
pub mod process;
pub mod queue;
pub mod ring;
#[cfg(not(loom))] // It wakes callers of the runtime, and is tested with them.
pub mod room;
pub mod sleeper;
pub mod slot;
mod sync;
pub mod tenure;
mod uneven_fence;
pub mod wakes;

pub use sync::CacheLine;
