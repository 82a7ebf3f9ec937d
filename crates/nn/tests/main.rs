//! Every integration test of the crate that does not need a process of its own, in one program.

mod digits;
mod edges;
mod gradients;
mod onnx;
mod sessions;
mod torch;
mod training;
