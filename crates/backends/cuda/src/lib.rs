//! The CUDA backend. A binary built on a machine without CUDA finds the driver and the vendor's libraries at run time, and
//! says what is missing where they are not there.
//!
//! * [`CudaBackend`] finds devices and opens them; engines, ops and memory are those of `panoply-c-gpu`.
//! * `driver` talks to CUDA's driver, `compiler` is NVRTC, `libraries` holds cuBLASLt, cuDNN, cuFFT and NVML.
//! * `quirks` says what differs between architectures.
//!
//! FFI has three floors: cudarc's `sys` is raw, the modules here check and own, and nothing above names a raw call.

// CUDA is reached through C functions and raw addresses; every block says why it holds.
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
