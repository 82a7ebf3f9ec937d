//! Matrix times vector: every element of the matrix is used once, so memory bandwidth is the limit
//! and nothing is packed.
//!
//! The matrix is viewed as lines (rows of A, or columns of B), each of which yields one element of
//! the result. Lines with contiguous elements are summed one by one. If neighbouring lines are
//! adjacent in memory, many are summed together. The weights of a network are packed once
//! (`strips`), so that a core reads its part of them from its cache in order.

use std::ops::Range;

use super::element::{Accumulator, Operand, Output};
use super::epilogue::WriteBack;
use super::kernel::Isa;
use super::packed::PackedRight;
use super::strips;
use super::view::MatRef;
use super::workspace::{OutOfMemory, Workspace};
use crate::simd::Simd;
use crate::team::Team;

/// The direction of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResultAxis {
    /// The result is one column: lines are rows.
    Rows,
    /// The result is one row: lines are columns.
    Cols,
}

/// Lines that are summed together: enough that a matrix of at most this width is read in order.
const STRIP: usize = 1024;
/// Lines whose sums stay in registers, if the matrix is in the cache and may be read in any order.
const BLOCK: usize = if cfg!(target_arch = "x86_64") { 128 } else { 32 };
const BLOCK_AVX2: usize = 64;
/// Bytes of a matrix that the cache of one core is expected to keep.
const CACHED_BYTES: usize = 2 << 20;
/// Minimum bytes of the matrix for each thread: as many as one core's cache delivers while another
/// thread starts.
const THREAD_BYTES_MIN: usize = 512 << 10;
/// Minimum lines of a thread; its number of lines is a multiple of this: whole cache lines of
/// neighbours.
const GRAIN: usize = 16;
/// Partial sums of a dot product.
const LANES: usize = 64;
/// Dot products that are computed together, if there are enough registers for their sums.
const DOTS: usize = 4;

/// Writes the product of `lines` (one line per row) and `vector` (one row) to `write`. `right`
/// holds the lines as strips, or receives them.
pub(super) fn multiply<T: Operand, R: Output<Acc = T::Acc>>(
    team: Option<&Team>,
    workspace: &mut Workspace,
    isa: Isa,
    lines: MatRef<'_, T>,
    vector: MatRef<'_, T>,
    write: &WriteBack<'_, R>,
    along: ResultAxis,
    right: Option<&mut PackedRight>,
) -> Result<(), OutOfMemory> {
    let wide: &mut [T::Acc] = workspace.scratch.get(vector.cols())?;
    match vector.row_slice(0, 0, vector.cols()) {
        Some(row) => wide.iter_mut().zip(row).for_each(|(to, element)| *to = element.widen()),
        None => wide.iter_mut().enumerate().for_each(|(k, to)| *to = vector.get(0, k).widen()),
    }
    let wide: &[T::Acc] = wide;
    let threads = bytes_of(&lines) / THREAD_BYTES_MIN;
    let team = team.filter(|_| threads > 1);
    if let Some(right) = right.filter(|_| along == ResultAxis::Cols && strips::suits(&lines)) {
        return strips::multiply(team, isa, &lines, wide, write, right);
    }
    let body = |range: Range<usize>| match isa.simd {
        // SAFETY: `isa` has only instructions of this CPU.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => unsafe { range_avx512(&lines, wide, range, write, along) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => unsafe { range_avx2(&lines, wide, range, write, along) },
        _ => range_loops::<T, R, { cfg!(target_arch = "aarch64") }, BLOCK, 1>(&lines, wide, range, write, along),
    };
    match team {
        // One piece for each thread: parts of a row of the matrix are then as long as possible, and
        // the next product with the same matrix finds the piece in the cache of the same core.
        Some(team) => {
            let piece = lines.rows().div_ceil(threads.min(team.threads())).next_multiple_of(GRAIN);
            team.run(lines.rows().div_ceil(piece.max(1)), &|index| {
                body(index * piece..lines.rows().min((index + 1) * piece));
            });
        }
        None => body(0..lines.rows()),
    }
    Ok(())
}

fn bytes_of<T: Operand>(lines: &MatRef<'_, T>) -> usize {
    lines.rows() * lines.cols() * size_of::<T>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
unsafe fn range_avx512<T: Operand, R: Output<Acc = T::Acc>>(
    lines: &MatRef<'_, T>,
    vector: &[T::Acc],
    range: Range<usize>,
    write: &WriteBack<'_, R>,
    along: ResultAxis,
) {
    range_loops::<T, R, true, BLOCK, DOTS>(lines, vector, range, write, along);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn range_avx2<T: Operand, R: Output<Acc = T::Acc>>(
    lines: &MatRef<'_, T>,
    vector: &[T::Acc],
    range: Range<usize>,
    write: &WriteBack<'_, R>,
    along: ResultAxis,
) {
    range_loops::<T, R, true, BLOCK_AVX2, 1>(lines, vector, range, write, along);
}

#[inline(always)]
fn range_loops<T: Operand, R: Output<Acc = T::Acc>, const FUSED: bool, const BLOCK: usize, const DOTS: usize>(
    lines: &MatRef<'_, T>,
    vector: &[T::Acc],
    range: Range<usize>,
    write: &WriteBack<'_, R>,
    along: ResultAxis,
) {
    for start in range.clone().step_by(STRIP) {
        let count = STRIP.min(range.end - start);
        let mut sums = [<T::Acc as bytemuck::Zeroable>::zeroed(); STRIP];
        if lines.col_stride() == 1 {
            let line = |index: usize| lines.row_slice(index, 0, vector.len()).unwrap_or(&[]);
            let (fours, rest) = sums[..count].as_chunks_mut::<DOTS>();
            let single = start + fours.len() * DOTS;
            for (index, four) in fours.iter_mut().enumerate() {
                let first = start + index * DOTS;
                *four = dots::<T, FUSED, DOTS>(std::array::from_fn(|offset| line(first + offset)), vector);
            }
            for (offset, sum) in rest.iter_mut().enumerate() {
                [*sum] = dots::<T, FUSED, 1>([line(single + offset)], vector);
            }
        } else {
            let is_cached = bytes_of(lines) <= CACHED_BYTES && lines.row_stride() == 1;
            let in_blocks = if is_cached { count / BLOCK * BLOCK } else { 0 };
            let (blocks, rest) = sums[..count].split_at_mut(in_blocks);
            for (index, block) in blocks.chunks_exact_mut(BLOCK).enumerate() {
                sum_block::<T, FUSED, BLOCK>(lines, vector, start + index * BLOCK, block);
            }
            sum_lines_together::<T, FUSED>(lines, vector, start + in_blocks, rest);
        }
        let (rows, cols, ld) = match along {
            ResultAxis::Rows => (start..start + count, 0..1, 1),
            ResultAxis::Cols => (0..1, start..start + count, STRIP),
        };
        // SAFETY: the lines are inside the result and belong to no other range, and `sums` holds
        // `count` sums.
        unsafe { write.put(rows, cols, sums.as_ptr(), ld) };
    }
}

/// The dot products of several lines with the vector, whose elements are read once for all lines.
#[inline(always)]
fn dots<T: Operand, const FUSED: bool, const LINES: usize>(lines: [&[T]; LINES], vector: &[T::Acc]) -> [T::Acc; LINES] {
    #[cfg(target_arch = "x86_64")]
    if LINES == DOTS && FUSED && std::any::TypeId::of::<T>() == std::any::TypeId::of::<f32>() {
        let (lines, vector) = (lines.map(bytemuck::cast_slice::<T, f32>), bytemuck::cast_slice::<T::Acc, f32>(vector));
        // SAFETY: only `range_avx512` asks for `DOTS` lines at once.
        return unsafe { x86::dots(lines, vector) }.map(bytemuck::cast::<f32, T::Acc>);
    }
    let mut sums = [[<T::Acc as bytemuck::Zeroable>::zeroed(); LANES]; LINES];
    let (factors, factors_left) = vector.as_chunks::<LANES>();
    for (place, factors) in factors.iter().enumerate() {
        for (sums, line) in sums.iter_mut().zip(lines) {
            // The chunk always exists; a panic branch here would keep the sums in memory.
            let Some(elements) = line.get(place * LANES..).and_then(|rest| rest.first_chunk::<LANES>()) else {
                continue;
            };
            for lane in 0..LANES {
                sums[lane] = sums[lane].plus_product::<FUSED>(elements[lane].widen(), factors[lane]);
            }
        }
    }
    let mut results = [<T::Acc as bytemuck::Zeroable>::zeroed(); LINES];
    for ((result, sums), line) in results.iter_mut().zip(sums).zip(lines) {
        let left = line.get(factors.len() * LANES..).unwrap_or(&[]);
        *result = sum_of_lanes::<T, FUSED>(sums, left, factors_left);
    }
    results
}

/// The sum of the lanes and of the rest of a line. `lanes` is a copy, so that the lanes of the
/// caller's loop stay in registers; indexing them with a variable would force them into memory.
#[inline(always)]
fn sum_of_lanes<T: Operand, const FUSED: bool>(mut lanes: [T::Acc; LANES], left: &[T], factors: &[T::Acc]) -> T::Acc {
    for (lane, (element, factor)) in lanes.iter_mut().zip(left.iter().zip(factors)) {
        *lane = lane.plus_product::<FUSED>(element.widen(), *factor);
    }
    // A tree keeps the rounding error low and is the same at every level of vector instructions.
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = lanes[lane].plus(lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Dot products of f32 with AVX-512, bit for bit equal to those of [`dots`], where the compiler
/// would split the vectors to add them up.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    const VECTORS: usize = super::LANES / 16;

    /// The dot products of several lines with the vector.
    ///
    /// # Panics
    /// If a line is shorter than the vector.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
    #[allow(clippy::needless_range_loop)] // Constant bounds over registers read best as indices.
    pub(super) fn dots<const LINES: usize>(lines: [&[f32]; LINES], vector: &[f32]) -> [f32; LINES] {
        assert!(lines.iter().all(|line| line.len() >= vector.len()), "a line is shorter than the vector");
        let mut sums = [[_mm512_setzero_ps(); VECTORS]; LINES];
        let whole = vector.len() - vector.len() % super::LANES;
        let mut start = 0;
        while start < whole {
            for part in 0..VECTORS {
                let at = start + part * 16;
                // SAFETY: all lines have as many elements as the vector, and `at + 16` is at most
                // `whole`.
                unsafe {
                    let factors = _mm512_loadu_ps(vector.as_ptr().add(at));
                    for line in 0..LINES {
                        let elements = _mm512_loadu_ps(lines[line].as_ptr().add(at));
                        sums[line][part] = _mm512_fmadd_ps(elements, factors, sums[line][part]);
                    }
                }
            }
            start += super::LANES;
        }
        if whole < vector.len() {
            for part in 0..VECTORS {
                let at = whole + part * 16;
                let mask = ((1_u32 << vector.len().saturating_sub(at).min(16)) - 1) as __mmask16;
                // SAFETY: the mask selects only existing elements; nothing is read if it is empty.
                unsafe {
                    let factors = _mm512_maskz_loadu_ps(mask, vector.as_ptr().wrapping_add(at));
                    for line in 0..LINES {
                        let elements = _mm512_maskz_loadu_ps(mask, lines[line].as_ptr().wrapping_add(at));
                        sums[line][part] = _mm512_mask3_fmadd_ps(elements, factors, sums[line][part], mask);
                    }
                }
            }
        }
        let mut results = [0.0; LINES];
        for line in 0..LINES {
            let [a, b, c, d] = sums[line];
            let sum = _mm512_add_ps(_mm512_add_ps(a, c), _mm512_add_ps(b, d));
            let sum = _mm256_add_ps(_mm512_castps512_ps256(sum), _mm512_extractf32x8_ps::<1>(sum));
            let sum = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps::<1>(sum));
            let sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
            results[line] = _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
        }
        results
    }
}

/// Sums the products of `BLOCK` lines from `start` on, in the same order as [`sum_lines_together`].
/// Neighbouring lines are adjacent in memory.
#[inline(always)]
fn sum_block<T: Operand, const FUSED: bool, const BLOCK: usize>(
    lines: &MatRef<'_, T>,
    vector: &[T::Acc],
    start: usize,
    sums: &mut [T::Acc],
) {
    let across = lines.transposed();
    let mut block = [<T::Acc as bytemuck::Zeroable>::zeroed(); BLOCK];
    for (k, factor) in vector.iter().enumerate() {
        // The chunk always exists; a panic branch here would keep the sums in memory.
        let Some(elements) = across.row_slice(k, start, BLOCK).and_then(|row| row.first_chunk::<BLOCK>()) else {
            return;
        };
        for lane in 0..BLOCK {
            block[lane] = block[lane].plus_product::<FUSED>(elements[lane].widen(), *factor);
        }
    }
    sums.copy_from_slice(&block);
}

/// Adds the products of the lines from `start` on to `sums`, four elements of each at a time.
#[inline(always)]
fn sum_lines_together<T: Operand, const FUSED: bool>(
    lines: &MatRef<'_, T>,
    vector: &[T::Acc],
    start: usize,
    sums: &mut [T::Acc],
) {
    let across = lines.transposed();
    let count = sums.len();
    let row = |k: usize| across.row_slice(k, start, count);
    let mut k = 0;
    while k < vector.len() {
        let four = if k + 4 <= vector.len() { Some((row(k), row(k + 1), row(k + 2), row(k + 3))) } else { None };
        if let Some((Some(first), Some(second), Some(third), Some(fourth))) = four {
            for (index, sum) in sums.iter_mut().enumerate() {
                let sum_two = sum
                    .plus_product::<FUSED>(first[index].widen(), vector[k])
                    .plus_product::<FUSED>(second[index].widen(), vector[k + 1]);
                *sum = sum_two
                    .plus_product::<FUSED>(third[index].widen(), vector[k + 2])
                    .plus_product::<FUSED>(fourth[index].widen(), vector[k + 3]);
            }
            k += 4;
        } else {
            for (index, sum) in sums.iter_mut().enumerate() {
                *sum = sum.plus_product::<FUSED>(lines.get(start + index, k).widen(), vector[k]);
            }
            k += 1;
        }
    }
}
