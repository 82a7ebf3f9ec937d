//! GPU kernels as text, and the code that generates fused ones from expressions.
//!
//! There are exactly two dialects. [`c`] serves every API that compiles C for a GPU. [`wgsl`]
//! serves wgpu, and through it Vulkan, Metal and DX12. A kernel is plain text with a few parameters
//! (element types, tile sizes) that become macros. A backend compiles it for its device and keeps
//! the result. [`warm`] remembers the ops for which that was done, and [`cache`] keeps results on
//! disk. Nothing here talks to a driver.

pub mod c;
pub mod cache;
pub mod warm;
pub mod wgsl;
