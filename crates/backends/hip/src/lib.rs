//! The HIP backend for AMD GPUs. The runtime and the vendor's libraries are loaded at run time, so
//! a binary built on a machine without ROCm works. If a library is missing, the backend names it.
//!
//! * [`HipBackend`] finds devices and opens them. Engines, ops and memory are those of
//!   `panoply-c-gpu`.
//! * `platform` queries the devices' properties, `driver` runs one device, `compiler` wraps hiprtc,
//!   `libraries` wraps hipBLASLt, rocBLAS, MIOpen, hipFFT, AMD SMI and ROCm SMI.
//! * `quirks` lists the differences between architectures and versions.
//! * `sys` has the raw declarations and the function tables. `runtime` loads them and checks the
//!   status of each call.
//!
//! FFI has three floors: `sys` is raw, the modules here check and own, and nothing above names a
//! raw call.

// HIP is reached through C functions and raw addresses. Every `unsafe` block states why it is
// sound.
#![allow(unsafe_code)]

mod backend;
mod compiler;
mod driver;
#[cfg(test)]
mod fault_tests;
mod libraries;
#[cfg(test)]
mod library_tests;
mod platform;
mod quirks;
mod runtime;
mod sys;

pub use backend::HipBackend;
pub use compiler::Hiprtc;
pub use panoply_c_gpu::GRAPH_TARGET;
