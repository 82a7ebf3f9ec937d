//! Every integration test of the crate that does not need a process of its own, in one program.

mod cli;
mod demo;
mod graph;
mod json;
mod models;
mod readme;
mod signal;
mod store;
mod store_safety;
mod train;
mod vectors;
