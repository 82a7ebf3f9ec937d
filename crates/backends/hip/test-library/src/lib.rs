//! HIP's C functions under their real names, so that everything of the HIP backend runs without an AMD GPU: loading, devices, streams,
//! events, memory, launches, graphs, errors and teardown.
//!
//! * `exports` and `compiler` are the functions of the runtime and of hiprtc; `libraries` those of rocBLAS and hipFFT,
//!   `products` those of hipBLASLt, `convolutions` those of MIOpen, `sensors` those of AMD SMI and ROCm SMI.
//! * `device` is what stands behind them: `emulated`, whose kernels a C++ compiler makes for the host, or `cuda`, CUDA's driver and NVRTC,
//!   where the variable `PANOPLY_HIP_TEST` is `cuda`. Either way the text that kernels are compiled from is HIP's.
//! * `trouble` has functions of this library's own, by which a test makes calls fail, chooses the architecture, and counts what was not
//!   given back.

// A C library is raw pointers.
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
