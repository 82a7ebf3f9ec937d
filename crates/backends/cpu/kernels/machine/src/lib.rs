//! Shared by the kernels of the CPU backend: [`simd`] is the level of vector instructions,
//! [`lanes`] compiles a loop for each level, [`team`] splits work among threads, [`parts`] is an
//! output that threads share, [`scratch`] and [`memory`] are memory, [`extents`] views a tensor
//! along one axis.
#![allow(unsafe_code)] // The thread team, and blocks of pooled memory.

#[macro_use]
mod compile_once;
pub mod extents;
pub mod lanes;
pub mod memory;
pub mod parts;
pub mod scratch;
pub mod simd;
pub mod team;
