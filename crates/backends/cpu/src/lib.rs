//! The CPU backend: the reference answer and the fast path.
//!
//! There is one device for each NUMA node. The worker thread that owns the engine computes on it;
//! large ops are split among the node's cores with a [`team::Team`]. Modules in reading order:
//! [`backend`] finds devices, `engine` runs ops in order, and `ops` maps each op to a kernel (one
//! file per op). Every kernel is a folder of pure functions over slices that take the
//! [`simd::Simd`] level and the team as arguments. The kernels that take long to compile are crates
//! of their own in `kernels/`, which compile at the same time. [`keys`] and `Here` are for
//! callers without an engine.
#![allow(unsafe_code)] // SIMD intrinsics, the thread team, and blocks of pooled memory.

pub mod attention;
mod available;
pub mod backend;
pub mod color;
mod context;
mod engine;
#[cfg(feature = "signal")]
pub mod fft;
pub mod gather;
mod health;
mod levels;
pub mod normalize;
mod ops;
pub mod pixel;
pub mod resize;
mod row_map;
mod states;
pub mod transpose;
mod weights;

pub use backend::CpuBackend;
pub use ops::graph::GRAPH_TARGET;
use panoply_cpu_conv::{conv, pool2d};
use panoply_cpu_gemm::gemm;
pub use panoply_cpu_machine::simd;
use panoply_cpu_machine::{extents, lanes, memory, parts, scratch, team};
use panoply_cpu_map::map;
use panoply_cpu_order::{search, sort, topk};
use panoply_cpu_rows::{layernorm, reduce, scan, softmax};
#[cfg(feature = "signal")]
pub use panoply_cpu_signal::Here;

/// Key pairs and random bytes, made by the calling thread.
pub mod keys {
    pub use panoply_cpu_crypto::signature::{NewKeyPair, generate};
    pub use panoply_cpu_crypto::{fill_random, fill_random_anew};
}
