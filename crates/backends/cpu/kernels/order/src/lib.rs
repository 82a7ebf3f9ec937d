//! Sorting, selection and search of the CPU backend.
#![allow(unsafe_code)] // SIMD intrinsics, and outputs that threads share.

pub mod search;
pub mod sort;
pub mod topk;

use panoply_cpu_machine::{extents, lanes, parts, scratch, simd, team};

/// For the tests.
#[doc(hidden)]
pub mod internals {
    pub use crate::search::{MetricOrder, PassingRows, Scan};
}
