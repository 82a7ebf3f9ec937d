//! Checks shared by the ops along one axis.

use crate::error::{Error, Result};
use crate::shape::Shape;

/// Checks that the tensor has an axis with this index. `rank` and `axis` name the op and its
/// argument.
pub(super) fn check_axis(shape: &Shape, index: usize, rank: &'static str, axis: &'static str) -> Result<()> {
    if shape.rank() == 0 {
        return Err(Error::RankMismatch { what: rank, expected: "at least 1".into(), got: 0 });
    }
    if index >= shape.rank() {
        return Err(Error::OutOfBounds { what: axis, limit: shape.rank() - 1, got: index });
    }
    Ok(())
}

/// Checks that indices along an axis of `len` elements fit in a `u32`.
pub(super) fn check_positions(len: usize, what: &'static str) -> Result<()> {
    if u32::try_from(len).is_err() {
        return Err(Error::OutOfBounds { what, limit: u32::MAX as usize, got: len });
    }
    Ok(())
}
