//! What every API shares that runs kernels written in WGSL: wgpu, and whoever compiles `panoply_kernels::wgsl` for itself.
//!
//! A backend implements the traits of [`driver`] and hands them to a [`GpuEngine`]. Modules in reading order: `engine` keeps
//! batches in flight, `gathering` says when one is to begin, `context` is what an op has at hand, `recorder` turns dispatches
//! into commands, `pipelines` keeps compiled kernels, `memory` owns device memory, `belt`, `ring` and `readback` are the way
//! into it and out of it, `pages` is host memory that devices import, `arena` and `joined` let many small maps be one dispatch, `pieces` and `windows` cut what is larger
//! than a kernel sees, and `ops` goes from an op to dispatches, in one folder for each domain.
//!
//! Everything is generic over the driver and compiled for it: a dispatch goes through no virtual call.
#![allow(unsafe_code)] // Memory that host and device both reach.

mod arena;
mod belt;
mod context;
pub mod driver;
pub mod engine;
pub mod fault;
mod gathering;
mod joined;
mod memory;
mod operand;
pub mod ops;
pub mod pages;
mod pieces;
mod pipelines;
pub mod profile;
pub mod quirks;
mod readback;
mod recorder;
mod ring;
mod tuning;
mod windows;

#[cfg(test)]
mod kernel_tests;

pub use driver::{Commands, Driver, Staging};
pub use engine::{GpuEngine, Opening};
pub use recorder::{PARAMS_BYTES, PARAMS_BYTES_MAX};

/// What the tests in `driver_tests`, which every backend runs on its own devices, look at.
#[doc(hidden)]
pub mod internals {
    pub use crate::arena::SLOT_BYTES;
    pub use crate::context::Context;
    pub use crate::engine::Answer;
    pub use crate::pipelines::PIPELINES_MAX;
    pub use crate::tuning::{LARGE_TILES, SMALL_WIDE_TILE, TEST_WIDE_TILE, Tuning, WIDE_TILES};
}
