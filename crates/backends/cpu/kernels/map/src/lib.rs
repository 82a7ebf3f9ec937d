//! Elementwise expressions of the CPU backend, and the functions that they consist of.
#![allow(unsafe_code)] // SIMD intrinsics, and outputs of a type known only at run time.

pub mod map;
pub mod vmath;

use panoply_cpu_machine::{simd, team};

/// For the tests.
#[doc(hidden)]
pub mod internals {
    pub use crate::map::{Cast, Element, f16_to_f32, f32_to_bf16, f32_to_f16};
}
