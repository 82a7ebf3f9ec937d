//! The CUDA backend. A binary built on a machine without CUDA finds the driver and the vendor's libraries at run time, and
//! says what is missing where they are not there.
//!
//! * [`CudaBackend`] finds devices and says what they run.
//! * `engine` submits ops and collects what has finished; three streams overlap upload, kernels and download.
//! * `context` is what an op has at hand: device memory, kernels, launches. `ops/` goes from an op to launches, one file for each.
//! * `memory` pools device memory, `staging` brings ordinary host memory to the device through pinned chunks.
//! * `peers` lets engines read each other's memory, where GPUs do.
//! * `copies` moves views about on the device, `strides` brings layouts to as few axes as possible.
//! * `complaint` is how a kernel says that its input is wrong.
//! * `kernels` compiles and keeps kernels; their text is in `panoply-kernels`.
//! * `driver` is the floor that talks to CUDA, or emulates it for tests; `library` holds cuBLAS, cuDNN, cuFFT and NVML.
//!
//! FFI has three floors: cudarc's `sys` is raw, `driver` and `library` check and own, and nothing above names a raw call.

// CUDA is reached through C functions and raw addresses; every block says why it holds.
#![allow(unsafe_code)]

mod backend;
mod complaint;
mod context;
mod copies;
mod driver;
mod engine;
#[cfg(test)]
mod fault_tests;
mod kernels;
mod library;
mod memory;
mod ops;
mod peers;
mod staging;
mod strides;

pub use backend::CudaBackend;
