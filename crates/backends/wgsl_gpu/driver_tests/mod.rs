//! The engine on a backend's own devices: what goes wrong, forms that the suite does not reach, joined maps, and pieces.
//!
//! Every backend over `panoply_wgsl_gpu` has this folder as a module of its tests, and beside it a module `test_driver` with the
//! types and functions that are imported from there: its backend and engine, how they are opened, limited and lost. Where the
//! machine has no device the tests say that they are skipped.

mod caches;
pub(crate) mod fault;
pub(crate) mod form;
mod joined;
mod piece;
mod piece_claim;
mod piece_image;
pub(crate) mod transfer;
