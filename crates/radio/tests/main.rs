//! Every integration test of the crate that does not need a process of its own, in one program.

mod design;
mod packets;
mod recordings;
