//! Every integration test of the crate that does not need a process of its own, in one program.

mod devices;
#[path = "../../models/tests/each/mod.rs"]
mod each;
mod ensembles;
#[path = "../../models/tests/onnx/mod.rs"]
mod onnx;
mod serving;
mod tasks;
