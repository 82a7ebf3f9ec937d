//! Winograd's algorithm for 3×3 taps and channels-last images: a tile of 4×4 outputs costs 36
//! products for each channel and filter instead of 144.
//!
//! 1. A unit of work is a band of rows of tiles; units write disjoint outputs. First the tiles of a
//!    band are transformed, with channels in the lanes of vectors. Then, for each block of filters
//!    and each of the 36 points, the transforms are multiplied with the transformed weights, as in
//!    a convolution with one tap. Last, the block's sums are transformed back, with filters in the
//!    lanes.
//! 2. Sums differ from those of the direct algorithm in the last digits, as
//!    [`super::super::winograd`] explains, so the algorithm is used for kept weights only.

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::ConvShape;
use super::super::blocks::block;
use super::super::epilogue::Epilogue;
use super::super::real::StoredElement as _;
use super::super::vector::{LaneMask, Vector};
use super::super::winograd_tile::{POINTS, TILE_IN, TILE_OUT, forward, inverse, points};
use super::super::workspace::{SharedSlice, SharedSlots, ThreadBuffers, lines};
use super::tile::{Tap, Tile, Tiles};
use super::{FilterBlock, Pixels};
use crate::simd::Simd;
use crate::team::Team;

/// Transforms of a band, in numbers: half of the second-level cache of recent CPUs.
const BAND_NUMBERS_MAX: usize = 288 << 10;
/// Tiles of a band. Each band reads all weights, so bands must not be too small; larger ones gain
/// nothing.
const BAND_TILES_MIN: usize = 24;
const BAND_TILES_MAX: usize = 96;
/// Maximum number of (filter, channel) pairs. Transformed weights are four times as large, and for
/// more pairs reading them dominates.
const PAIRS_MAX: usize = 256 * 256;
/// Minimum number of channels and of filters. With fewer, the transforms cost too much.
const CHANNELS_MIN: usize = 16;
/// Cost of the transforms in products for each point of a tile: for one channel and for one filter.
const CHANNEL_COST: usize = 24;
const FILTER_COST: usize = 20;

/// Whether the algorithm supports the shape and is the fastest.
pub(super) fn suits(simd: Simd, threads: usize, shape: &ConvShape) -> bool {
    let is_three = shape.kernel == [3, 3] && shape.stride == [1, 1] && shape.dilation == [1, 1];
    let (channels, filters) = (shape.channels, shape.filters);
    let pairs = channels.saturating_mul(filters);
    if !is_three || kernels(simd).is_none() || channels.min(filters) < CHANNELS_MIN || pairs > PAIRS_MAX {
        return false;
    }
    let [rows, columns] = shape.output();
    let tiles = shape.batch * rows.div_ceil(TILE_OUT) * columns.div_ceil(TILE_OUT);
    let own = POINTS.saturating_mul(tiles).saturating_mul(pairs + CHANNEL_COST * channels + FILTER_COST * filters);
    let other = shape.taps().saturating_mul(shape.batch * rows * columns).saturating_mul(pairs);
    tiles >= threads * BAND_TILES_MIN && own < other
}

/// Reorders the transforms of weights for the tiles: by block of filters, point, channel, and
/// filter in the block.
pub(super) fn pack(team: &Team, shape: &ConvShape, lanes: usize, weights: &[f32], packed: &mut [f32]) {
    let channels = shape.channels;
    let packed = SharedSlice::new(packed);
    team.run_ranges(shape.filters.div_ceil(2 * lanes), 1, &|range| {
        for filters in range.map(|index| block(shape.filters, 2 * lanes, index)) {
            let width = filters.len().next_multiple_of(lanes);
            // SAFETY: the parts of different blocks of filters are disjoint.
            let part = unsafe { packed.part(filters.start * POINTS * channels, width * POINTS * channels) };
            part.fill(0.0);
            for (lane, filter) in filters.enumerate() {
                for (channel, taps) in weights[filter * channels * 9..][..channels * 9].chunks_exact(9).enumerate() {
                    for (point, value) in points(std::array::from_fn(|tap| taps[tap].weight())).into_iter().enumerate()
                    {
                        part[(point * channels + channel) * width + lane] = value;
                    }
                }
            }
        }
    });
}

/// Runs the convolution with weights from [`pack`]. `simd` must be a level that the CPU has.
pub(super) fn run(
    simd: Simd,
    team: &Team,
    scratch: &mut Vec<ThreadBuffers<f32>>,
    shape: &ConvShape,
    input: Pixels<'_>,
    (weights, bias): (&[f32], &[f32]),
    epilogue: &Epilogue<'_, f32>,
    output: &mut [f32],
) {
    let Some(kernels) = kernels(simd) else { return };
    let tile_columns = shape.output()[1].div_ceil(TILE_OUT);
    let rows = shape.batch * shape.output()[0].div_ceil(TILE_OUT);
    let tiles_max = (BAND_NUMBERS_MAX / POINTS / shape.channels).clamp(BAND_TILES_MIN, BAND_TILES_MAX);
    let band_rows = (tiles_max / tile_columns).clamp(1, rows.div_ceil(team.threads()));
    let bands = rows.div_ceil(band_rows).next_multiple_of(team.threads()).min(rows);
    let band_rows = rows.div_ceil(bands);
    let bands = rows.div_ceil(band_rows);
    let tasks = team.threads().min(bands);
    let shared = SharedSlots::new(scratch, tasks);
    let output = SharedSlice::new(output);
    let pass =
        WinogradPass { shape, input, weights, bias, tiles: Tiles::of(simd), kernels, tile_columns, epilogue, output };
    let next = AtomicUsize::new(0);
    team.run(tasks, &|task| {
        // SAFETY: every task has its own index, and borrows the slot once.
        let slot = unsafe { shared.take(task) };
        loop {
            let band = next.fetch_add(1, Ordering::Relaxed);
            if band >= bands {
                break;
            }
            pass.band(block(rows, band_rows, band), slot);
        }
    });
}

/// One running convolution.
struct WinogradPass<'a> {
    shape: &'a ConvShape,
    input: Pixels<'a>,
    weights: &'a [f32],
    bias: &'a [f32],
    tiles: &'static Tiles,
    kernels: Kernels,
    tile_columns: usize,
    epilogue: &'a Epilogue<'a, f32>,
    output: SharedSlice<f32>,
}

impl WinogradPass<'_> {
    /// Computes some rows of tiles; the rows of all images are numbered one after the other.
    fn band(&self, rows: Range<usize>, slot: &mut ThreadBuffers<f32>) {
        let (shape, width) = (self.shape, 2 * self.tiles.lanes);
        let (channels, count) = (shape.channels, rows.len() * self.tile_columns);
        // Not a power of two, which would map all points to the same cache sets.
        let stride = (count * channels).next_multiple_of(self.tiles.lanes) + self.tiles.lanes;
        let inputs = lines(&mut slot.panel, POINTS * stride);
        for (index, tile) in self.all(&rows).enumerate() {
            // SAFETY: the CPU has the level. The transforms of all tiles have room, and pixels
            // outside of the image are not read.
            unsafe { (self.kernels.inputs)(self, tile, inputs[index * channels..].as_mut_ptr(), stride) };
        }
        let sums = lines(&mut slot.outputs, POINTS * count * width + width);
        let (zeros, sums) = sums.split_at_mut(width);
        zeros.fill(0.0);
        for start in (0..shape.filters).step_by(width) {
            let filters = start..(start + width).min(shape.filters);
            let vectors = filters.len().div_ceil(self.tiles.lanes);
            let own = vectors * self.tiles.lanes;
            let block = FilterBlock {
                weights: &self.weights[start * POINTS * channels..][..own * POINTS * channels],
                bias: &self.bias[start..][..own],
                filters,
                vectors,
                ahead: Cell::new(0),
            };
            for point in 0..POINTS {
                self.products(
                    &block,
                    point,
                    inputs[point * stride..].as_ptr(),
                    count,
                    zeros,
                    &mut sums[point * count * own..],
                );
            }
            for (index, tile) in self.all(&rows).enumerate() {
                // SAFETY: the CPU has the level. All points of the tile have sums, and only this
                // band writes its outputs.
                unsafe { (self.kernels.outputs)(self, &block, tile, sums[index * own..].as_ptr(), count * own) };
            }
        }
        self.activate(&rows);
    }

    /// Computes the sums of all tiles at one point.
    fn products(
        &self,
        block: &FilterBlock<'_>,
        point: usize,
        inputs: *const f32,
        count: usize,
        zeros: &[f32],
        sums: &mut [f32],
    ) {
        let (channels, width) = (self.shape.channels, block.bias.len());
        let taps = [Tap { offset: 0, index: point }];
        let kernels = self.tiles.rows[block.vectors - 1];
        let parts = count.div_ceil(self.tiles.pixels());
        for part in 0..parts {
            let tiles = part * count / parts..(part + 1) * count / parts;
            let tile = Tile {
                pixels: inputs.wrapping_add(tiles.start * channels),
                pixel_step: channels,
                row_step: 0,
                channels,
                channel_step: 1,
                taps: &taps,
                weights: block.weights.as_ptr(),
                ahead: block.ahead(if part == 0 { channels * block.vectors } else { 0 }),
                bias: zeros.as_ptr(),
                sums: sums[tiles.start * width..tiles.end * width].as_mut_ptr(),
                sum_step: width,
                sum_row: 0,
            };
            // SAFETY: the level is one that the CPU has. The tiles have all channels of this point.
            // The weights have whole vectors for each point and channel. The zeros are as wide as a
            // block, and the sums of all tiles have room.
            unsafe { kernels[tiles.len() - 1](&tile) };
        }
    }

    /// The tiles of some rows: image, and the row and column of the first output.
    fn all(&self, rows: &Range<usize>) -> impl Iterator<Item = [usize; 3]> {
        let (image_rows, columns) = (self.shape.output()[0].div_ceil(TILE_OUT), self.tile_columns);
        rows.clone().flat_map(move |row| {
            let (image, row) = (row / image_rows, row % image_rows);
            (0..columns).map(move |column| [image, row * TILE_OUT, column * TILE_OUT])
        })
    }

    /// Activates the outputs of some rows of tiles, which are contiguous in each image.
    fn activate(&self, rows: &Range<usize>) {
        let Some(activate) = self.epilogue.activate else { return };
        let [height, width] = self.shape.output();
        let image_rows = height.div_ceil(TILE_OUT);
        let line = |row: usize| row / image_rows * height + (row % image_rows * TILE_OUT).min(height);
        let (first, end) = (line(rows.start), line(rows.end));
        let row_len = width * self.shape.filters;
        // SAFETY: only this band writes these rows.
        activate(first * row_len, unsafe { self.output.part(first * row_len, (end - first) * row_len) });
    }
}

/// The transform functions of a level.
#[derive(Clone, Copy)]
struct Kernels {
    /// Transforms the inputs of a tile: channel `c` of point `p` goes to `to + p * stride + c`.
    inputs: unsafe fn(&WinogradPass<'_>, tile: [usize; 3], to: *mut f32, stride: usize),
    /// Computes the outputs of a tile: sum `f` of point `p` is at `from + p * stride + f`.
    outputs: unsafe fn(&WinogradPass<'_>, block: &FilterBlock<'_>, tile: [usize; 3], from: *const f32, stride: usize),
}

fn kernels(simd: Simd) -> Option<Kernels> {
    match simd {
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => Some(Kernels { inputs: inputs_avx512, outputs: outputs_avx512 }),
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => Some(Kernels { inputs: inputs_avx2, outputs: outputs_avx2 }),
        _ => None,
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop)] // Loops over constants, unrolled into registers; every array is indexed alike.
unsafe fn inputs_body<V: Vector<Scalar = f32>>(
    pass: &WinogradPass<'_>,
    [image, y, x]: [usize; 3],
    to: *mut f32,
    stride: usize,
) {
    let (shape, [image_step, channel_step, row_step, pixel_step]) = (pass.shape, pass.input.strides);
    let [height, width] = shape.input;
    let first = pass.input.numbers.as_ptr().wrapping_add(image * image_step);
    let row_of = |index: usize| (y + index).wrapping_sub(shape.padding[0]);
    let column_of = |index: usize| (x + index).wrapping_sub(shape.padding[1]);
    for channel in (0..shape.channels).step_by(V::LANES) {
        let lanes = (shape.channels - channel).min(V::LANES);
        let mask = LaneMask::all(lanes);
        // SAFETY: the caller guarantees the level and the room. Pixels outside of the image and
        // channels beyond the last are not read.
        unsafe {
            let zero = V::splat(0.0);
            let mut halves = [[zero; TILE_IN]; TILE_IN];
            for row in 0..TILE_IN {
                if row_of(row) >= height {
                    continue;
                }
                let line = first.wrapping_add(row_of(row) * row_step + channel * channel_step);
                let mut pixels = [zero; TILE_IN];
                for column in 0..TILE_IN {
                    if column_of(column) < width {
                        let from = line.wrapping_add(column_of(column) * pixel_step);
                        pixels[column] = if lanes == V::LANES { V::load(from) } else { V::load_inside(from, mask) };
                    }
                }
                halves[row] = forward(pixels);
            }
            for column in 0..TILE_IN {
                let mut rows = [zero; TILE_IN];
                for row in 0..TILE_IN {
                    rows[row] = halves[row][column];
                }
                let transformed = forward(rows);
                for row in 0..TILE_IN {
                    let to = to.add((row * TILE_IN + column) * stride + channel);
                    if lanes == V::LANES { transformed[row].store(to) } else { transformed[row].compress(to, mask) }
                }
            }
        }
    }
}

#[inline(always)]
#[allow(clippy::needless_range_loop)] // Loops over constants, unrolled into registers; every array is indexed alike.
unsafe fn outputs_body<V: Vector<Scalar = f32>>(
    pass: &WinogradPass<'_>,
    block: &FilterBlock<'_>,
    [image, y, x]: [usize; 3],
    from: *const f32,
    stride: usize,
) {
    let (filters, [height, width]) = (pass.shape.filters, pass.shape.output());
    for first in (0..block.filters.len()).step_by(V::LANES) {
        let lanes = (block.filters.len() - first).min(V::LANES);
        let mask = LaneMask::all(lanes);
        // SAFETY: the caller guarantees the level and sums of whole vectors. Outputs outside of the
        // image and filters beyond the last are not written.
        unsafe {
            let (bias, one) = (V::load(block.bias.as_ptr().add(first)), V::splat(1.0));
            let mut halves = [[bias; TILE_IN]; TILE_OUT];
            for column in 0..TILE_IN {
                let mut points = [bias; TILE_IN];
                for row in 0..TILE_IN {
                    points[row] = V::load(from.add((row * TILE_IN + column) * stride + first));
                }
                let rows = inverse(points);
                for row in 0..TILE_OUT {
                    halves[row][column] = rows[row];
                }
            }
            for row in 0..TILE_OUT.min(height - y) {
                let sums = inverse(halves[row]);
                for column in 0..TILE_OUT {
                    if x + column < width {
                        let pixel = (image * height + y + row) * width + x + column;
                        let to = pass.output.pointer(pixel * filters + block.filters.start + first, lanes);
                        let sum = one.mul_add(sums[column], bias);
                        if lanes == V::LANES { sum.store(to) } else { sum.compress(to, mask) }
                    }
                }
            }
        }
    }
}

macro_rules! transforms {
    ($inputs:ident, $outputs:ident, $vector:ty, $feature:literal) => {
        #[target_feature(enable = $feature)]
        unsafe fn $inputs(pass: &WinogradPass<'_>, tile: [usize; 3], to: *mut f32, stride: usize) {
            // SAFETY: passed on to the caller, who also guarantees the CPU's level.
            unsafe { inputs_body::<$vector>(pass, tile, to, stride) }
        }

        #[target_feature(enable = $feature)]
        unsafe fn $outputs(
            pass: &WinogradPass<'_>,
            block: &FilterBlock<'_>,
            tile: [usize; 3],
            from: *const f32,
            stride: usize,
        ) {
            // SAFETY: passed on to the caller, who also guarantees the CPU's level.
            unsafe { outputs_body::<$vector>(pass, block, tile, from, stride) }
        }
    };
}

#[cfg(target_arch = "x86_64")]
transforms!(inputs_avx2, outputs_avx2, std::arch::x86_64::__m256, "avx2,fma");
#[cfg(target_arch = "x86_64")]
transforms!(inputs_avx512, outputs_avx512, std::arch::x86_64::__m512, "avx512f");
