//! The CPU backend: the reference answer and the fast path.
//!
//! One device per NUMA node. The worker thread that owns the engine computes on it; large ops spread over the node's
//! cores with a [`team::Team`]. Modules in reading order: [`backend`] finds devices, `engine` runs ops in order, `ops`
//! goes from an op to a kernel (one file per op), and every kernel is a folder of pure functions over slices that takes
//! the [`simd::Simd`] level and the team as arguments.
#![allow(unsafe_code)] // SIMD intrinsics, the thread team, and blocks of pooled memory.

pub mod backend;
mod context;
pub mod conv;
mod engine;
mod memory;
mod ops;
pub mod pool2d;
pub mod simd;
pub mod team;

pub use backend::CpuBackend;
