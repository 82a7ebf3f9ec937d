//! Splitting of sizes into blocks.

use std::ops::Range;

/// The range of block `index` of those that split `0..len` into blocks of at most `size`.
pub(super) fn block(len: usize, size: usize, index: usize) -> Range<usize> {
    let start = (index * size).min(len);
    start..len.min(start + size)
}

/// The largest of `sizes` that is at most `left`. `sizes` are in descending order and end with 1.
pub(super) fn largest(sizes: &[usize], left: usize) -> usize {
    sizes.iter().copied().find(|size| *size <= left).unwrap_or(1)
}
