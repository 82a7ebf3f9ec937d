//! Tests of the engine on a backend's own devices: faults, kernel forms that the suite does not
//! reach, joined maps, and pieces.
//!
//! Every backend over `panoply_wgsl_gpu` includes this folder as a module of its tests. Beside it
//! the backend has a module `test_driver` with the types and functions that these tests import: its
//! backend and engine, and how to open, limit and lose them. If the machine has no device, the
//! tests print that they are skipped.

mod caches;
pub(crate) mod fault;
pub(crate) mod form;
mod joined;
mod piece;
mod piece_claim;
mod piece_image;
pub(crate) mod transfer;
