//! The kernels against plain loops, at every level of vector instructions that this CPU has.

#![allow(clippy::unwrap_used)] // A test reports failures by panicking.

mod keep;
mod metric;
mod passing_rows;
mod rank;
mod search;
mod sort;
mod topk;
