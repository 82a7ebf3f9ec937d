//! Every integration test of the crate that does not need a process of its own, in one program.

mod conformance;
mod crypto_provider;
mod degenerate;
mod graph_faults;
mod kernels;
mod large_graphs;
mod streams;
mod tails;
