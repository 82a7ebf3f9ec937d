//! Cutting sizes into blocks.

use std::ops::Range;

/// `index`th of the runs of at most `size` that cover `0..len`.
pub(super) fn block(len: usize, size: usize, index: usize) -> Range<usize> {
    let start = (index * size).min(len);
    start..len.min(start + size)
}

/// The largest of `sizes`, which are in falling order and end with one, that `left` fills.
pub(super) fn largest(sizes: &[usize], left: usize) -> usize {
    sizes.iter().copied().find(|size| *size <= left).unwrap_or(1)
}
