//! Convolutions and pooling of the CPU backend.
#![allow(unsafe_code)] // SIMD intrinsics, and images that threads share.

pub mod conv;
pub mod pool2d;

use panoply_cpu_gemm::gemm;
use panoply_cpu_machine::{lanes, parts, scratch, simd, team};

/// For the tests.
#[doc(hidden)]
pub mod internals {
    pub use crate::conv::PlanePrefetch;
}
