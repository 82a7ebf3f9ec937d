//! Pooling of images with their channels last: the lanes of vectors are channels.
//!
//! The rows of a window are joined first, over all columns at once, and then the columns of each window: as for planes, with a pixel in the
//! place of a number.

use super::join::{Average, Join, Max, Number};
use super::{GRAIN_NUMBERS, PoolKind, PoolShape};
use crate::lanes::{Kernel, Level, dispatch};
use crate::parts::Parts;
use crate::simd::Simd;
use crate::team::Team;

/// Numbers of joined rows, about: they stay in the second-level cache.
const LINE_NUMBERS: usize = 1 << 14;
/// Channels that are pooled together at least, where not all are.
const CHANNELS_MIN: usize = 64;

/// Pools images of pixels with their channels side by side, `[batch, height, width, channels]`, into images that lie so.
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
    let pool = Pool { shape, divisor, tile, input, output: &Parts::new(output) };
    let grain = GRAIN_NUMBERS.div_ceil(shape.kernel[0].max(shape.stride[0]) * width * tile);
    team.run_ranges(shape.batch * rows * tiles, grain, &|range| {
        let mut line = vec![0.0; width * tile];
        for task in range {
            let (row, channel) = (task / tiles, task % tiles * tile);
            let one = Row { pool: &pool, row, channel, line: &mut line };
            match kind {
                PoolKind::Max => dispatch(simd, Of::<Max>(one, std::marker::PhantomData)),
                PoolKind::Average { .. } => dispatch(simd, Of::<Average>(one, std::marker::PhantomData)),
            }
        }
    });
}

/// Channels that are pooled together: all of them where a line is short enough.
fn tile_of(shape: &PoolShape) -> usize {
    let most = (LINE_NUMBERS / shape.input[1]).next_multiple_of(CHANNELS_MIN);
    // A row that is the only one is shared among threads by its channels.
    let most = if shape.batch * shape.output()[0] == 1 { most.min(4 * CHANNELS_MIN) } else { most };
    shape.channels.min(most)
}

struct Pool<'a> {
    shape: &'a PoolShape,
    /// What sums are divided by, where that is the same for all windows.
    divisor: Option<usize>,
    tile: usize,
    input: &'a [f32],
    output: &'a Parts<'a, f32>,
}

/// Some channels of one row of the output, which counts through all images.
struct Row<'a> {
    pool: &'a Pool<'a>,
    row: usize,
    channel: usize,
    line: &'a mut [f32],
}

struct Of<'a, J>(Row<'a>, std::marker::PhantomData<J>);

impl<J: Join<f32>> Kernel for Of<'_, J> {
    type Output = ();

    #[inline(always)]
    fn run<L: Level>(self) {
        let Row { pool, row, channel, line } = self.0;
        let Pool { shape, divisor, tile, input, output } = pool;
        let ([height, width], [rows, columns], channels) = (shape.input, shape.output(), shape.channels);
        let tile = (*tile).min(channels - channel);
        let window = shape.window(0, row % rows);
        let first = row / rows * height + window.start;
        let line = &mut line[..width * tile];
        let from = |index: usize, pixel: usize| ((first + index) * width + pixel) * channels + channel;
        match tile == channels {
            true => join_all::<J>(line, window.len(), |index| &input[from(index, 0)..][..width * channels]),
            false => line.chunks_exact_mut(tile).enumerate().for_each(|(pixel, to)| {
                join_all::<J>(to, window.len(), |index| &input[from(index, pixel)..][..tile]);
            }),
        }
        for column in 0..columns {
            let across = shape.window(1, column);
            let start = (row * columns + column) * channels + channel;
            // SAFETY: every task has its own row and channels.
            let to = unsafe { output.range(start..start + tile) };
            join_all::<J>(to, across.len(), |index| &line[(across.start + index) * tile..][..tile]);
            if J::COUNTS {
                let count = divisor.unwrap_or(window.len() * across.len());
                to.iter_mut().for_each(|sum| *sum = sum.over(count));
            }
        }
    }
}

/// Joins slices that are as long as the target, at least one, several at a time.
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
