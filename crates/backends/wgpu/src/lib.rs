//! The wgpu backend: every GPU that Vulkan, Metal or DX12 reaches, from one source.
//!
//! Modules in reading order: [`backend`] finds adapters and says what each can run, `engine` keeps batches in flight,
//! `gathering` says when one is to begin, `context` is what an op has at hand, `recorder` turns dispatches into command buffers, `memory` and `staging` own device
//! memory and the way into it and out of it, `arena` and `joined` let many small maps be one dispatch, `pieces` cuts what is larger than a kernel sees, `pipelines` compiles and caches kernels, and `ops` goes from an op to
//! dispatches of the kernels in `panoply_kernels::wgsl` (one file per op).
#![allow(unsafe_code)] // Kernels and devices without run-time checks, and pipeline caches from disk.

mod adapter;
mod arena;
pub mod backend;
mod context;
mod engine;
mod fault;
mod gathering;
mod joined;
mod memory;
mod operand;
mod ops;
mod pieces;
mod pipelines;
pub mod quirks;
mod recorder;
mod staging;
mod tuning;
mod vulkan;
mod windows;

#[cfg(test)]
mod fault_tests;
#[cfg(test)]
mod form_tests;
#[cfg(test)]
mod joined_tests;
#[cfg(test)]
mod piece_claim_tests;
#[cfg(test)]
mod piece_image_tests;
#[cfg(test)]
mod piece_tests;

pub use backend::WgpuBackend;
