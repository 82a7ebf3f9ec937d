//! Scans along a contiguous axis.
//!
//! With several threads, a long row is read twice: once to compute the total of each chunk, once to
//! write the chunks. Passing the end of one chunk to the next would save the first reading, but a
//! preempted thread would then stop all the others. A single thread reads once, and computes
//! exactly the same result.

use panoply_core::dtype::Element;

use super::operator::Operator;
use super::{BLOCK, Direction};
use crate::extents::Extents;
use crate::parts::DisjointSlice;
use crate::simd::Simd;
use crate::team::Team;

/// Elements in a chunk: the chunk and its output fit half of a small second-level cache.
const CHUNK_ELEMENTS: usize = 1 << 15;
/// Minimum elements of rows that are split among threads.
const LONG_ROW_LEN: usize = 4 * CHUNK_ELEMENTS;
/// Lanes in a group: a group is accumulated in halves, and the groups of a block one after the
/// other.
const GROUP: usize = 16;

pub(super) fn scan<T: Element, O: Operator<T>>(
    simd: Simd,
    team: &Team,
    input: &[T],
    extents: Extents,
    direction: Direction,
    out: &mut [T],
) {
    let len = extents.axis;
    if len >= LONG_ROW_LEN && team.threads() > 1 {
        for (row, out) in input.chunks_exact(len).zip(out.chunks_exact_mut(len)) {
            scan_long_row::<T, O>(simd, team, row, direction, out);
        }
        return;
    }
    let shared = DisjointSlice::new(out);
    team.run_ranges(extents.outer, CHUNK_ELEMENTS.div_ceil(len), &|rows| {
        for row in rows {
            let range = row * len..(row + 1) * len;
            // SAFETY: every row belongs to one range.
            let out = unsafe { shared.range(range.clone()) };
            scan_row::<T, O>(simd, &input[range], direction, out);
        }
    });
}

/// The chunk's range in memory; chunks are numbered in the direction of the scan.
fn chunk_range(chunk: usize, len: usize, direction: Direction) -> std::ops::Range<usize> {
    let (start, end) = (chunk * CHUNK_ELEMENTS, len.min((chunk + 1) * CHUNK_ELEMENTS));
    if direction.reverse { len - end..len - start } else { start..end }
}

fn scan_row<T: Element, O: Operator<T>>(simd: Simd, row: &[T], direction: Direction, out: &mut [T]) {
    let mut before = O::NOTHING;
    for chunk in 0..row.len().div_ceil(CHUNK_ELEMENTS) {
        let range = chunk_range(chunk, row.len(), direction);
        let total = scan_chunk::<T, O>(simd, &row[range.clone()], direction, before, Some(&mut out[range]));
        before = O::merge(before, total);
    }
}

fn scan_long_row<T: Element, O: Operator<T>>(simd: Simd, team: &Team, row: &[T], direction: Direction, out: &mut [T]) {
    let chunks = row.len().div_ceil(CHUNK_ELEMENTS);
    let mut befores = vec![O::NOTHING; chunks];
    let shared = DisjointSlice::new(&mut befores);
    team.run(chunks, &|chunk| {
        let part = &row[chunk_range(chunk, row.len(), direction)];
        // SAFETY: every task has its own chunk.
        let total = unsafe { shared.range(chunk..chunk + 1) };
        total[0] = scan_chunk::<T, O>(simd, part, direction, O::NOTHING, None);
    });
    let mut before = O::NOTHING;
    for total in &mut befores {
        let after = O::merge(before, *total);
        *total = std::mem::replace(&mut before, after);
    }
    let shared = DisjointSlice::new(out);
    team.run(chunks, &|chunk| {
        let range = chunk_range(chunk, row.len(), direction);
        // SAFETY: every task has its own chunk.
        let out = unsafe { shared.range(range.clone()) };
        scan_chunk::<T, O>(simd, &row[range], direction, befores[chunk], Some(out));
    });
}

/// Scans one chunk after `before` and returns the total of the chunk alone. Without `out`, only the
/// total is computed, in exactly the same way.
fn scan_chunk<T: Element, O: Operator<T>>(
    simd: Simd,
    chunk: &[T],
    direction: Direction,
    before: O::Carry,
    out: Option<&mut [T]>,
) -> O::Carry {
    #[cfg(target_arch = "x86_64")]
    if O::IS_F32_SUM && simd.min(Simd::detect()) == Simd::Avx512 {
        return vector_chunk::<T, O>(chunk, direction, before, out);
    }
    if O::IN_BLOCKS {
        scan_blocks::<T, O>(chunk, direction, before, out)
    } else {
        scan_one_by_one::<T, O>(chunk, direction, before, out)
    }
}

#[cfg(target_arch = "x86_64")]
fn vector_chunk<T: Element, O: Operator<T>>(
    chunk: &[T],
    direction: Direction,
    before: O::Carry,
    out: Option<&mut [T]>,
) -> O::Carry {
    let chunk: &[f32] = bytemuck::cast_slice(chunk);
    assert_eq!(size_of::<O::Carry>(), size_of::<f64>());
    // SAFETY: `IS_F32_SUM` guarantees that the carry is f64; AVX-512 was found by `Simd::detect`.
    unsafe {
        let before = std::mem::transmute_copy::<O::Carry, f64>(&before);
        let total = match out {
            Some(out) => super::vector::scan_chunk::<true>(chunk, direction, before, bytemuck::cast_slice_mut(out)),
            None => super::vector::scan_chunk::<false>(chunk, direction, before, &mut []),
        };
        std::mem::transmute_copy::<f64, O::Carry>(&total)
    }
}

/// Scans a chunk element by element, for operators that are exact or fast enough sequentially.
fn scan_one_by_one<T: Element, O: Operator<T>>(
    chunk: &[T],
    direction: Direction,
    before: O::Carry,
    mut out: Option<&mut [T]>,
) -> O::Carry {
    let mut total = O::NOTHING;
    for step in 0..chunk.len() {
        let place = if direction.reverse { chunk.len() - 1 - step } else { step };
        let earlier = total;
        total = O::advance(total, O::lift(chunk[place]));
        if let Some(out) = &mut out {
            let running = if direction.exclusive { earlier } else { total };
            out[place] = O::settle(O::merge(before, running), O::IDENTITY);
        }
    }
    total
}

/// Scans a chunk block by block, for sums of floats.
fn scan_blocks<T: Element, O: Operator<T>>(
    chunk: &[T],
    direction: Direction,
    before: O::Carry,
    mut out: Option<&mut [T]>,
) -> O::Carry {
    let len = chunk.len();
    let mut total = O::NOTHING;
    let mut done = 0;
    while done < len {
        let count = BLOCK.min(len - done);
        let place = if direction.reverse { len - done - count } else { done };
        let elements = &chunk[place..place + count];
        let mut locals = [O::IDENTITY; BLOCK];
        if direction.reverse {
            locals.iter_mut().zip(elements.iter().rev()).for_each(|(local, element)| *local = O::lift(*element));
        } else {
            locals.iter_mut().zip(elements).for_each(|(local, element)| *local = O::lift(*element));
        }
        accumulate::<T, O>(&mut locals);
        if let Some(out) = &mut out {
            settle::<T, O>(O::merge(before, total), &locals, direction, &mut out[place..place + count]);
        }
        total = O::advance(total, locals[BLOCK - 1]);
        done += count;
    }
    total
}

/// Turns a block's locals into their running values.
fn accumulate<T: Element, O: Operator<T>>(locals: &mut [O::Local; BLOCK]) {
    let (groups, _) = locals.as_chunks_mut::<GROUP>();
    for group in groups.iter_mut() {
        let mut step = 1;
        while step < GROUP {
            let earlier = *group;
            for lane in step..GROUP {
                group[lane] = O::join(earlier[lane - step], earlier[lane]);
            }
            step *= 2;
        }
    }
    for index in 1..groups.len() {
        let last = groups[index - 1][GROUP - 1];
        for local in &mut groups[index] {
            *local = O::join(last, *local);
        }
    }
}

/// Writes a block's running values.
fn settle<T: Element, O: Operator<T>>(
    carry: O::Carry,
    locals: &[O::Local; BLOCK],
    direction: Direction,
    out: &mut [T],
) {
    let count = out.len();
    let mut settled = [O::settle(carry, O::IDENTITY); BLOCK];
    if direction.exclusive {
        for lane in 1..BLOCK {
            settled[lane] = O::settle(carry, locals[lane - 1]);
        }
    } else {
        for lane in 0..BLOCK {
            settled[lane] = O::settle(carry, locals[lane]);
        }
    }
    if direction.reverse {
        settled[..count].reverse();
    }
    out.copy_from_slice(&settled[..count]);
}
