//! The PJRT backend: TPUs, and any other device with a PJRT plugin. Plugins are found and loaded at
//! run time. On a machine without any, the backend reports where it searched.
//!
//! * [`PjrtBackend`] finds devices and opens them. `find` searches for plugins.
//! * `ops` and `hlo` write ops and graphs as StableHLO text. A `program` is such a text with its
//!   arguments. `cache` keeps compiled programs, and `warm` records which ops have one.
//! * `engine` runs programs. `memory` owns the tensors on the device.
//! * `sys` has the raw declarations. `plugin` loads and checks a plugin. `client` and `event` own
//!   the objects that it creates.
//! * [`topology`] compiles programs for TPUs that are not installed.

// PJRT is reached through C functions and raw addresses. Every `unsafe` block states why it is
// sound.
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
pub use cache::ProgramCounts;
pub use engine::PjrtEngine;
pub use plugin::{PjrtError, Plugin};
