//! Every integration test of the crate that does not need a process of its own, in one program.

mod crowded;
mod fallback;
mod faults;
mod graphs;
mod held_memory;
mod layers;
mod reads;
mod reentry;
mod routing;
mod support;
mod verified;
mod worker_waits;
mod workers;
