//! The CPU backend.
#![allow(unsafe_code)] // SIMD intrinsics, the thread team, and uninitialised outputs.
pub mod gemm;
pub mod simd;
pub mod team;
