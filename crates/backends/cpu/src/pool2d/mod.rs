//! Pooling of two-dimensional windows: the largest number of each window, or the average.
//!
//! Both are separable: the rows of a window are joined first, over the whole width at once, and then the columns. The
//! padding is never copied; windows are clipped to the image. A NaN in a window makes the window's result NaN, also
//! for the maximum. f16 and bf16 are computed in f32 and rounded once. `pixels` is the same for images with their channels last.
//!
//! Contract: the op's validation guarantees that every window touches the image; the slices have the lengths that the
//! shape says.

mod join;
mod pixels;

use std::ops::Range;

pub use panoply_core::op::compute::{PoolKind, PoolShape};

use crate::conv::Stored;
use crate::simd::Simd;
use crate::team::Team;
pub use join::Number;
use join::{Average, Join, Max};
pub use pixels::pool2d_pixels;

/// Pools every plane of `input` into `output`.
pub fn pool2d<S: Stored>(simd: Simd, team: &Team, shape: &PoolShape, kind: PoolKind, input: &[S], output: &mut [S])
where
    S::Real: Number,
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
    let grain = (GRAIN_NUMBERS / plane.max(1)).max(1);
    team.run_ranges(planes, grain, &|range| {
        // SAFETY: ranges are disjoint, so no other thread has these planes; `output` outlives the job.
        let output = unsafe { output.planes(&range) };
        // SAFETY: the level was limited to what the CPU has.
        unsafe { run(shape, count_padding, &input[range.start * plane..range.end * plane], output) };
    });
}

/// Numbers of the input that one thread pools before another one is asked to help.
const GRAIN_NUMBERS: usize = 1 << 15;
/// Columns that fit the buffers on the stack; wider images use the heap.
const STACK_COLUMNS: usize = 512;

type PlanesFn<S> = unsafe fn(&PoolShape, bool, &[S], &mut [S]);

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn planes_avx512<S: Stored, J: Join<S::Real>>(shape: &PoolShape, pad: bool, input: &[S], output: &mut [S])
where
    S::Real: Number,
{
    planes::<S, J>(shape, pad, input, output);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn planes_avx2<S: Stored, J: Join<S::Real>>(shape: &PoolShape, pad: bool, input: &[S], output: &mut [S])
where
    S::Real: Number,
{
    planes::<S, J>(shape, pad, input, output);
}

fn planes_plain<S: Stored, J: Join<S::Real>>(shape: &PoolShape, pad: bool, input: &[S], output: &mut [S])
where
    S::Real: Number,
{
    planes::<S, J>(shape, pad, input, output);
}

/// Pools whole planes. Inlined into a function for each vector level, which is what makes its loops vector loops.
#[inline(always)]
fn planes<S: Stored, J: Join<S::Real>>(shape: &PoolShape, count_padding: bool, input: &[S], output: &mut [S])
where
    S::Real: Number,
{
    let mut stack = [S::Real::default(); 3 * STACK_COLUMNS];
    let mut heap = Vec::new();
    let columns = shape.input[1].max(shape.output()[1]);
    let buffer = if columns <= STACK_COLUMNS {
        &mut stack[..3 * columns]
    } else {
        heap.resize(3 * columns, S::Real::default());
        &mut heap[..]
    };
    let (line, rest) = buffer.split_at_mut(columns);
    let (wide, pooled) = rest.split_at_mut(columns);
    let [height, width] = shape.output();
    let (line, wide, pooled) = (&mut line[..shape.input[1]], &mut wide[..shape.input[1]], &mut pooled[..width]);
    let sources = input.chunks_exact(shape.input[0] * shape.input[1]);
    for (source, target) in sources.zip(output.chunks_exact_mut(height * width)) {
        for (index, target) in target.chunks_exact_mut(width).enumerate() {
            let rows = shape.window(0, index);
            join_rows::<S, J>(&source[rows.start * shape.input[1]..rows.end * shape.input[1]], line, wide);
            join_columns::<S::Real, J>(shape, line, pooled);
            if J::COUNTS {
                divide(shape, count_padding, rows.len(), pooled);
            }
            S::narrow(pooled, target);
        }
    }
}

/// Joins the rows of a window into one line.
#[inline(always)]
fn join_rows<S: Stored, J: Join<S::Real>>(rows: &[S], line: &mut [S::Real], wide: &mut [S::Real]) {
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

/// Joins the columns of every window of a line.
#[inline(always)]
fn join_columns<T: Number, J: Join<T>>(shape: &PoolShape, line: &[T], pooled: &mut [T]) {
    let (kernel, stride, left) = (shape.kernel[1], shape.stride[1], shape.padding[1]);
    // Windows from `first` to `last` are not clipped.
    let first = left.div_ceil(stride).min(pooled.len());
    let last = match (line.len() + left).checked_sub(kernel) {
        Some(room) => (room / stride + 1).clamp(first, pooled.len()),
        None => first,
    };
    for index in (0..first).chain(last..pooled.len()) {
        let window = &line[shape.window(1, index)];
        pooled[index] = window[1..].iter().fold(window[0], |joined, number| J::join(joined, *number));
    }
    if first == last {
        return;
    }
    let line = &line[first * stride - left..];
    let pooled = &mut pooled[first..last];
    // Constants let the compiler unroll the windows that nearly everybody uses.
    match (kernel, stride) {
        (1, _) => whole_windows::<T, J>(line, pooled, 1, stride),
        (2, 2) => windows_of_two::<T, J>(line, pooled),
        (3, 2) => windows_of_three::<T, J>(line, pooled),
        (3, 1) => whole_windows::<T, J>(line, pooled, 3, 1),
        _ if stride == 1 => whole_windows::<T, J>(line, pooled, kernel, 1),
        _ => whole_windows::<T, J>(line, pooled, kernel, stride),
    }
}

/// Windows of two that do not overlap: pairs, which become vector loops.
#[inline(always)]
fn windows_of_two<T: Number, J: Join<T>>(line: &[T], pooled: &mut [T]) {
    let (pairs, _) = line.as_chunks::<2>();
    assert!(pairs.len() >= pooled.len(), "a line of whole windows");
    for (to, [first, second]) in pooled.iter_mut().zip(pairs) {
        *to = J::join(*first, *second);
    }
}

/// Windows of three, the last number of each is the first of the next: a pair, and the first of the pair after it.
#[inline(always)]
fn windows_of_three<T: Number, J: Join<T>>(line: &[T], pooled: &mut [T]) {
    let (pairs, _) = line.as_chunks::<2>();
    let (paired, rest) = pooled.split_at_mut(pooled.len().min(pairs.len().saturating_sub(1)));
    for ((to, [first, second]), [third, _]) in paired.iter_mut().zip(pairs).zip(pairs.iter().skip(1)) {
        *to = J::join(J::join(*first, *second), *third);
    }
    // The last number of a line may have no partner.
    whole_windows::<T, J>(&line[2 * paired.len()..], rest, 3, 2);
}

#[inline(always)]
fn whole_windows<T: Number, J: Join<T>>(line: &[T], pooled: &mut [T], kernel: usize, stride: usize) {
    for (index, to) in pooled.iter_mut().enumerate() {
        let window = &line[index * stride..index * stride + kernel];
        let mut joined = window[0];
        for number in &window[1..] {
            joined = J::join(joined, *number);
        }
        *to = joined;
    }
}

/// Turns sums into averages.
#[inline(always)]
fn divide<T: Number>(shape: &PoolShape, count_padding: bool, rows: usize, sums: &mut [T]) {
    for (index, sum) in sums.iter_mut().enumerate() {
        let count = if count_padding { shape.kernel[0] * shape.kernel[1] } else { rows * shape.window(1, index).len() };
        *sum = sum.over(count);
    }
}

/// The output's planes, each written by one thread.
struct Outputs<S> {
    start: *mut S,
    plane: usize,
}

// SAFETY: `planes` is unsafe, and its caller guarantees that threads ask for disjoint planes.
unsafe impl<S: Send> Sync for Outputs<S> {}

impl<S> Outputs<S> {
    /// # Safety
    /// The range lies in the output, which lives, and no other thread has any of these planes.
    #[allow(clippy::mut_from_ref)]
    unsafe fn planes(&self, range: &Range<usize>) -> &mut [S] {
        // SAFETY: as the caller guarantees.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start * self.plane), range.len() * self.plane) }
    }
}
