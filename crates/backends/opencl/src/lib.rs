//! The OpenCL backend. The loader (`libOpenCL`) and the drivers behind it are found at run time; a machine without them says so.
//!
//! * [`OpenClBackend`] finds devices and opens them; engines, ops and memory are those of `panoply-c-gpu`.
//! * `platform` asks platforms and devices what they are, `quirks` corrects what drivers are known to get wrong, `warps` finds out how
//!   threads see each other's values.
//! * `driver` runs an opened device, with `buffers` for its memory and `marks` for its events; `compiler` turns kernels into programs.
//!
//! FFI has three floors: `sys` is raw, `calls` checks and owns, and nothing above them names a raw call.

// OpenCL is reached through C functions and untyped handles; every block says why it holds.
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
pub use platform::Limits;
