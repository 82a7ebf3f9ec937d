//! OpenVINO as a device: whole models on Intel's processors, GPUs and NPUs.
//!
//! * `sys` has the required part of OpenVINO's C API. `library` loads it at run time and checks
//!   each call. `session` is a loaded model, and `ports` has the names of its inputs and outputs.
//! * `engine` runs the ops of `panoply-whole-model`, and [`OpenVinoBackend`] finds the library and
//!   its devices.
//!
//! The build needs nothing. At run time `PANOPLY_OPENVINO` names the library (`libopenvino_c.so`,
//! for example in the folder `libs` of the Python package `openvino`) or a folder that contains it.
//! Without the variable no device exists, so results of another runtime must be requested
//! explicitly.

// OpenVINO has a C API. Every `unsafe` block states why it is sound.
#![allow(unsafe_code)]

mod backend;
mod engine;
mod library;
mod ports;
mod session;
mod sys;

pub use backend::{OPENVINO, OpenVinoBackend, VARIABLE};
