//! Every integration test of the crate that does not need a process of its own, in one program.

mod clean_frames;
mod design;
mod error_rates;
mod memory;
mod packets;
mod random_ops;
mod recordings;
mod streams;
mod suite;
