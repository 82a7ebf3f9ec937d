//! A vector times the weights of a network, which are packed once. A strip is a group of columns
//! whose sums fit in registers, stored row after row.
//!
//! In the matrix itself, neighbouring rows of a strip are as far apart as the matrix is wide: with
//! widths that are powers of two they share a few cache sets, and each row is on a page of its own.
//! A strip is read in order instead. Each thread gets the same strips every time, so that the
//! core's own cache keeps them.

use super::element::{Accumulator, Operand, Output};
use super::epilogue::WriteBack;
use super::kernel::Isa;
use super::packed::PackedRight;
use super::view::MatRef;
use super::workspace::OutOfMemory;
use crate::simd::Simd;
use crate::team::Team;

/// Columns of a strip: their sums fill half the vector registers.
const WIDTH: usize = if cfg!(target_arch = "x86_64") { 128 } else { 32 };
const WIDTH_AVX2: usize = 64;

/// Identifies the packed form to [`PackedRight`].
struct Strips;

/// Whether packing pays off: the lines (columns of the right operand) are adjacent in memory, and
/// they fill a strip.
pub(super) fn suits<T>(lines: &MatRef<'_, T>) -> bool {
    lines.row_stride() == 1 && lines.col_stride() != 1 && lines.rows() >= WIDTH
}

/// Writes the product of `vector` and the lines. `right` holds the lines as strips, or receives
/// them.
pub(super) fn multiply<T: Operand, R: Output<Acc = T::Acc>>(
    team: Option<&Team>,
    isa: Isa,
    lines: &MatRef<'_, T>,
    vector: &[T::Acc],
    write: &WriteBack<'_, R>,
    right: &mut PackedRight,
) -> Result<(), OutOfMemory> {
    match isa.simd {
        Simd::Avx2 => multiply_in::<T, R, WIDTH_AVX2>(team, isa, lines, vector, write, right),
        _ => multiply_in::<T, R, WIDTH>(team, isa, lines, vector, write, right),
    }
}

fn multiply_in<T: Operand, R: Output<Acc = T::Acc>, const WIDTH: usize>(
    team: Option<&Team>,
    isa: Isa,
    lines: &MatRef<'_, T>,
    vector: &[T::Acc],
    write: &WriteBack<'_, R>,
    right: &mut PackedRight,
) -> Result<(), OutOfMemory> {
    let (strips, strip_words) = (lines.rows().div_ceil(WIDTH), WIDTH * vector.len());
    let (words, is_packed) = right.room::<Strips, T>(strips, strip_words)?;
    if !is_packed {
        pack::<T, WIDTH>(lines, words);
    }
    let words: &[T] = words;
    let body = |index: usize| {
        let strip = &words[index * strip_words..(index + 1) * strip_words];
        let sums: [T::Acc; WIDTH] = match isa.simd {
            // SAFETY: `isa` has only instructions of this CPU.
            #[cfg(target_arch = "x86_64")]
            Simd::Avx512 => unsafe { sum_avx512(strip, vector) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => unsafe { sum_avx2(strip, vector) },
            _ => sum::<T, { cfg!(target_arch = "aarch64") }, WIDTH>(strip, vector),
        };
        let start = index * WIDTH;
        let cols = start..lines.rows().min(start + WIDTH);
        // SAFETY: the columns are inside the result and belong to no other strip, and `sums` holds
        // one sum for each.
        unsafe { write.put(0..1, cols, sums.as_ptr(), WIDTH) };
    };
    match team {
        Some(team) => {
            let each = strips.div_ceil(team.threads());
            team.run(strips.div_ceil(each), &|thread| {
                (thread * each..strips.min((thread + 1) * each)).for_each(body);
            });
        }
        None => (0..strips).for_each(body),
    }
    right.settle::<Strips>(strips, strip_words);
    Ok(())
}

/// Copies the lines into strips. Missing columns of the last strip are zeros.
fn pack<T: Operand, const WIDTH: usize>(lines: &MatRef<'_, T>, words: &mut [T]) {
    let across = lines.transposed();
    for (index, strip) in words.chunks_exact_mut(WIDTH * lines.cols()).enumerate() {
        let start = index * WIDTH;
        let count = WIDTH.min(lines.rows() - start);
        for (k, row) in strip.chunks_exact_mut(WIDTH).enumerate() {
            row[count..].fill(T::zeroed());
            if let Some(from) = across.row_slice(k, start, count) {
                row[..count].copy_from_slice(from);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
unsafe fn sum_avx512<T: Operand, const WIDTH: usize>(strip: &[T], vector: &[T::Acc]) -> [T::Acc; WIDTH] {
    sum::<T, true, WIDTH>(strip, vector)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn sum_avx2<T: Operand, const WIDTH: usize>(strip: &[T], vector: &[T::Acc]) -> [T::Acc; WIDTH] {
    sum::<T, true, WIDTH>(strip, vector)
}

/// The sums of a strip's columns, each in the order of k: the same as without packing.
#[inline(always)]
fn sum<T: Operand, const FUSED: bool, const WIDTH: usize>(strip: &[T], vector: &[T::Acc]) -> [T::Acc; WIDTH] {
    let mut sums = [<T::Acc as bytemuck::Zeroable>::zeroed(); WIDTH];
    let (rows, _) = strip.as_chunks::<WIDTH>();
    for (row, factor) in rows.iter().zip(vector) {
        for lane in 0..WIDTH {
            sums[lane] = sums[lane].plus_product::<FUSED>(row[lane].widen(), *factor);
        }
    }
    sums
}
