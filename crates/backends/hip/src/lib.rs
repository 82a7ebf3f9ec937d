//! The HIP backend. A binary built on a machine without ROCm finds the runtime and the vendor's libraries at run time, and says what is
//! missing where they are not there.
//!
//! * [`HipBackend`] finds devices and opens them; engines, ops and memory are those of `panoply-c-gpu`.
//! * `platform` asks devices what they are, `driver` runs one, `compiler` is hiprtc, `libraries` holds rocBLAS, MIOpen, hipFFT and ROCm
//!   SMI.
//! * `quirks` says what differs between architectures and versions.
//! * `sys` has the raw declarations and the tables of functions, `runtime` loads them and checks what they answer.
//!
//! FFI has three floors: `sys` is raw, the modules here check and own, and nothing above names a raw call.

// HIP is reached through C functions and raw addresses; every block says why it holds.
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
