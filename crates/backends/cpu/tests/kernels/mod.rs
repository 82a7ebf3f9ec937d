//! Every kernel against plain loops, at every level of vector instructions that this CPU has; and
//! the engine's batches.

#![allow(clippy::unwrap_used)] // A test reports failures by panicking.

mod color;
mod resize;
mod together;
mod transpose;
mod weights;
