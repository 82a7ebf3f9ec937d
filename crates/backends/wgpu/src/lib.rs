//! The wgpu backend: every GPU that Vulkan, Metal or DX12 reaches, from one source.
//!
//! The engine, its memory and its ops are `panoply_wgsl_gpu`'s; here is what is wgpu's own. Modules in reading order:
//! [`backend`] finds adapters and opens them, `adapter` says what each is and has, `driver`, `commands` and `staging` are wgpu
//! as the engine's driver, `host_memory` is staging memory of our own behind Vulkan, `vulkan` opens Vulkan
//! devices as kernels like them, and [`quirks`] is what is known about certain adapters.
#![allow(unsafe_code)] // Kernels and devices without run-time checks, pipeline caches from disk, and mapped memory.

mod adapter;
pub mod backend;
mod commands;
pub mod driver;
mod fault;
#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
mod host_memory;
#[cfg(not(any(target_os = "linux", target_os = "windows", target_os = "android")))]
#[path = "no_host_memory.rs"]
mod host_memory;
pub mod quirks;
mod staging;
mod vulkan;

#[cfg(test)]
#[path = "../../wgsl_gpu/driver_tests/mod.rs"]
mod driver_tests;
#[cfg(test)]
mod test_driver;
#[cfg(test)]
mod transfer_tests;

pub use backend::WgpuBackend;
