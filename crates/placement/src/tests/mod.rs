//! Machines simulated by files, and their plans.

mod devices;
pub(crate) mod fixture;
mod memory;
mod plan;
mod properties;
mod topology;
