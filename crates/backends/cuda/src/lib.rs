//! The CUDA backend. A binary that was built without CUDA finds the driver and the vendor's
//! libraries at run time, and reports missing ones.
//!
//! - [`CudaBackend`] finds devices and opens them; engines, ops and memory are those of
//!   `panoply-c-gpu`.
//! - `driver` calls CUDA's driver, `compiler` is NVRTC, `libraries` holds cuBLASLt, cuDNN and
//!   cuFFT.
//! - `quirks` holds differences between architectures.
//!
//! FFI has three layers: cudarc's `sys` is raw, the modules here check and own, and the layer above
//! makes no raw calls.

// CUDA is reached through C functions and raw addresses; every unsafe block states its reason.
#![allow(unsafe_code)]

mod backend;
mod compiler;
mod driver;
#[cfg(test)]
mod fault_tests;
mod libraries;
#[cfg(test)]
mod library_tests;
mod quirks;

pub use backend::CudaBackend;
pub use compiler::Nvrtc;
pub use panoply_c_gpu::GRAPH_TARGET;
