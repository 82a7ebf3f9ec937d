//! Pooling of channels-last images: the lanes of vectors are channels.
//!
//! The rows of a window are combined first, over all columns at once, and then the columns of each
//! window: as for planes, with a pixel in place of a number.

use std::ops::Range;

use super::join::{Average, Join, Max, WindowNumber};
use super::{GRAIN_NUMBERS, PoolKind, PoolShape};
use crate::lanes::{Kernel, Level, dispatch};
use crate::parts::DisjointSlice;
use crate::simd::Simd;
use crate::team::Team;

/// Approximate numbers of combined rows: they stay in the second-level cache.
const LINE_NUMBERS: usize = 1 << 14;
/// Minimum channels that are pooled together, unless there are fewer.
const CHANNELS_MIN: usize = 64;

/// Pools channels-last images, `[batch, height, width, channels]`, into images of the same layout.
pub fn pool2d_pixels(simd: Simd, team: &Team, shape: &PoolShape, kind: PoolKind, input: &[f32], output: &mut [f32]) {
    let ([height, width], [rows, columns]) = (shape.input, shape.output());
    let images = shape.batch * shape.channels;
    assert_eq!((input.len(), output.len()), (images * height * width, images * rows * columns), "input and output");
    if output.is_empty() {
        return;
    }
    let tile = tile_of(shape);
    let tiles = shape.channels.div_ceil(tile);
    let divisor = match kind {
        PoolKind::Average { count_padding: true } => Some(shape.kernel[0] * shape.kernel[1]),
        _ => None,
    };
    let pool = Pool { shape, divisor, tile, input, output: &DisjointSlice::new(output) };
    let taps = shape.kernel[0].max(shape.stride[0]).min(height) * width;
    let grain = GRAIN_NUMBERS.div_ceil(taps.max(columns).saturating_mul(tile));
    team.run_ranges(shape.batch * rows * tiles, grain, &|range| {
        let (mut line, mut line_of) = (crate::scratch::filled(0.0, width * tile), None);
        for task in range {
            let (row, channel) = (task / tiles, task % tiles * tile);
            let one = OutputRow { pool: &pool, row, channel, line: &mut line, line_of: &mut line_of };
            match kind {
                PoolKind::Max => dispatch(simd, PooledRow::<Max>(one, std::marker::PhantomData)),
                PoolKind::Average { .. } => dispatch(simd, PooledRow::<Average>(one, std::marker::PhantomData)),
            }
        }
    });
}

/// Channels that are pooled together: all of them if a line is short enough.
fn tile_of(shape: &PoolShape) -> usize {
    let most = (LINE_NUMBERS / shape.input[1]).next_multiple_of(CHANNELS_MIN);
    // If the output has only one row, threads share it by channels.
    let most = if shape.batch * shape.output()[0] == 1 { most.min(4 * CHANNELS_MIN) } else { most };
    shape.channels.min(most)
}

struct Pool<'a> {
    shape: &'a PoolShape,
    /// The divisor of the sums, if it is the same for all windows.
    divisor: Option<usize>,
    tile: usize,
    input: &'a [f32],
    output: &'a DisjointSlice<'a, f32>,
}

/// Some channels of one row of the output; rows of all images are numbered consecutively.
struct OutputRow<'a> {
    pool: &'a Pool<'a>,
    row: usize,
    channel: usize,
    line: &'a mut [f32],
    /// The rows and the first channel that are combined in the line; rows of all images are
    /// numbered consecutively.
    line_of: &'a mut Option<(Range<usize>, usize)>,
}

struct PooledRow<'a, J>(OutputRow<'a>, std::marker::PhantomData<J>);

impl<J: Join<f32>> Kernel for PooledRow<'_, J> {
    type Output = ();

    #[inline(always)]
    fn run<L: Level>(self) {
        let OutputRow { pool, row, channel, line, line_of } = self.0;
        let Pool { shape, divisor, tile, input, output } = pool;
        let ([height, width], [rows, columns], channels) = (shape.input, shape.output(), shape.channels);
        let tile = (*tile).min(channels - channel);
        let window = shape.window(0, row % rows);
        let first = row / rows * height + window.start;
        let line = &mut line[..width * tile];
        let from = |index: usize, pixel: usize| ((first + index) * width + pixel) * channels + channel;
        let lines = Some((first..first + window.len(), channel));
        let is_known = std::mem::replace(line_of, lines.clone()) == lines;
        match tile == channels {
            _ if is_known => {}
            true => join_all::<J>(line, window.len(), |index| &input[from(index, 0)..][..width * channels]),
            false => line.chunks_exact_mut(tile).enumerate().for_each(|(pixel, to)| {
                join_all::<J>(to, window.len(), |index| &input[from(index, pixel)..][..tile]);
            }),
        }
        let mut before = 0..0;
        for column in 0..columns {
            let across = shape.window(1, column);
            let start = (row * columns + column) * channels + channel;
            // SAFETY: the rows and channels of different tasks are disjoint.
            let to = unsafe { output.range(start..start + tile) };
            if std::mem::replace(&mut before, across.clone()) == across {
                // SAFETY: this is the preceding pixel in the same row and channels, which is
                // written already and ends before `start`.
                to.copy_from_slice(unsafe { output.range(start - channels..start - channels + tile) });
                continue;
            }
            join_all::<J>(to, across.len(), |index| &line[(across.start + index) * tile..][..tile]);
            if J::COUNTS {
                let count = divisor.unwrap_or(window.len() * across.len());
                to.iter_mut().for_each(|sum| *sum = sum.over(count));
            }
        }
    }
}

/// Combines slices as long as the target, several at a time. `count` is at least one.
#[inline(always)]
fn join_all<'a, J: Join<f32>>(to: &mut [f32], count: usize, slice: impl Fn(usize) -> &'a [f32]) {
    let len = to.len();
    let at = |index: usize| &slice(index)[..len];
    let mut done = count.min(3);
    match done {
        0 | 1 => to.copy_from_slice(at(0)),
        2 => {
            let (a, b) = (at(0), at(1));
            (0..len).for_each(|lane| to[lane] = J::join(a[lane], b[lane]));
        }
        _ => {
            let (a, b, c) = (at(0), at(1), at(2));
            (0..len).for_each(|lane| to[lane] = J::join(J::join(a[lane], b[lane]), c[lane]));
        }
    }
    while done + 1 < count {
        let (a, b) = (at(done), at(done + 1));
        (0..len).for_each(|lane| to[lane] = J::join(J::join(to[lane], a[lane]), b[lane]));
        done += 2;
    }
    if done < count {
        let a = at(done);
        (0..len).for_each(|lane| to[lane] = J::join(to[lane], a[lane]));
    }
}
