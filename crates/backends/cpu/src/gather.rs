//! Taking elements or rows by index.
//!
//! All indices are checked before anything is written; [`Indices`] is the proof. A negative index
//! counts from the end: `-1` is the last element.

use crate::levels::simd_levels;
use crate::parts::DisjointSlice;
use crate::simd::Simd;
use crate::team::Team;

/// Minimum output bytes for which another thread is worth waking.
const TASK_BYTES_MIN: usize = 64 * 1024;
/// Distance of prefetching ahead of the copy, in rows.
const PREFETCH_ROWS: usize = 8;
/// Distance of prefetching ahead of the copy, in single elements.
const PREFETCH_ELEMENTS: usize = 64;
/// An axis of more bytes is not in the nearest caches: its elements are prefetched, which halved
/// the time for 64 MiB.
const NEAR_BYTES_MAX: usize = 1024 * 1024;

/// Indices that were checked to be below a known length.
#[derive(Clone, Debug)]
pub struct Indices<'a> {
    values: std::borrow::Cow<'a, [u32]>,
    below: usize,
}

/// The first index that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    /// Position of the index among the indices.
    pub position: usize,
    /// The index itself.
    pub index: i64,
    /// The length of the axis.
    pub len: usize,
}

impl<'a> Indices<'a> {
    /// Checks indices against the length of their axis.
    pub fn unsigned(values: &'a [u32], len: usize) -> Result<Indices<'a>, OutOfRange> {
        let mut largest = 0;
        max_unsigned(Simd::detect(), values, &mut largest);
        if values.is_empty() || (largest as usize) < len {
            return Ok(Indices { values: values.into(), below: len });
        }
        let position = values.iter().position(|&value| value as usize >= len).unwrap_or(0);
        Err(OutOfRange { position, index: i64::from(values[position]), len })
    }

    /// Checks indices against the length of their axis; negative indices count from its end.
    pub fn signed(values: &'a [i32], len: usize) -> Result<Indices<'a>, OutOfRange> {
        let mut smallest = 0;
        min_signed(Simd::detect(), values, &mut smallest);
        if smallest >= 0 {
            return Indices::unsigned(bytemuck::cast_slice(values), len);
        }
        let mut resolved = Vec::with_capacity(values.len());
        for (position, &value) in values.iter().enumerate() {
            let index = i64::from(value);
            let from_start = if index < 0 { index + len as i64 } else { index };
            if from_start < 0 || from_start >= len as i64 {
                return Err(OutOfRange { position, index, len });
            }
            // On an axis of more than 2^32 elements, a negative index could resolve to a value
            // beyond `u32`.
            resolved.push(u32::try_from(from_start).map_err(|_| OutOfRange { position, index, len })?);
        }
        Ok(Indices { values: resolved.into(), below: len })
    }

    /// Number of indices.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// True if there are no indices.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

simd_levels! {
    fn max_unsigned(values: &[u32], largest: &mut u32) {
        *largest = values.iter().copied().fold(0, u32::max);
    }
}

simd_levels! {
    fn min_signed(values: &[i32], smallest: &mut i32) {
        *smallest = values.iter().copied().fold(0, i32::min);
    }
}

/// Copies whole rows: `output[o, n, ..] = input[o, indices[n], ..]`. The input is `[outer, axis,
/// row_bytes]`, and the indices were checked against this axis.
///
/// # Panics
/// If a slice does not have its stated size.
pub fn take(team: &Team, indices: &Indices<'_>, outer: usize, row_bytes: usize, input: &[u8], output: &mut [u8]) {
    assert_eq!(input.len(), outer * indices.below * row_bytes, "the input must have the stated size");
    assert_eq!(output.len(), outer * indices.len() * row_bytes, "the output must have the stated size");
    if output.is_empty() {
        return;
    }
    match row_bytes {
        1 => take_elements::<1>(team, indices, input, output),
        2 => take_elements::<2>(team, indices, input, output),
        4 => take_elements::<4>(team, indices, input, output),
        8 => take_elements::<8>(team, indices, input, output),
        16 => take_elements::<16>(team, indices, input, output),
        _ => take_rows(team, indices, row_bytes, input, output),
    }
}

/// Copies single elements along an axis: `output[o, n, i] = input[o, indices[o, n, i], i]`. The
/// input is `[outer, axis, inner]` elements of `element_bytes`, and there are `outer · n · inner`
/// indices.
///
/// # Panics
/// If a slice does not have its stated size, or elements are not 1, 2, 4 or 8 bytes.
pub fn take_along(
    team: &Team,
    indices: &Indices<'_>,
    (outer, inner): (usize, usize),
    element_bytes: usize,
    input: &[u8],
    output: &mut [u8],
) {
    assert_eq!(input.len(), outer * indices.below * inner * element_bytes, "the input must have the stated size");
    assert_eq!(output.len(), indices.len() * element_bytes, "the output must have the stated size");
    assert!(output.is_empty() || indices.len().is_multiple_of(outer * inner), "indices must come in whole rows");
    if output.is_empty() {
        return;
    }
    match element_bytes {
        1 => along_elements::<1>(team, indices, (outer, inner), input, output),
        2 => along_elements::<2>(team, indices, (outer, inner), input, output),
        4 => along_elements::<4>(team, indices, (outer, inner), input, output),
        8 => along_elements::<8>(team, indices, (outer, inner), input, output),
        _ => panic!("elements of {element_bytes} bytes cannot be gathered"),
    }
}

fn take_elements<const N: usize>(team: &Team, indices: &Indices<'_>, input: &[u8], output: &mut [u8]) {
    let (input, output) = (input.as_chunks::<N>().0, output.as_chunks_mut::<N>().0);
    let (count, below) = (indices.len(), indices.below);
    let parts = DisjointSlice::new(output);
    team.run_ranges(parts.len(), TASK_BYTES_MIN / N, &|range| {
        let mut at = range.start;
        while at < range.end {
            let (outer, first) = (at / count, at % count);
            let len = (count - first).min(range.end - at);
            let axis = &input[outer * below..(outer + 1) * below];
            // SAFETY: the ranges are disjoint.
            let to = unsafe { parts.range(at..at + len) };
            // SAFETY: `Indices` has checked that every index is below `below`, the length of
            // `axis`.
            unsafe { pick(axis, &indices.values[first..first + len], to) };
            at += len;
        }
    });
}

/// Copies `axis[index]` for each index.
///
/// # Safety
/// Every index must be below the length of the axis.
unsafe fn pick<const N: usize>(axis: &[[u8; N]], indices: &[u32], to: &mut [[u8; N]]) {
    let ahead = if size_of_val(axis) > NEAR_BYTES_MAX { indices.get(PREFETCH_ELEMENTS..).unwrap_or(&[]) } else { &[] };
    let (to_ahead, to_last) = to.split_at_mut(ahead.len());
    for ((to, &index), &soon) in to_ahead.iter_mut().zip(indices).zip(ahead) {
        prefetch(axis.as_ptr().wrapping_add(soon as usize).cast());
        // SAFETY: the caller guarantees the indices.
        *to = unsafe { *axis.get_unchecked(index as usize) };
    }
    for (to, &index) in to_last.iter_mut().zip(&indices[ahead.len()..]) {
        // SAFETY: as above.
        *to = unsafe { *axis.get_unchecked(index as usize) };
    }
}

fn take_rows(team: &Team, indices: &Indices<'_>, row_bytes: usize, input: &[u8], output: &mut [u8]) {
    let (count, below) = (indices.len(), indices.below);
    let rows = output.len() / row_bytes;
    let parts = DisjointSlice::new(output);
    team.run_ranges(rows, (TASK_BYTES_MIN / row_bytes).max(1), &|range| {
        for row in range {
            let (outer, nth) = (row / count, row % count);
            let axis = &input[outer * below * row_bytes..(outer + 1) * below * row_bytes];
            if let Some(&ahead) = indices.values.get(nth + PREFETCH_ROWS) {
                let row = axis.as_ptr().wrapping_add(ahead as usize * row_bytes);
                prefetch(row);
                prefetch(row.wrapping_add(64));
            }
            let start = indices.values[nth] as usize * row_bytes;
            // SAFETY: each row is written by exactly one task.
            let to = unsafe { parts.range(row * row_bytes..(row + 1) * row_bytes) };
            to.copy_from_slice(&axis[start..start + row_bytes]);
        }
    });
}

/// Prefetches memory that will be read soon.
#[inline(always)]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: prefetching is a hint; no address can make it fail. SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

fn along_elements<const N: usize>(
    team: &Team,
    indices: &Indices<'_>,
    (outer, inner): (usize, usize),
    input: &[u8],
    output: &mut [u8],
) {
    let (input, output) = (input.as_chunks::<N>().0, output.as_chunks_mut::<N>().0);
    let below = indices.below;
    let count = indices.len() / (outer * inner);
    let parts = DisjointSlice::new(output);
    if inner == 1 {
        // The last axis: all indices of a row pick from one run of elements.
        team.run_ranges(parts.len(), TASK_BYTES_MIN / N, &|range| {
            let mut at = range.start;
            while at < range.end {
                let (row, first) = (at / count, at % count);
                let len = (count - first).min(range.end - at);
                let axis = &input[row * below..(row + 1) * below];
                // SAFETY: the ranges are disjoint.
                let to = unsafe { parts.range(at..at + len) };
                // SAFETY: `Indices` has checked that every index is below `below`, the length of
                // `axis`.
                unsafe { pick(axis, &indices.values[at..at + len], to) };
                at += len;
            }
        });
        return;
    }
    team.run_ranges(parts.len(), TASK_BYTES_MIN / N, &|range| {
        let mut at = range.start;
        while at < range.end {
            let (row, first) = (at / inner, at % inner);
            let len = (inner - first).min(range.end - at);
            let axis = &input[row / count * below * inner..(row / count + 1) * below * inner];
            // SAFETY: the ranges are disjoint.
            let to = unsafe { parts.range(at..at + len) };
            for (column, (to, &index)) in to.iter_mut().zip(&indices.values[at..at + len]).enumerate() {
                *to = axis[index as usize * inner + first + column];
            }
            at += len;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: usize) -> Vec<u8> {
        (0..len).map(|index| (index * 7919 % 251) as u8).collect()
    }

    fn check_take(outer: usize, axis: usize, row_bytes: usize, count: usize) {
        let input = bytes(outer * axis * row_bytes);
        let values: Vec<i32> =
            (0..count).map(|n| (n * 31 % axis) as i32 - if n % 3 == 0 { axis as i32 } else { 0 }).collect();
        let indices = Indices::signed(&values, axis).expect("indices in range");
        for team in [Team::single(), Team::new(2)] {
            let mut output = vec![0; outer * count * row_bytes];
            take(&team, &indices, outer, row_bytes, &input, &mut output);
            for (n, row) in output.chunks(row_bytes.max(1)).enumerate() {
                let index = values[n % count].rem_euclid(axis as i32) as usize;
                let start = (n / count * axis + index) * row_bytes;
                assert_eq!(row, &input[start..start + row_bytes], "{outer} {axis} {row_bytes} {n}");
            }
        }
    }

    #[test]
    fn rows_of_every_size_are_taken() {
        for row_bytes in [0, 1, 2, 3, 4, 8, 12, 16, 20, 768] {
            check_take(1, 1, row_bytes, 5);
            check_take(3, 7, row_bytes, 11);
            check_take(2, 101, row_bytes, 20_011 / (row_bytes + 1) + 1);
        }
        check_take(0, 7, 4, 3);
        check_take(3, 7, 4, 0);
    }

    #[test]
    fn elements_are_taken_along_an_axis() {
        for (outer, axis, inner, count) in [(3, 5, 7, 11), (3, 5, 1, 11), (700, 130, 1, 129), (1, 9, 1, 40_000)] {
            let input: Vec<u32> = (0..outer * axis * inner).map(|value| value as u32).collect();
            let values: Vec<u32> = (0..outer * count * inner).map(|n| (n * 13 % axis) as u32).collect();
            let indices = Indices::unsigned(&values, axis).expect("indices in range");
            let mut output = vec![0_u32; values.len()];
            let out = bytemuck::cast_slice_mut(&mut output);
            take_along(&Team::new(2), &indices, (outer, inner), 4, bytemuck::cast_slice(&input), out);
            for (n, got) in output.iter().enumerate() {
                let (o, i) = (n / (count * inner), n % inner);
                assert_eq!(*got, input[(o * axis + values[n] as usize) * inner + i]);
            }
        }
    }

    #[test]
    fn indices_out_of_range_are_refused() {
        let refused = Indices::unsigned(&[0, 3, 9], 3).expect_err("three is out of range");
        assert_eq!(refused, OutOfRange { position: 1, index: 3, len: 3 });
        let refused = Indices::signed(&[0, -3, -4], 3).expect_err("minus four is out of range");
        assert_eq!(refused, OutOfRange { position: 2, index: -4, len: 3 });
        let refused = Indices::signed(&[i32::MAX, -1], 3).expect_err("the largest is out of range");
        assert_eq!(refused.position, 0);
        assert!(Indices::unsigned(&[0], 0).is_err());
        assert!(Indices::unsigned(&[], 0).is_ok());
    }
}
