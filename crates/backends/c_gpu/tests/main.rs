//! Every integration test of the crate that does not need a process of its own, in one program.

mod chaos;
mod conformance;
mod convolutions;
mod faults;
mod gelu;
mod graphs;
mod host_memory;
mod kernel;
mod layouts;
mod overlap;
mod peers;
mod resident;
mod store;
mod vectors;
