//! Matrix transposition with tiles of 32 × 32, in `transpose.wgsl`.
//!
//! Parameters: matrices, rows, columns, tiles along rows and columns, the offset. Elements have
//! four bytes.

use super::template::Template;

/// Swaps the last two axes of contiguous elements of four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransposeKernel;

impl TransposeKernel {
    pub(super) fn source(&self) -> String {
        Template::new(include_str!("transpose.wgsl")).text()
    }
}
