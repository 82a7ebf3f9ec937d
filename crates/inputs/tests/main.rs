//! Every integration test of the crate, in one program.

#[path = "../../models/tests/mutated/mod.rs"]
mod mutated;
mod mutations;
mod tokenizers;
