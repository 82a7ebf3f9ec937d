//! Every integration test of the crate that does not need a process of its own, in one program.

mod clean_frames;
mod error_rates;
mod memory;
mod random_ops;
mod streams;
mod suite;
