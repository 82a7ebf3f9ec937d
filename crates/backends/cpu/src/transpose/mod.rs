//! Strided copies: write any view of a tensor contiguously.
//!
//! A transpose, a slice with steps, a reversed axis and a broadcast are all the same here: a list
//! of dimensions with a stride each. [`copy_strided`] drops dimensions of length one, joins
//! neighbouring dimensions that are contiguous in memory, and then picks one of three loops:
//!
//! * **rows**: the innermost dimension is contiguous, so whole runs are copied;
//! * **tiles**: another dimension is contiguous, so square tiles are transposed in registers (see
//!   [`tile`]);
//! * **gather**: no dimension is contiguous (steps, reversed or repeated elements); elements are
//!   copied one at a time, in blocks that keep the used lines in the cache.
//!
//! The whole view is checked against the source before anything is read. Every loop is split among
//! the team if it moves more than [`TASK_BYTES_MIN`].

pub mod tile;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::parts::DisjointSlice;
use crate::simd::Simd;
use crate::team::Team;
use std::fmt;
use std::ops::Range;

/// Minimum bytes for which another thread is worth waking.
const TASK_BYTES_MIN: usize = 128 * 1024;
/// Edge of the blocks of the tile and gather loops: long enough in bytes to use whole pages' worth
/// of address translations, short enough in elements to stay in the cache.
const fn block_edge(element_bytes: usize) -> usize {
    if element_bytes < 4 { 256 / element_bytes } else { 64 }
}

/// A view of elements in memory.
#[derive(Clone, Copy, Debug)]
pub struct StridedView<'a> {
    /// The memory. It needs no alignment.
    pub bytes: &'a [u8],
    /// Size of one element: 1, 2, 4, 8 or 16 bytes.
    pub element_bytes: usize,
    /// Length of each dimension, outermost first.
    pub dims: &'a [usize],
    /// Distance between neighbours in each dimension, in elements. A stride of zero repeats an
    /// element; a negative stride goes backwards.
    pub strides: &'a [isize],
    /// Index of the view's first element, in elements from the start of `bytes`.
    pub offset: usize,
}

/// The reason why a strided copy was rejected. Nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StridedError {
    /// The element size is not 1, 2, 4, 8 or 16 bytes.
    ElementSize {
        /// The requested size.
        got: usize,
    },
    /// The numbers of dimensions and strides differ.
    Rank {
        /// Number of dimensions.
        dims: usize,
        /// Number of strides.
        strides: usize,
    },
    /// The output does not have exactly the view's size.
    OutputLen {
        /// Bytes of the view.
        expected: usize,
        /// Bytes of the output.
        got: usize,
    },
    /// The view reaches outside of its memory, or its size overflows.
    OutOfBounds,
}

impl fmt::Display for StridedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StridedError::ElementSize { got } => write!(f, "elements of {got} bytes cannot be copied by stride"),
            StridedError::Rank { dims, strides } => write!(f, "{dims} dimensions but {strides} strides"),
            StridedError::OutputLen { expected, got } => write!(f, "the output takes {expected} bytes, got {got}"),
            StridedError::OutOfBounds => write!(f, "the view reaches outside its memory"),
        }
    }
}

impl std::error::Error for StridedError {}

/// Copies the view into `out`, contiguously and in row-major order, with the best instructions of
/// this CPU.
pub fn copy_strided(team: &Team, view: &StridedView<'_>, out: &mut [u8]) -> Result<(), StridedError> {
    copy_strided_at(Simd::detect(), team, view, out)
}

/// [`copy_strided`] with an explicit instruction level, which is lowered if this CPU lacks it.
pub fn copy_strided_at(simd: Simd, team: &Team, view: &StridedView<'_>, out: &mut [u8]) -> Result<(), StridedError> {
    let simd = simd.min(Simd::detect());
    let elements = view.check(out.len())?;
    if elements == 0 {
        return Ok(());
    }
    match view.element_bytes {
        1 => copy_elements::<1>(simd, team, view, out),
        2 => copy_elements::<2>(simd, team, view, out),
        4 => copy_elements::<4>(simd, team, view, out),
        8 => copy_elements::<8>(simd, team, view, out),
        _ => copy_elements::<16>(simd, team, view, out),
    }
    Ok(())
}

impl StridedView<'_> {
    /// Checks the view against its memory and the output, and returns its number of elements.
    fn check(&self, out_bytes: usize) -> Result<usize, StridedError> {
        if !matches!(self.element_bytes, 1 | 2 | 4 | 8 | 16) {
            return Err(StridedError::ElementSize { got: self.element_bytes });
        }
        if self.dims.len() != self.strides.len() {
            return Err(StridedError::Rank { dims: self.dims.len(), strides: self.strides.len() });
        }
        if self.dims.contains(&0) {
            let empty = StridedError::OutputLen { expected: 0, got: out_bytes };
            return if out_bytes == 0 { Ok(0) } else { Err(empty) };
        }
        let elements = self.dims.iter().try_fold(1_usize, |product, &dim| product.checked_mul(dim));
        let elements = elements.ok_or(StridedError::OutOfBounds)?;
        let expected = elements.checked_mul(self.element_bytes).ok_or(StridedError::OutOfBounds)?;
        if expected != out_bytes {
            return Err(StridedError::OutputLen { expected, got: out_bytes });
        }
        let (mut lowest, mut highest) = (self.offset as i128, self.offset as i128);
        for (&dim, &stride) in self.dims.iter().zip(self.strides) {
            let reach = (dim as i128 - 1) * stride as i128;
            lowest += reach.min(0);
            highest += reach.max(0);
        }
        let available = (self.bytes.len() / self.element_bytes) as i128;
        if lowest < 0 || highest >= available { Err(StridedError::OutOfBounds) } else { Ok(elements) }
    }
}

/// One dimension of a canonical view; its length is at least two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    len: usize,
    /// In elements of the source.
    stride: isize,
    /// In elements of the output.
    out_stride: usize,
}

/// Drops dimensions of length one and joins each dimension with its inner neighbour if the strides
/// allow it.
fn canonical(dims: &[usize], strides: &[isize]) -> Vec<Axis> {
    let mut axes: Vec<Axis> = Vec::with_capacity(dims.len());
    for (&len, &stride) in dims.iter().zip(strides).filter(|(len, _)| **len != 1) {
        match axes.last_mut() {
            Some(outer) if stride.checked_mul(len as isize) == Some(outer.stride) => {
                outer.len *= len;
                outer.stride = stride;
            }
            _ => axes.push(Axis { len, stride, out_stride: 1 }),
        }
    }
    let mut out_stride = 1;
    for axis in axes.iter_mut().rev() {
        axis.out_stride = out_stride;
        out_stride *= axis.len;
    }
    axes
}

/// The source of a checked copy: every position that the axes reach from `start` is inside its
/// memory.
#[derive(Clone, Copy)]
struct CopySource<'a, const N: usize> {
    elements: &'a [[u8; N]],
    start: usize,
}

impl<const N: usize> CopySource<'_, N> {
    /// The address of the element `position` steps from the start.
    ///
    /// # Safety
    /// The checked axes must reach `position`.
    unsafe fn at(&self, position: isize) -> *const [u8; N] {
        // SAFETY: `StridedView::check` proved that every reachable position is inside `elements`.
        unsafe { self.elements.as_ptr().add(self.start).offset(position) }
    }
}

fn copy_elements<const N: usize>(simd: Simd, team: &Team, view: &StridedView<'_>, out: &mut [u8]) {
    let axes = canonical(view.dims, view.strides);
    let source = CopySource { elements: view.bytes.as_chunks::<N>().0, start: view.offset };
    let out = out.as_chunks_mut::<N>().0;
    let Some((inner, outer)) = axes.split_last() else {
        out[0] = source.elements[source.start];
        return;
    };
    if inner.stride == 1 {
        copy_rows(team, source, outer, inner.len, out);
        return;
    }
    // The outer axis with the smallest stride is traversed together with the innermost axis.
    let closest = (0..outer.len()).filter(|&index| outer[index].stride != 0).min_by_key(|&index| {
        let axis = &outer[index];
        (axis.stride.unsigned_abs(), usize::MAX - axis.len)
    });
    match closest {
        Some(index) if outer[index].stride.unsigned_abs() < inner.stride.unsigned_abs() => {
            let mut rest = outer.to_vec();
            let across = rest.remove(index);
            copy_blocks(simd, team, source, &rest, across, *inner, out);
        }
        _ => copy_gather(team, source, outer, *inner, out),
    }
}

/// Copies runs of `run` contiguous elements.
fn copy_rows<const N: usize>(team: &Team, source: CopySource<'_, N>, outer: &[Axis], run: usize, out: &mut [[u8; N]]) {
    let rows = out.len() / run;
    let parts = DisjointSlice::new(out);
    if rows < team.threads() * 4 && run * N >= 2 * TASK_BYTES_MIN {
        // There are few long rows: the threads share each row.
        let mut walk = AxisIterator::new(outer, 0);
        for row in 0..rows {
            let position = walk.position;
            team.run_ranges(run, TASK_BYTES_MIN / N, &|range| {
                // SAFETY: ranges of one row are disjoint, and the source row is `run` long (checked
                // view).
                unsafe {
                    let from = source.at(position + range.start as isize);
                    let to = parts.range(row * run + range.start..row * run + range.end);
                    std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len());
                }
            });
            walk.advance();
        }
        return;
    }
    team.run_ranges(rows, (TASK_BYTES_MIN / (run * N)).max(1), &|range| {
        let mut walk = AxisIterator::new(outer, range.start);
        // SAFETY: ranges of rows are disjoint, so the ranges of their elements are disjoint too.
        let out = unsafe { parts.range(range.start * run..range.end * run) };
        for row in out.chunks_exact_mut(run) {
            // SAFETY: `walk` is within the checked view, and each of its rows has `run` contiguous
            // elements.
            unsafe { copy_run(source.at(walk.position), row) };
            walk.advance();
        }
    });
}

/// Copies `to.len()` elements. Short runs are copied inline: a call costs more than the copy.
///
/// # Safety
/// `from` must be valid for `to.len()` elements.
#[inline(always)]
unsafe fn copy_run<const N: usize>(from: *const [u8; N], to: &mut [[u8; N]]) {
    if to.len() <= 4 {
        for (index, element) in to.iter_mut().enumerate() {
            // SAFETY: `index` is below the length that the caller guarantees.
            *element = unsafe { *from.add(index) };
        }
    } else {
        // SAFETY: the caller guarantees the source; `to` is a unique reference and cannot overlap
        // it.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }
}

/// Copies along the innermost axis with its stride, one element at a time.
fn copy_gather<const N: usize>(
    team: &Team,
    source: CopySource<'_, N>,
    outer: &[Axis],
    inner: Axis,
    out: &mut [[u8; N]],
) {
    let rows = out.len() / inner.len;
    let parts = DisjointSlice::new(out);
    let body = |rows: Range<usize>, columns: Range<usize>| {
        let mut walk = AxisIterator::new(outer, rows.start);
        for row in rows {
            // SAFETY: each (row, columns) pair is processed once, so the parts are disjoint.
            let to = unsafe { parts.range(row * inner.len + columns.start..row * inner.len + columns.end) };
            let start = walk.position + columns.start as isize * inner.stride;
            for (index, element) in to.iter_mut().enumerate() {
                // SAFETY: the walk and `index` stay inside the checked view.
                *element = unsafe { *source.at(start + index as isize * inner.stride) };
            }
            walk.advance();
        }
    };
    if rows < team.threads() * 4 {
        for row in 0..rows {
            team.run_ranges(inner.len, TASK_BYTES_MIN / N, &|columns| body(row..row + 1, columns));
        }
    } else {
        let grain = (TASK_BYTES_MIN / (inner.len * N)).max(1);
        team.run_ranges(rows, grain, &|rows| body(rows, 0..inner.len));
    }
}

/// Copies blocks of `across` × `inner`, where `across` has the smaller stride; as tiles if `across`
/// is contiguous.
fn copy_blocks<const N: usize>(
    simd: Simd,
    team: &Team,
    source: CopySource<'_, N>,
    rest: &[Axis],
    across: Axis,
    inner: Axis,
    out: &mut [[u8; N]],
) {
    let edge = block_edge(N);
    // If one side is short, the other may be longer.
    let across_edge = edge * (edge / inner.len.min(edge)).max(1);
    let inner_edge = edge * (edge / across.len.min(edge)).max(1);
    let planes = out.len() / (across.len * inner.len);
    let (across_blocks, inner_blocks) = (across.len.div_ceil(across_edge), inner.len.div_ceil(inner_edge));
    let plane_blocks = across_blocks * inner_blocks;
    let stream = tile::should_stream(out.len() * N);
    let parts = DisjointSlice::new(out);
    let block_bytes = across.len.min(across_edge) * inner.len.min(inner_edge) * N;
    team.run_ranges(planes * plane_blocks, (TASK_BYTES_MIN / block_bytes).max(1), &|blocks| {
        let mut walk = AxisIterator::new(rest, blocks.start / plane_blocks);
        let mut in_plane = blocks.start % plane_blocks;
        for _ in blocks {
            let first_across = in_plane / inner_blocks * across_edge;
            let first_inner = in_plane % inner_blocks * inner_edge;
            let position = walk.position + first_across as isize * across.stride + first_inner as isize * inner.stride;
            let out_position = walk.out_position + first_across * across.out_stride + first_inner;
            // SAFETY: the block is inside the checked view and the output, and blocks do not
            // overlap.
            unsafe {
                let block = tile::CopyBlock {
                    from: source.at(position),
                    to: parts.as_mut_ptr().add(out_position),
                    inner: inner.stride,
                    out_across: across.out_stride,
                    lengths: (across_edge.min(across.len - first_across), inner_edge.min(inner.len - first_inner)),
                    from_end: source.elements.as_ptr_range().end,
                };
                if across.stride == 1 { block.transpose(simd, stream) } else { block.gather(across.stride) }
            }
            in_plane += 1;
            if in_plane == plane_blocks {
                in_plane = 0;
                walk.advance();
            }
        }
        tile::finish(stream);
    });
}

/// Iterates over some axes in row-major order and tracks the position in the source and in the
/// output.
struct AxisIterator<'a> {
    axes: &'a [Axis],
    index: Vec<usize>,
    position: isize,
    out_position: usize,
}

impl<'a> AxisIterator<'a> {
    /// Starts at the `nth` combination of indices.
    fn new(axes: &'a [Axis], nth: usize) -> AxisIterator<'a> {
        let mut walk = AxisIterator { axes, index: vec![0; axes.len()], position: 0, out_position: 0 };
        let mut left = nth;
        for (axis, index) in axes.iter().zip(&mut walk.index).rev() {
            *index = left % axis.len;
            left /= axis.len;
            walk.position += *index as isize * axis.stride;
            walk.out_position += *index * axis.out_stride;
        }
        walk
    }

    /// Advances to the next combination; after the last one the first one follows.
    #[inline]
    fn advance(&mut self) {
        for (axis, index) in self.axes.iter().zip(&mut self.index).rev() {
            *index += 1;
            self.position += axis.stride;
            self.out_position += axis.out_stride;
            if *index < axis.len {
                return;
            }
            self.position -= axis.len as isize * axis.stride;
            self.out_position -= axis.len * axis.out_stride;
            *index = 0;
        }
    }
}
