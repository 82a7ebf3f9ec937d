//! The kernels of the GPU backends: [`wgsl`] serves wgpu.
//!
//! A kernel is source text made for one op with its element types and options fixed; sizes stay run-time parameters, so
//! that one compiled kernel serves every shape. Nothing here talks to a device.

pub mod wgsl;
