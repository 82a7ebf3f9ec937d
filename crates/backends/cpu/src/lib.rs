//! The CPU backend.
#![allow(unsafe_code)] // SIMD intrinsics, the thread team, and uninitialised outputs.
mod disjoint;
pub mod extents;
mod lanes;
pub mod layernorm;
pub mod reduce;
pub mod scan;
pub mod simd;
pub mod softmax;
pub mod sort;
pub mod team;
