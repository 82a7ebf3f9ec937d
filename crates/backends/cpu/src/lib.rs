//! The CPU backend: the reference answer and the fast path.
//!
//! One device per NUMA node. The worker thread that owns the engine computes on it; large ops spread over the node's
//! cores with a [`team::Team`]. Modules in reading order: [`backend`] finds devices, `engine` runs ops in order, `ops`
//! goes from an op to a kernel (one file per op), and every kernel is a folder of pure functions over slices that takes
//! the [`simd::Simd`] level and the team as arguments.
#![allow(unsafe_code)] // SIMD intrinsics, the thread team, and blocks of pooled memory.

pub mod attention;
pub mod backend;
pub mod color;
mod context;
pub mod conv;
mod engine;
pub mod extents;
pub mod fft;
pub mod gather;
pub mod gemm;
mod health;
mod lanes;
pub mod layernorm;
mod levels;
mod map;
mod memory;
pub mod normalize;
mod ops;
pub mod parts;
pub mod pixel;
pub mod pool2d;
pub mod reduce;
pub mod resize;
mod row_map;
pub mod scan;
mod scratch;
pub mod search;
pub mod simd;
pub mod softmax;
pub mod sort;
pub mod team;
pub mod topk;
pub mod transpose;
pub mod vmath;

pub use backend::CpuBackend;
