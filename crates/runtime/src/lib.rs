//! The runtime: pinned workers, bounded queues, futures that need no executor.
#![allow(unsafe_code)] // The lock-free queue, slot and sleeper; each proves itself under loom.

#[cfg(not(loom))]
mod blocking;
mod queue;
mod sleeper;
mod slot;
mod sync;
