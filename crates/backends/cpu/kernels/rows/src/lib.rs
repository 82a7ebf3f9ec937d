//! Reductions, scans, softmax and layer normalisation of the CPU backend.
#![allow(unsafe_code)] // SIMD intrinsics, and outputs that threads share.

pub mod layernorm;
pub mod reduce;
pub mod scan;
pub mod softmax;

use panoply_cpu_machine::{extents, lanes, parts, scratch, simd, team};
