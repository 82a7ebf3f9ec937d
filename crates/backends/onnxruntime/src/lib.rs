//! ONNX Runtime as a device: a second opinion on models, and a way to run models that Panoply's own
//! reader refuses.
//!
//! * `sys` has the required part of ONNX Runtime's C API. `library` loads it at run time and checks
//!   each call.
//! * `ops` has the device's two ops: [`LoadModel`], whose output is a model on the device, and
//!   [`RunModel`].
//! * `engine` runs them, and [`OnnxRuntimeBackend`] finds the library.
//!
//! The build needs nothing. At run time `PANOPLY_ONNXRUNTIME` names the library
//! (`libonnxruntime.so`, for example in the folder `capi` of the Python package `onnxruntime`) or a
//! folder that contains it. Without the variable the device does not exist, so results of another
//! runtime must be requested explicitly.

// ONNX Runtime is a C library. Every `unsafe` block states why it is sound.
#![allow(unsafe_code)]

mod backend;
mod engine;
mod library;
mod ops;
mod sys;

pub use backend::{ONNX_RUNTIME, OnnxRuntimeBackend, VARIABLE};
pub use ops::{LoadModel, ModelArray, ModelOutputs, ModelSource, RunModel};
