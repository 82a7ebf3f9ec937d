//! Bounds on what one step may claim. A model's file may state any size, so each size is checked
//! against a named bound before it is multiplied, allocated or used as a loop count.

use std::cell::Cell;

use crate::error::{Error, Result};

/// The most bytes that one array may take. A larger claim is a mistake or an attack.
pub const ARRAY_BYTES_MAX: usize = 1 << 32;
/// The most dimensions of an array.
pub(crate) const RANK_MAX: usize = 32;
/// The largest size that a file may state. Two sizes can be multiplied and added to without
/// overflow.
pub(crate) const SIZE_MAX: usize = 1 << 31;
/// The most elements that a plain loop widens to 64 or 128 bits, or allocates an entry for.
pub(crate) const HOST_ELEMENTS_MAX: usize = 1 << 27;
/// The most iterations of one plain loop: they take minutes.
pub(crate) const WORK_MAX: usize = 1 << 37;
/// The most arrays in a list that is made at once.
pub(crate) const LIST_MAX: usize = 1 << 20;
/// The most texts of one array, and the most bytes that they may have together.
pub(crate) const TEXTS_MAX: usize = 1 << 24;
pub(crate) const TEXT_BYTES_MAX: usize = 1 << 30;

thread_local! {
    /// Number of bits by which this thread's bounds are shifted right.
    static LOWERED_BITS: Cell<u32> = const { Cell::new(0) };
}

/// Runs `run` with bounds lowered by `bits` bits, so that a test reaches them with little memory
/// and time.
pub(crate) fn lowered<T>(bits: u32, run: impl FnOnce() -> T) -> T {
    LOWERED_BITS.set(bits);
    let made = run();
    LOWERED_BITS.set(0);
    made
}

/// The bound as it applies on this thread.
pub(crate) fn bound(usual: usize) -> usize {
    usual >> LOWERED_BITS.get()
}

fn beyond<T>(what: &'static str, limit: usize, got: Option<usize>) -> Result<T> {
    Err(Error::Limit { what, limit: limit as u64, got: got.map_or(u64::MAX, |got| got as u64) })
}

/// The product of the non-zero sizes. `None` if it overflows.
fn product(dims: &[usize]) -> Option<usize> {
    dims.iter().filter(|dim| **dim != 0).try_fold(1_usize, |product, dim| product.checked_mul(*dim))
}

/// Number of elements in a shape. Fails if the product of the non-zero sizes exceeds
/// [`ARRAY_BYTES_MAX`].
pub(crate) fn count_of(dims: &[usize]) -> Result<usize> {
    if dims.len() > RANK_MAX {
        return beyond("the dimensions of an array", RANK_MAX, Some(dims.len()));
    }
    match product(dims) {
        Some(count) if count <= bound(ARRAY_BYTES_MAX) => Ok(if dims.contains(&0) { 0 } else { count }),
        got => beyond("the elements of an array", bound(ARRAY_BYTES_MAX), got),
    }
}

/// As [`count_of`], for arrays that a plain loop allocates itself. Fails beyond
/// `HOST_ELEMENTS_MAX`.
pub(crate) fn host_count(dims: &[usize]) -> Result<usize> {
    match count_of(dims)? {
        count if count <= bound(HOST_ELEMENTS_MAX) => Ok(count),
        count => beyond("the elements that one step on the host computes", bound(HOST_ELEMENTS_MAX), Some(count)),
    }
}

/// An array of zeros for a plain loop to write to.
pub(crate) fn zeros(dims: &[usize]) -> Result<Vec<f64>> {
    Ok(vec![0.0; host_count(dims)?])
}

/// Refuses nested loops that would run for hours. `turns` holds the number of iterations of each
/// loop.
pub(crate) fn work(turns: &[usize]) -> Result<()> {
    let total = turns.iter().fold(1_u128, |total, turns| total.saturating_mul(*turns as u128));
    let limit = bound(WORK_MAX);
    match total <= limit as u128 {
        true => Ok(()),
        false => beyond("the multiplications of one step on the host", limit, usize::try_from(total).ok()),
    }
}

/// Refuses lists of too many arrays. Even an array without elements takes memory.
pub(crate) fn list_len(len: usize) -> Result<()> {
    match len <= bound(LIST_MAX) {
        true => Ok(()),
        false => beyond("the arrays of a list", bound(LIST_MAX), Some(len)),
    }
}

/// Converts a size given as a 64-bit integer.
pub(crate) fn size_of_int(size: i64) -> Result<usize> {
    match usize::try_from(size) {
        Ok(size) if size <= SIZE_MAX => Ok(size),
        Ok(size) => beyond("a size", SIZE_MAX, Some(size)),
        Err(_) => Err(Error::invalid("a size", "at least 0", size)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_refused_before_anything_is_allocated() {
        assert_eq!(count_of(&[3, 0, 5]).unwrap(), 0);
        assert!(count_of(&[1 << 31, 1 << 31, 0]).is_err(), "a zero hides nothing");
        assert!(count_of(&[usize::MAX, usize::MAX]).is_err());
        assert!(count_of(&[1; 33]).is_err());
        assert!(zeros(&[1 << 28]).is_err());
        assert!(work(&[1 << 20, 1 << 20]).is_err() && work(&[usize::MAX; 40]).is_err());
        assert!(size_of_int(-1).is_err() && size_of_int(i64::MAX).is_err());
        assert_eq!(size_of_int(7).unwrap(), 7);
    }
}
