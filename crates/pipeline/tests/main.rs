//! Every integration test of the crate that does not need a process of its own, in one program.

mod handles;
mod items;
#[path = "../../runtime/tests/support/mod.rs"]
mod support;
mod threads;
