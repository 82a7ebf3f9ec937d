//! The engine for all APIs that run kernels written in WGSL: wgpu, and backends that compile
//! `panoply_kernels::wgsl` themselves.
//!
//! A backend implements the traits of [`driver`] and passes them to a [`GpuEngine`]. Modules in
//! reading order: `engine` keeps batches in flight; `gathering` decides when the next batch begins;
//! `context` holds the tools of an op; `recorder` turns dispatches into commands; `pipelines` keeps
//! compiled kernels; `memory` owns device memory; `belt`, `ring` and `readback` transfer bytes into
//! and out of device memory; `pages` is host memory that devices import; `arena` and `joined` run
//! many small maps in one dispatch; `pieces` and `windows` cut operands that are larger than a
//! kernel sees; `ops` goes from an op to dispatches, in one folder for each domain.
//!
//! Below them, `operand` views a block as an op sees a tensor, `states` keeps what ops leave on the
//! device between runs, and `answer` is the answer of an op that has not run. [`profile`],
//! [`quirks`] and `tuning` are facts about the device, and [`fault`] keeps its reports.
//!
//! Everything is generic over the driver and compiled for it: a dispatch makes no virtual call.
#![allow(unsafe_code)] // Memory that host and device both reach.

mod answer;
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
mod states;
mod tuning;
mod windows;

#[cfg(test)]
mod kernel_tests;

pub use driver::{Commands, Driver, Staging};
pub use engine::{GpuEngine, Opening};
pub use recorder::{PARAMS_BYTES, PARAMS_BYTES_MAX};

/// Internals for the tests in `panoply-wgsl-gpu-testing`, which every backend runs on its own
/// devices.
#[doc(hidden)]
pub mod internals {
    pub use crate::arena::SLOT_BYTES;
    pub use crate::context::Context;
    pub use crate::engine::Answer;
    pub use crate::pipelines::PIPELINES_MAX;
    pub use crate::tuning::{LARGE_TILES, SMALL_WIDE_TILE, TEST_WIDE_TILE, Tuning, WIDE_TILES};
}
