//! ONNX Runtime as a device: a second opinion on models, and a way to run those that Panoply's own reader refuses.
//!
//! * `sys` is the part of ONNX Runtime's C API that is needed, `library` loads it at run time and calls it, each call checked.
//! * `ops` are the device's two ops: [`LoadModel`], whose output is a model on the device, and [`RunModel`].
//! * `engine` runs them, [`OnnxRuntimeBackend`] finds the library.
//!
//! Nothing is needed to build it. At run time `PANOPLY_ONNXRUNTIME` names the library (`libonnxruntime.so`, as the Python package
//! `onnxruntime` has it in its folder `capi`), or a folder that has it. Without the variable there is no such device: who wants
//! another runtime's answers asks for them.

// ONNX Runtime is a C library; every block says why it holds.
#![allow(unsafe_code)]

mod backend;
mod engine;
mod library;
mod ops;
mod sys;

pub use backend::{ONNX_RUNTIME, OnnxRuntimeBackend, VARIABLE};
pub use ops::{LoadModel, ModelArray, ModelOutputs, ModelSource, RunModel};
