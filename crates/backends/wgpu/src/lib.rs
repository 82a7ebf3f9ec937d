//! The wgpu backend: every GPU that Vulkan, Metal or DX12 reaches, from one source.
//!
//! The engine, its memory and its ops live in `panoply_wgsl_gpu`; this crate holds the parts that
//! belong to wgpu. Modules in reading order: [`backend`] finds adapters and opens them; `adapter`
//! describes each of them; `driver`, `commands` and `staging` are wgpu as the engine's driver;
//! `host_memory` is staging memory that we choose through Vulkan; `vulkan` opens Vulkan devices
//! without buffer checks by the driver; [`quirks`] holds facts about certain adapters.
#![allow(unsafe_code)] // Unchecked kernels and devices, pipeline caches from disk, mapped memory.

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
mod driver_tests {
    panoply_wgsl_gpu_testing::driver_tests!(crate::backend::WgpuBackend::new);
}
#[cfg(test)]
mod test_driver;
#[cfg(test)]
mod transfer_tests;

pub use backend::WgpuBackend;
