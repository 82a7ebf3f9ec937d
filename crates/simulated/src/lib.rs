//! Simulated devices that fail on command, for the runtime's tests and for users who test how their
//! own programs degrade.
//!
//! A virtual device computes real answers with another backend and adds what its script says:
//! latency, errors, hangs, loss, a memory of its own. Its API and its name always say that it is
//! simulated.
//!
//! * [`script`]: the device's behaviour for each op.
//! * `backend`: finds and opens virtual devices.
//! * `engine`: one opened device.
//! * `memory`: the allocations on it.
//! * `run`: runs single ops on an engine, without a runtime.
//! * `random`: seeded random numbers.
//! * [`chains`]: graphs as in programs, for tests and benchmarks.
//!
//! The crate is separate from the conformance suite so that programs do not compile the suite.

mod backend;
pub mod chains;
mod engine;
mod memory;
mod random;
mod run;
pub mod script;

pub use backend::{Counters, VirtualBackend, VirtualControl};
pub use random::Random;
pub use run::{run_one, run_there};
pub use script::{Fault, Rates, Script};
