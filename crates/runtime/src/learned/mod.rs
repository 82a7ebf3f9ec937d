//! What was learned about one device from the ops that ran there: the router predicts from it.
//!
//! * `model`: how long ops take on the device;
//! * `links`: how long data takes to get there and back.

pub(crate) mod links;
pub(crate) mod model;
