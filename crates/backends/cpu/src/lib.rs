//! The CPU backend.
#![allow(unsafe_code)] // SIMD intrinsics, the thread team, and uninitialised outputs.
pub mod gather;
mod levels;
pub mod normalize;
pub mod parts;
pub mod pixel;
pub mod resize;
pub mod simd;
pub mod team;
pub mod transpose;
