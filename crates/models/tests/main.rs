//! Every integration test of the crate that does not need a process of its own, in one program.

mod bench;
mod cases;
mod devices;
mod each;
mod forms;
mod hostile;
mod kept_weights;
mod lowered;
mod models;
mod mutated;
mod mutations;
mod onnx;
mod pjrt;
mod runs;
