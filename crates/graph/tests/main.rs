//! Every integration test of the crate that does not need a process of its own, in one program.

mod execute;
#[path = "support/targets.rs"]
mod targets;
mod text_ops;
