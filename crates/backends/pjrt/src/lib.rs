//! The PJRT backend: TPUs, and whatever else has a PJRT plugin. Plugins are found and loaded at run time; a binary built on a machine
//! without any says what is missing.
//!
//! * [`PjrtBackend`] finds devices and opens them; `find` says where plugins are looked for.
//! * `ops` and `hlo` write ops and graphs as StableHLO text, `program` is such a text with its arguments, `cache` has them compiled, `warm` knows
//!   which.
//! * `engine` runs programs, `memory` has what tensors are on the device.
//! * `sys` has the raw declarations, `plugin` loads and checks a plugin, `client` and `event` own what it hands out.
//! * [`topology`] compiles programs for TPUs that are not there.

// PJRT is reached through C functions and raw addresses; every block says why it holds.
#![allow(unsafe_code)]

mod backend;
mod cache;
mod client;
mod engine;
mod event;
pub mod find;
mod hlo;
mod memory;
mod ops;
mod plugin;
mod program;
mod sys;
#[cfg(test)]
mod sys_tests;
pub mod topology;
mod warm;

pub use backend::PjrtBackend;
pub use cache::Counts;
pub use engine::PjrtEngine;
pub use plugin::{PjrtError, Plugin};
