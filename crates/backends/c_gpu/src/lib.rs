//! What every API that compiles C for a GPU has in common: CUDA, HIP, OpenCL. Such a backend is a small folder beside this one: a
//! driver, a compiler, the vendor's libraries where there are any, quirks, and the discovery of devices.
//!
//! * `driver` is what a device must do (memory, streams, events, launches), `compile` what turns a kernel's text into something to
//!   load, and `library` what a vendor's libraries may do besides, each of them optional. `loading` says why one is not loaded.
//! * `devices` is what the engines of a backend share; `engine` submits ops and collects what has finished. Three streams overlap
//!   upload, kernels and download.
//! * `context` is what an op has at hand: device memory, kernels, launches. `ops/` goes from an op to launches, one file for each, in
//!   folders by domain.
//! * `memory` pools device memory, `staging` brings ordinary host memory to the device through pinned chunks.
//! * `peers` lets engines read each other's memory, where devices do.
//! * `copies` moves views about on the device, `layout` says how they lie, `strides` brings layouts to as few axes as possible.
//! * `complaint` is how a kernel says that its input is wrong.
//! * `kernels` keeps those that are loaded; their text is in `panoply-kernels`.
//! * `emulated` is a device for tests, on any machine with a C++ compiler.
//!
//! Nothing here names an API.

// Devices are reached through raw addresses, and kernels through untyped arguments; every block says why it holds.
#![allow(unsafe_code)]

pub mod arguments;
pub mod compile;
mod complaint;
pub mod context;
mod copies;
pub mod devices;
pub mod driver;
pub mod emulated;
pub mod engine;
mod kernels;
pub mod layout;
pub mod library;
pub mod loading;
mod memory;
pub mod ops;
pub mod peers;
mod staging;
mod strides;

pub use devices::{Devices, GpuBackend};
pub use emulated::EmulatedBackend;
pub use engine::GpuEngine;
