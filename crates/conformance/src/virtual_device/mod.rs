//! Virtual devices: simulated hardware that fails on command.
//!
//! A virtual device computes real answers with another backend and adds what the script says: latency, errors, hangs,
//! loss, a memory of its own. It is always labelled simulated, by its API and by its name. The same device serves the
//! runtime's own tests and a user who wants to see how a program degrades.
//!
//! * [`script`]: what the device does to each op;
//! * `backend`: finds and opens virtual devices;
//! * `engine`: one opened device;
//! * `memory`: what lives on it.

mod backend;
mod engine;
mod memory;
pub mod script;

pub use backend::{Counters, VirtualBackend, VirtualControl};
pub use script::{Fault, Rates, Script};
