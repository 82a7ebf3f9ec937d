//! Every integration test of the crate that does not need a process of its own, in one program.

mod cli;
mod demo;
mod graph;
mod hints;
mod json;
mod last_words;
mod models;
mod overtaken;
mod readme;
mod signal;
mod store;
mod store_safety;
mod streams;
mod train;
mod vectors;
