//! HIP's C functions under their real names, so that the whole HIP backend runs without an AMD GPU:
//! loading, devices, streams, events, memory, launches, graphs, errors and teardown.
//!
//! * `exports` and `compiler` have the functions of the runtime and of hiprtc, `libraries` those of
//!   rocBLAS and hipFFT, `products` those of hipBLASLt, `convolutions` those of MIOpen, `sensors`
//!   those of AMD SMI and ROCm SMI.
//! * `device` is the interface to the device that runs them. `emulated` compiles kernels for the
//!   host with a C++ compiler. `cuda`, used if `PANOPLY_HIP_TEST` is `cuda`, runs them through
//!   CUDA's driver and NVRTC. Both compile the HIP source of the kernels.
//! * `trouble` has this library's own functions, with which tests make calls fail, choose the
//!   architecture, and count leaked objects.

// A C library works with raw pointers.
#![allow(unsafe_code, non_snake_case, missing_docs)]
#![allow(clippy::missing_safety_doc, clippy::too_many_arguments)] // The functions are HIP's, and documented there.

pub mod compiler;
pub mod convolutions;
mod cuda;
mod device;
mod emulated;
pub mod exports;
pub mod libraries;
pub mod products;
pub mod sensors;
pub mod trouble;
