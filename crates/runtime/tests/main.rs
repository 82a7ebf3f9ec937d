//! Every integration test of the crate that does not need a process of its own, in one program.

mod claims;
mod crowded;
mod fallback;
mod faults;
mod graphs;
mod health;
mod held_memory;
mod layers;
mod places;
mod pools;
mod reads;
mod reentry;
mod routing;
mod support;
mod tasks;
mod verified;
mod worker_waits;
mod workers;
