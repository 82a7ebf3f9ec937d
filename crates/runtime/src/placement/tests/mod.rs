//! Machines made of files, and the plans that come of them.

mod fixture;
mod plan;
mod properties;
mod topology;
