//! The parts shared by all APIs that compile C for a GPU: CUDA, HIP and OpenCL. Each of those
//! backends is a small crate: a driver, a compiler, the vendor's libraries if there are any,
//! quirks, and the discovery of devices.
//!
//! * `driver` defines the required operations of a device (memory, streams, events, launches),
//!   `compile` the compilation of a kernel's text to a loadable image, and `library` the optional
//!   operations of a vendor's libraries, whose plans `kept_plans` keeps. `loading` explains why a
//!   library is not loaded.
//! * `devices` is the state shared by a backend's engines; `engine` submits ops and collects
//!   finished ones. Three streams overlap upload, kernels and download.
//! * `context` gives an op its resources: device memory, kernels, launches. `ops/` translates ops
//!   to launches (`arguments`), one file per op, in folders by domain.
//! * `memory` pools device memory; `staging` uploads ordinary host memory through pinned chunks;
//!   `host_reads` says which host memory kernels read in place.
//! * `peers` lets engines read each other's memory, if the devices can.
//! * `copies` copies views on the device, `layout` describes views, and `strides` reduces layouts
//!   to as few axes as possible.
//! * `address_table` lets one launch read the memory of many tensors.
//! * `complaint` lets a kernel report that its input is wrong.
//! * `kernels` is the table of loaded kernels; their text is in `panoply-kernels`.
//! * `emulated` is a test device for any machine with a C++ compiler.
//!
//! This crate names no API.

// Devices are accessed through raw addresses, and kernels through untyped arguments; every block
// states why it is sound.
#![allow(unsafe_code)]

mod address_table;
pub mod arguments;
pub mod compile;
mod complaint;
pub mod context;
mod copies;
pub mod devices;
pub mod driver;
pub mod emulated;
pub mod engine;
pub mod host_reads;
pub mod kept_plans;
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
pub use ops::graph::GRAPH_TARGET;
