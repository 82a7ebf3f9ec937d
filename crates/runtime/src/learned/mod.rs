//! Measurements of one device, learned from the ops that ran there. The router predicts from them.
//!
//! * `model`: how long ops take on the device;
//! * `links`: how long data takes to the device and back.

pub(crate) mod links;
pub(crate) mod model;
