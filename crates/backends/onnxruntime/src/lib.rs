//! ONNX Runtime as a device: a second opinion on models, a way to run models that Panoply's own
//! reader refuses, and the way to hardware that other vendors reach by its execution providers.
//!
//! * `sys` has the required part of ONNX Runtime's C API. `library` loads it at run time and checks
//!   each call. `session` is a loaded model.
//! * `provider` names the execution providers: [`Provider`]. Each is a device of its own.
//! * `engine` runs the ops of `panoply-whole-model` on a provider, and [`OnnxRuntimeBackend`] finds
//!   the library.
//!
//! The build needs nothing. At run time `PANOPLY_ONNXRUNTIME` names the library
//! (`libonnxruntime.so`, for example in the folder `capi` of the Python package `onnxruntime`) or a
//! folder that contains it. Without the variable no device exists, so results of another runtime
//! must be requested explicitly. The same holds for providers: without a list only the processor's
//! cores are a device.

// ONNX Runtime is a C library. Every `unsafe` block states why it is sound.
#![allow(unsafe_code)]

mod backend;
mod engine;
mod library;
mod provider;
mod session;
mod sys;

pub use backend::{ONNX_RUNTIME, OnnxRuntimeBackend, VARIABLE};
pub use provider::{PROVIDERS, Provider, apis};
