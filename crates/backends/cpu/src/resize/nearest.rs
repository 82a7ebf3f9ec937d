//! Nearest: copies whole pixels regardless of their element type.
//!
//! When an image grows, sixteen bytes of output come from at most sixteen bytes of input. A row is
//! then a sequence of byte shuffles whose tables are computed once.

use super::{Sizes, cover};
use crate::parts::DisjointSlice;
use crate::simd::Simd;
use crate::team::Team;
use bytemuck::Pod;

/// Copies the nearest input pixel to each output pixel.
///
/// # Panics
/// If a slice does not have its stated size, or a non-empty output has an empty input.
pub fn nearest<T: Pod + Send + Sync>(simd: Simd, team: &Team, sizes: &Sizes, input: &[T], output: &mut [T]) {
    if !sizes.check(input.len(), output.len()) {
        return;
    }
    let columns: Vec<usize> = (0..sizes.output.1).map(|x| cover(x, sizes.input.1, sizes.output.1).start).collect();
    let shuffles = Shuffles::new(simd, sizes, &columns, size_of::<T>());
    let (row_in, row_out) = (sizes.row_in(), sizes.row_out());
    let parts = DisjointSlice::new(output);
    team.run_ranges(sizes.rows_out(), sizes.grain(size_of::<T>()), &|rows| {
        // SAFETY: ranges of rows are disjoint, so the ranges of their elements are disjoint too.
        let output = unsafe { parts.range(rows.start * row_out..rows.end * row_out) };
        let mut copied = None;
        for (index, row) in rows.enumerate() {
            let (plane, y) = (row / sizes.output.0, row % sizes.output.0);
            let source = plane * sizes.input.0 + cover(y, sizes.input.0, sizes.output.0).start;
            if copied == Some(source) {
                output.copy_within((index - 1) * row_out..index * row_out, index * row_out);
                continue;
            }
            let from = &input[source * row_in..(source + 1) * row_in];
            let to = &mut output[index * row_out..(index + 1) * row_out];
            match &shuffles {
                Some(shuffles) => shuffles.apply(bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to)),
                None => pick_row(from, sizes.channels, &columns, to),
            }
            copied = Some(source);
        }
    });
}

fn pick_row<T: Copy>(from: &[T], channels: usize, columns: &[usize], to: &mut [T]) {
    match channels {
        1 => pick_pixels::<T, 1>(from, columns, to),
        2 => pick_pixels::<T, 2>(from, columns, to),
        3 => pick_pixels::<T, 3>(from, columns, to),
        4 => pick_pixels::<T, 4>(from, columns, to),
        _ => {
            for (to, &column) in to.chunks_exact_mut(channels).zip(columns) {
                to.copy_from_slice(&from[column * channels..(column + 1) * channels]);
            }
        }
    }
}

fn pick_pixels<T: Copy, const CHANNELS: usize>(from: &[T], columns: &[usize], to: &mut [T]) {
    let from = from.as_chunks::<CHANNELS>().0;
    for (to, &column) in to.as_chunks_mut::<CHANNELS>().0.iter_mut().zip(columns) {
        *to = from[column];
    }
}

/// Bytes of output of one shuffle.
const SHUFFLE_BYTES: usize = 16;

/// The source of each byte of an output row.
struct Shuffles {
    row_in_bytes: usize,
    /// For each whole block of output: the start of its sixteen bytes of input, and the source
    /// index of each output byte.
    blocks: Vec<(u32, [u8; SHUFFLE_BYTES])>,
    /// The sources of the bytes after the last whole block.
    tail: Vec<u32>,
}

impl Shuffles {
    /// Builds the tables. `None` if the CPU lacks the shuffles or a block needs more than sixteen
    /// bytes of input.
    fn new(simd: Simd, sizes: &Sizes, columns: &[usize], element_bytes: usize) -> Option<Shuffles> {
        let (pixel_bytes, row_in_bytes) = (sizes.channels * element_bytes, sizes.row_in() * element_bytes);
        let row_out_bytes = sizes.row_out() * element_bytes;
        let grows = sizes.output.1 >= sizes.input.1 && row_in_bytes >= SHUFFLE_BYTES;
        if simd.min(Simd::detect()) < Simd::Avx2 || !grows || row_in_bytes.max(row_out_bytes) > u32::MAX as usize {
            return None;
        }
        let source = |byte: usize| (columns[byte / pixel_bytes] * pixel_bytes + byte % pixel_bytes) as u32;
        let whole = row_out_bytes - row_out_bytes % SHUFFLE_BYTES;
        let mut blocks = Vec::with_capacity(whole / SHUFFLE_BYTES);
        for start in (0..whole).step_by(SHUFFLE_BYTES) {
            let sources: [u32; SHUFFLE_BYTES] = std::array::from_fn(|byte| source(start + byte));
            let lowest = sources.iter().copied().min()?;
            let base = lowest.min((row_in_bytes - SHUFFLE_BYTES) as u32);
            if sources.iter().any(|source| source - base >= SHUFFLE_BYTES as u32) {
                return None;
            }
            blocks.push((base, sources.map(|source| (source - base) as u8)));
        }
        Some(Shuffles { row_in_bytes, blocks, tail: (whole..row_out_bytes).map(source).collect() })
    }

    fn apply(&self, from: &[u8], to: &mut [u8]) {
        let whole = self.blocks.len() * SHUFFLE_BYTES;
        assert!(from.len() == self.row_in_bytes && to.len() == whole + self.tail.len(), "rows must fit the tables");
        let (blocks, tail) = to.split_at_mut(whole);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: tables are built only if the CPU has AVX2, which includes the shuffles; the rows
        // fit the tables.
        unsafe {
            shuffle_blocks(&self.blocks, from, blocks);
        }
        #[cfg(not(target_arch = "x86_64"))]
        for ((base, indices), to) in self.blocks.iter().zip(blocks.chunks_exact_mut(SHUFFLE_BYTES)) {
            indices.iter().zip(to).for_each(|(index, to)| *to = from[*base as usize + *index as usize]);
        }
        self.tail.iter().zip(tail).for_each(|(source, to)| *to = from[*source as usize]);
    }
}

/// # Safety
/// Each block's sixteen bytes from its base on must be within `from`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "ssse3")]
unsafe fn shuffle_blocks(blocks: &[(u32, [u8; SHUFFLE_BYTES])], from: &[u8], to: &mut [u8]) {
    use std::arch::x86_64::{_mm_loadu_si128, _mm_shuffle_epi8, _mm_storeu_si128};
    for ((base, indices), to) in blocks.iter().zip(to.as_chunks_mut::<SHUFFLE_BYTES>().0) {
        // SAFETY: the caller guarantees the source; the table and the target are sixteen bytes.
        unsafe {
            let bytes = _mm_loadu_si128(from.as_ptr().add(*base as usize).cast());
            let table = _mm_loadu_si128(indices.as_ptr().cast());
            _mm_storeu_si128(to.as_mut_ptr().cast(), _mm_shuffle_epi8(bytes, table));
        }
    }
}
