//! The kernels against plain loops, at every level of vector instructions that this CPU has.

#![allow(clippy::unwrap_used)] // A test reports failures by panicking.

mod convert;
mod plans;
mod vmath;
