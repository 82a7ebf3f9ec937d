//! Pooling of two-dimensional windows: the maximum or the average of each window.
//!
//! Both are separable: the rows of a window are combined first, over the whole width at once, and
//! then the columns. The padding is never copied; windows are clipped to the image. Windows that
//! cover the same part of the image are computed once; most windows do so if the padding is far
//! larger than the image. A NaN in a window makes the window's result NaN, also for the maximum.
//! f16 and bf16 are computed in f32 and rounded once. `pixels` does the same for channels-last
//! images.
//!
//! Contract: the op's validation guarantees that every window touches the image, and the slices
//! have the lengths that the shape says.

mod join;
mod pixels;

use std::ops::Range;

use half::{bf16, f16};
pub use panoply_core::op::compute::{PoolKind, PoolShape};
use panoply_cpu_machine::compile_once;

use crate::conv::StoredElement;
use crate::simd::Simd;
use crate::team::Team;
pub use join::WindowNumber;
use join::{Average, Join, Max};
pub use pixels::pool2d_pixels;

/// Pools every plane of `input` into `output`.
pub fn pool2d<S: StoredElement + PoolKernels>(
    simd: Simd,
    team: &Team,
    shape: &PoolShape,
    kind: PoolKind,
    input: &[S],
    output: &mut [S],
) where
    S::Real: WindowNumber,
{
    S::run(simd, team, shape, kind, input, output);
}

compile_once! {
    /// The pooling of a stored type.
    pub trait PoolKernels: StoredElement {
        fn run(simd: Simd, team: &Team, shape: &PoolShape, kind: PoolKind, input: &[Self], output: &mut [Self]) = pool;
    } for f32, f64, f16, bf16
}

fn pool<S: StoredElement>(simd: Simd, team: &Team, shape: &PoolShape, kind: PoolKind, input: &[S], output: &mut [S])
where
    S::Real: WindowNumber,
{
    let planes = shape.batch * shape.channels;
    let plane = shape.input[0] * shape.input[1];
    let pooled = shape.output()[0] * shape.output()[1];
    assert_eq!((input.len(), output.len()), (planes * plane, planes * pooled), "input and output");
    let run: PlanesFn<S> = match (simd.min(Simd::detect()), kind) {
        #[cfg(target_arch = "x86_64")]
        (Simd::Avx512, PoolKind::Max) => planes_avx512::<S, Max>,
        #[cfg(target_arch = "x86_64")]
        (Simd::Avx512, PoolKind::Average { .. }) => planes_avx512::<S, Average>,
        #[cfg(target_arch = "x86_64")]
        (Simd::Avx2, PoolKind::Max) => planes_avx2::<S, Max>,
        #[cfg(target_arch = "x86_64")]
        (Simd::Avx2, PoolKind::Average { .. }) => planes_avx2::<S, Average>,
        (_, PoolKind::Max) => planes_plain::<S, Max>,
        (_, PoolKind::Average { .. }) => planes_plain::<S, Average>,
    };
    let count_padding = kind == PoolKind::Average { count_padding: true };
    let output = Outputs { start: output.as_mut_ptr(), plane: pooled };
    let grain = (GRAIN_NUMBERS / plane.max(pooled).max(1)).max(1);
    team.run_ranges(planes, grain, &|range| {
        // SAFETY: ranges are disjoint, so these planes belong to no other thread; `output` outlives
        // the job.
        let output = unsafe { output.planes(&range) };
        // SAFETY: the level was limited to what the CPU has.
        unsafe { run(shape, count_padding, &input[range.start * plane..range.end * plane], output) };
    });
}

/// Numbers of the input that one thread pools before another one is asked to help.
const GRAIN_NUMBERS: usize = 1 << 15;
/// Columns that fit the buffers on the stack; wider images use the heap.
const STACK_COLUMNS: usize = 512;
/// Columns of an output's row that are pooled at once, if the row is wider than this and than the
/// image.
const BLOCK_COLUMNS: usize = 4096;

type PlanesFn<S> = unsafe fn(&PoolShape, bool, &[S], &mut [S]);

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn planes_avx512<S: StoredElement, J: Join<S::Real>>(shape: &PoolShape, pad: bool, input: &[S], output: &mut [S])
where
    S::Real: WindowNumber,
{
    planes::<S, J>(shape, pad, input, output);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn planes_avx2<S: StoredElement, J: Join<S::Real>>(shape: &PoolShape, pad: bool, input: &[S], output: &mut [S])
where
    S::Real: WindowNumber,
{
    planes::<S, J>(shape, pad, input, output);
}

fn planes_plain<S: StoredElement, J: Join<S::Real>>(shape: &PoolShape, pad: bool, input: &[S], output: &mut [S])
where
    S::Real: WindowNumber,
{
    planes::<S, J>(shape, pad, input, output);
}

/// Pools whole planes. Inlined into a function for each vector level, so that its loops are
/// vectorised for the level.
#[inline(always)]
fn planes<S: StoredElement, J: Join<S::Real>>(shape: &PoolShape, count_padding: bool, input: &[S], output: &mut [S])
where
    S::Real: WindowNumber,
{
    let mut stack = [S::Real::default(); 3 * STACK_COLUMNS];
    let mut heap = Vec::new();
    let [height, width] = shape.output();
    let block = width.min(shape.input[1].max(BLOCK_COLUMNS));
    let columns = shape.input[1].max(block);
    let buffer = if columns <= STACK_COLUMNS {
        &mut stack[..3 * columns]
    } else {
        crate::scratch::resize(&mut heap, 3 * columns, S::Real::default());
        &mut heap[..]
    };
    let (line, rest) = buffer.split_at_mut(columns);
    let (wide, pooled) = rest.split_at_mut(columns);
    let (line, wide) = (&mut line[..shape.input[1]], &mut wide[..shape.input[1]]);
    let sources = input.chunks_exact(shape.input[0] * shape.input[1]);
    for (source, target) in sources.zip(output.chunks_exact_mut(height * width)) {
        let mut joined = 0..0;
        for (index, target) in target.chunks_exact_mut(width).enumerate() {
            let rows = shape.window(0, index);
            let is_known = std::mem::replace(&mut joined, rows.clone()) == rows;
            if !is_known {
                join_rows::<S, J>(&source[rows.start * shape.input[1]..rows.end * shape.input[1]], line, wide);
            }
            for (number, target) in target.chunks_mut(block).enumerate() {
                let pooled = &mut pooled[..target.len()];
                if !is_known || block < width {
                    join_columns::<S::Real, J>(shape, line, number * block, pooled);
                    if J::COUNTS {
                        divide(shape, count_padding, rows.len(), number * block, pooled);
                    }
                }
                S::narrow(pooled, target);
            }
        }
    }
}

/// The windows, among `count` windows of a row from `first` on, that cover the whole width of the
/// image.
fn whole_width(shape: &PoolShape, first: usize, count: usize) -> Range<usize> {
    let (width, kernel, stride, left) = (shape.input[1], shape.kernel[1], shape.stride[1], shape.padding[1]);
    let start = (width + left).saturating_sub(kernel).div_ceil(stride).clamp(first, first + count);
    let end = (left / stride + 1).clamp(start, first + count);
    start..end
}

/// Combines the rows of a window into one line.
#[inline(always)]
fn join_rows<S: StoredElement, J: Join<S::Real>>(rows: &[S], line: &mut [S::Real], wide: &mut [S::Real]) {
    let mut rows = rows.chunks_exact(line.len());
    if let Some(first) = rows.next() {
        S::widen(first, line);
    }
    for row in rows {
        if S::IN_PLACE {
            for (joined, number) in line.iter_mut().zip(row) {
                *joined = J::join(*joined, number.real());
            }
        } else {
            S::widen(row, wide);
            for (joined, number) in line.iter_mut().zip(wide.iter()) {
                *joined = J::join(*joined, *number);
            }
        }
    }
}

/// Combines the columns of the windows of a line, starting with the window `from`.
#[inline(always)]
fn join_columns<T: WindowNumber, J: Join<T>>(shape: &PoolShape, line: &[T], from: usize, pooled: &mut [T]) {
    let (kernel, stride, left) = (shape.kernel[1], shape.stride[1], shape.padding[1]);
    let to = from + pooled.len();
    // Windows from `first` to `last` are not clipped.
    let first = left.div_ceil(stride).clamp(from, to);
    let last = match (line.len() + left).checked_sub(kernel) {
        Some(room) => (room / stride + 1).clamp(first, to),
        None => first,
    };
    let whole = whole_width(shape, from, pooled.len());
    let join = |window: &[T]| window[1..].iter().fold(window[0], |joined, number| J::join(joined, *number));
    if !whole.is_empty() {
        pooled[whole.start - from..whole.end - from].fill(join(line));
    }
    for clipped in [from..first, last..to] {
        let before = clipped.start..clipped.end.min(whole.start);
        let after = clipped.start.max(whole.end)..clipped.end;
        for index in before.chain(after) {
            pooled[index - from] = join(&line[shape.window(1, index)]);
        }
    }
    if first == last {
        return;
    }
    let line = &line[first * stride - left..];
    let pooled = &mut pooled[first - from..last - from];
    // Constants let the compiler unroll the most common windows.
    match (kernel, stride) {
        (1, _) => whole_windows::<T, J>(line, pooled, 1, stride),
        (2, 2) => windows_of_two::<T, J>(line, pooled),
        (3, 2) => windows_of_three::<T, J>(line, pooled),
        (3, 1) => whole_windows::<T, J>(line, pooled, 3, 1),
        _ if stride == 1 => whole_windows::<T, J>(line, pooled, kernel, 1),
        _ => whole_windows::<T, J>(line, pooled, kernel, stride),
    }
}

/// Windows of two that do not overlap: pairs, whose loops vectorise.
#[inline(always)]
fn windows_of_two<T: WindowNumber, J: Join<T>>(line: &[T], pooled: &mut [T]) {
    let (pairs, _) = line.as_chunks::<2>();
    assert!(pairs.len() >= pooled.len(), "a line of whole windows");
    for (to, [first, second]) in pooled.iter_mut().zip(pairs) {
        *to = J::join(*first, *second);
    }
}

/// Windows of three that overlap by one number: a pair, and the first number of the next pair.
#[inline(always)]
fn windows_of_three<T: WindowNumber, J: Join<T>>(line: &[T], pooled: &mut [T]) {
    let (pairs, _) = line.as_chunks::<2>();
    let (paired, rest) = pooled.split_at_mut(pooled.len().min(pairs.len().saturating_sub(1)));
    for ((to, [first, second]), [third, _]) in paired.iter_mut().zip(pairs).zip(pairs.iter().skip(1)) {
        *to = J::join(J::join(*first, *second), *third);
    }
    // The last number of a line may be unpaired.
    whole_windows::<T, J>(&line[2 * paired.len()..], rest, 3, 2);
}

#[inline(always)]
fn whole_windows<T: WindowNumber, J: Join<T>>(line: &[T], pooled: &mut [T], kernel: usize, stride: usize) {
    for (index, to) in pooled.iter_mut().enumerate() {
        let window = &line[index * stride..index * stride + kernel];
        let mut joined = window[0];
        for number in &window[1..] {
            joined = J::join(joined, *number);
        }
        *to = joined;
    }
}

/// Turns the sums of the windows, starting with the window `from`, into averages.
#[inline(always)]
fn divide<T: WindowNumber>(shape: &PoolShape, count_padding: bool, rows: usize, from: usize, sums: &mut [T]) {
    if count_padding {
        let count = shape.kernel[0] * shape.kernel[1];
        return sums.iter_mut().for_each(|sum| *sum = sum.over(count));
    }
    let whole = whole_width(shape, from, sums.len());
    let (before, rest) = sums.split_at_mut(whole.start - from);
    let (alike, after) = rest.split_at_mut(whole.len());
    alike.iter_mut().for_each(|sum| *sum = sum.over(rows * shape.input[1]));
    for (first, sums) in [(from, before), (whole.end, after)] {
        for (index, sum) in sums.iter_mut().enumerate() {
            *sum = sum.over(rows * shape.window(1, first + index).len());
        }
    }
}

/// The output's planes, each written by one thread.
struct Outputs<S> {
    start: *mut S,
    plane: usize,
}

// SAFETY: `planes` is unsafe, and its caller guarantees that threads access disjoint planes.
unsafe impl<S: Send> Sync for Outputs<S> {}

impl<S> Outputs<S> {
    /// # Safety
    /// The range is within the output, which is alive, and no other thread accesses any of these
    /// planes.
    #[allow(clippy::mut_from_ref)]
    unsafe fn planes(&self, range: &Range<usize>) -> &mut [S] {
        // SAFETY: the caller's contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start * self.plane), range.len() * self.plane) }
    }
}
