//! Machines simulated by files, and their plans.

mod fixture;
mod plan;
mod properties;
mod topology;
