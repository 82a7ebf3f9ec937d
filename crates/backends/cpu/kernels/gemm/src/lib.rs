//! Matrix products of the CPU backend.
#![allow(unsafe_code)] // SIMD intrinsics, and matrices that threads share.

pub mod gemm;

use panoply_cpu_machine::{memory, simd, team};

/// For the tests.
#[doc(hidden)]
pub mod internals {
    pub use crate::gemm::erfc_f64;
    #[cfg(target_arch = "x86_64")]
    pub use crate::gemm::transpose_16x16;
}
