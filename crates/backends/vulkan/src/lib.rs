//! The Vulkan backend: every GPU with a driver for Vulkan 1.2 or later, without a layer in between.
//!
//! The engine, its memory and its ops live in `panoply_wgsl_gpu`; this crate holds the parts that
//! belong to Vulkan. Modules in reading order: [`backend`] finds devices and opens them; `loader`
//! loads Vulkan itself; `adapter` describes each device (with `bfloat16`); `gpu` is one opened
//! device with its queues and all objects that wait for their destruction; `memory` cuts buffers
//! from large blocks; `buffer` and `staging` use those parts; `compiler` turns WGSL into SPIR-V
//! (with `float_controls`, `matrices` and `loops`); `pipelines` and `bindings` hold what a dispatch
//! names; `commands` records and submits (with `lists`, `params` and `fences`); [`driver`] offers
//! all of this as the engine's driver; `validation` receives the reports of Vulkan's validation
//! layers; [`quirks`] holds facts about certain devices.
#![allow(unsafe_code)] // Vulkan's functions, and mapped memory.

mod adapter;
pub mod backend;
mod bfloat16;
mod bindings;
mod buffer;
mod commands;
mod compiler;
pub mod driver;
mod fences;
mod float_controls;
mod gpu;
mod lists;
mod loader;
mod loops;
mod matrices;
mod memory;
mod params;
mod pipelines;
pub mod quirks;
mod staging;
mod validation;

#[cfg(test)]
mod attack_tests;
#[cfg(test)]
mod driver_tests {
    panoply_wgsl_gpu_testing::driver_tests!(crate::backend::VulkanBackend::new);
}
#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod latency_tests;
#[cfg(test)]
mod matrix_tests;
#[cfg(test)]
mod test_driver;
#[cfg(test)]
mod transfer_tests;

pub use backend::VulkanBackend;
