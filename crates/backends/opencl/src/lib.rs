//! The OpenCL backend. The loader (`libOpenCL`) and the drivers behind it are found at run time; a
//! machine without them reports an absence.
//!
//! - [`OpenClBackend`] finds devices and opens them; engines, ops and memory are those of
//!   `panoply-c-gpu`.
//! - `platform` asks platforms and devices for their properties, `quirks` corrects known faults of
//!   drivers, `warps` finds out how threads exchange values.
//! - `driver` runs an opened device, with `buffers` for its memory and `marks` for its events;
//!   `compiler` turns kernels into programs; `code` names error codes.
//!
//! FFI has three layers: `sys` is raw, `calls` checks and owns, and the layer above makes no raw
//! calls.

// OpenCL is reached through C functions and untyped handles; every unsafe block states its reason.
#![allow(unsafe_code)]

#[cfg(test)]
mod attack_tests;
mod backend;
mod buffers;
mod calls;
mod code;
mod compiler;
mod driver;
#[cfg(test)]
mod fault_tests;
mod marks;
mod platform;
mod quirks;
mod sys;
#[cfg(test)]
mod warp_tests;
mod warps;

pub use backend::OpenClBackend;
pub use panoply_c_gpu::GRAPH_TARGET;
pub use platform::Limits;
