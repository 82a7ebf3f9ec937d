//! The common part of the backends of libraries for whole models: ONNX Runtime and OpenVINO.
//!
//! * [`ops`]: a model is loaded ([`LoadModel`]), runs ([`RunModel`]), and says which parts of the
//!   library run it ([`InspectModel`]).
//! * [`engine`]: [`WholeModelEngine`] runs the ops on a [`ModelLibrary`], which a backend
//!   implements.
//! * [`files`]: the files that a user's setting may mean.
//!
//! No code here knows a particular library.

pub mod engine;
pub mod files;
pub mod ops;

pub use engine::{ModelLibrary, WholeModelEngine, supports};
pub use ops::{InspectModel, LoadModel, ModelArray, ModelOutputs, ModelShare, ModelSource, RunModel};
