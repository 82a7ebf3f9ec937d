//! Convolutions of channels-last (NHWC) f32 images, the layout that graphs use between their steps.
//!
//! 1. Lanes of vectors are filters. A tile is a few neighbouring pixels times two vectors of
//!    filters. For each tap and channel, the tile loads the weights of its filters and multiplies
//!    them with one pixel after the other. Images are read in place, through any strides.
//! 2. Padding costs nothing: taps above and below the image are skipped for a whole row, taps
//!    beside the image for the pixels that they would miss.
//! 3. A line is a row of the output. If each output reads exactly one pixel, at its own position, a
//!    line is a fixed number of neighbouring pixels instead. A unit of work is (chunk of filters,
//!    band of lines); units write disjoint outputs. In a unit, each block of filters is applied to
//!    all lines of the band, so that its weights stay in the nearest caches, and the band in the
//!    second-level cache.
//! 4. Convolutions of 3×3 taps with kept weights use Winograd's algorithm if that is faster
//!    (`winograd`).
//! 5. The sum of one output runs over taps and channels in one fixed order, independent of units
//!    and threads: column by column of taps.

mod depthwise;
mod plain;
mod tile;
mod winograd;

use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::ConvShape;
use super::blocks::block;
use super::correlation::PRODUCTS_FOR_TEAM_MIN;
use super::epilogue::Epilogue;
use super::packed::{PackOrder, PackedWeights, all_finite, in_order};
use super::winograd_tile::POINTS;
use super::workspace::{ConvWorkspace, HasScratch as _, SharedSlice, SharedSlots, ThreadBuffers, at_least};
use crate::simd::Simd;
use crate::team::Team;
pub(super) use tile::Tap;
use tile::{LINE_NUMBERS, TILE_PIXELS_MAX, Tile, TileFn, Tiles};

/// Numbers of a band, outputs and inputs together: half of a typical second-level cache.
const BAND_NUMBERS_MAX: usize = 128 << 10;
/// Up to this number, the weights stay in the second-level cache by themselves. A band then has
/// fewer numbers, so that outputs are activated while they are in the nearest caches, and at least
/// `NEAR_BAND_PIXELS_MIN` pixels, so that each loaded weight is used for several pixels.
const NEAR_WEIGHTS_MAX: usize = 128 << 10;
const NEAR_BAND_NUMBERS_MAX: usize = 24 << 10;
const NEAR_BAND_PIXELS_MIN: usize = 48;
/// Pixels of a line that is not a row: a few times the largest tile of each level.
const FLAT_LINE_PIXELS: usize = 48;
/// Units for each thread, so that a slow thread costs little.
const UNITS_PER_THREAD: usize = 4;
/// The same if threads take different filters, where each unit reads all pixels.
const CHUNKS_PER_THREAD: usize = 2;

/// A view of images: numbers and the strides of images, channels, rows and pixels.
#[derive(Clone, Copy, Debug)]
pub struct Pixels<'a> {
    numbers: &'a [f32],
    strides: [usize; 4],
}

impl<'a> Pixels<'a> {
    /// A view of images of these sizes; `None` if an index would be out of bounds.
    pub fn new(numbers: &'a [f32], dims: [usize; 4], strides: [usize; 4]) -> Option<Pixels<'a>> {
        let reach = dims.iter().zip(strides).try_fold(0_usize, |reach, (size, stride)| {
            reach.checked_add(size.saturating_sub(1).checked_mul(stride)?)
        })?;
        (reach < numbers.len() || dims.contains(&0)).then_some(Pixels { numbers, strides })
    }

    /// A view of contiguous channels-last images.
    pub fn dense(numbers: &'a [f32], [batch, channels, height, width]: [usize; 4]) -> Option<Pixels<'a>> {
        let strides = [height * width * channels, 1, width * channels, channels];
        Pixels::new(numbers, [batch, channels, height, width], strides)
    }
}

/// Whether [`forward`] supports the shape: one group, or depthwise.
pub fn takes(shape: &ConvShape) -> bool {
    shape.groups == 1 || is_depthwise(shape)
}

fn is_depthwise(shape: &ConvShape) -> bool {
    shape.groups == shape.channels && shape.channels == shape.filters && shape.groups > 1
}

/// As [`super::forward_kept`], for images with any strides and a channels-last output: images,
/// rows, pixels, filters. Activations count outputs in that order, too. The shape must satisfy
/// [`takes`].
pub fn forward(
    simd: Simd,
    team: &Team,
    workspace: &mut ConvWorkspace,
    shape: &ConvShape,
    (input, weights): (Pixels<'_>, &[f32]),
    mut kept: Option<&mut PackedWeights>,
    epilogue: &Epilogue<'_, f32>,
    output: &mut [f32],
) {
    assert!(takes(shape), "one group, or one filter for each channel");
    assert_eq!((weights.len(), output.len()), (shape.weight_len(), shape.output_len()), "weights and output");
    assert!(Pixels::new(input.numbers, shape.input_dims(), input.strides).is_some(), "images inside their memory");
    if output.is_empty() {
        return;
    }
    // The other algorithms skip the padding, and Winograd's mixes weights: both are correct for
    // finite weights only.
    let is_mixed = kept.is_some() && shape.kernel == [3, 3];
    if (is_mixed || shape.padding != [0; 4]) && !all_finite(weights, kept.as_deref_mut()) {
        return plain::run(team, shape, (input, weights), epilogue, output);
    }
    let simd = simd.min(Simd::detect());
    let lying = taps_as_channels(shape, input);
    let (shape, input) = (&lying.0, lying.1);
    let scratch = f32::scratch(workspace);
    let tiles = Tiles::of(simd);
    fill_bias(at_least(&mut scratch.bias, shape.filters.next_multiple_of(2 * tiles.lanes)), epilogue);
    let sizes = [shape.groups, shape.filters, shape.group_channels()];
    if is_depthwise(shape) {
        let pack = |packed: &mut [f32]| depthwise::pack(shape, weights, packed);
        let packed = in_order(PackOrder::Taps, sizes, &[], weights.len(), kept, &mut scratch.packed, &pack);
        return depthwise::run(simd, team, shape, input, packed, &scratch.bias, epilogue.activate, output);
    }
    let filters = shape.filters.next_multiple_of(tiles.lanes);
    if input.strides[1] == 1 && kept.is_some() && winograd::suits(simd, team.threads(), shape) {
        let total = filters * shape.channels * POINTS;
        let pack = |packed: &mut [f32]| winograd::pack(team, shape, tiles.lanes, weights, packed);
        let weights = in_order(PackOrder::PointsLast(tiles.lanes), sizes, &[], total, kept, &mut scratch.packed, &pack);
        let operands = (weights, &scratch.bias[..]);
        return winograd::run(simd, team, &mut scratch.slots, shape, input, operands, epilogue, output);
    }
    let total = filters * shape.channels * shape.taps();
    let pack = |packed: &mut [f32]| pack(team, shape, tiles.lanes, weights, packed);
    let weights = in_order(PackOrder::ChannelsLast(tiles.lanes), sizes, &[], total, kept, &mut scratch.packed, &pack);
    set_taps(&mut scratch.taps, shape, &input);
    let products = shape.output_len().saturating_mul(shape.channels * shape.taps());
    let threads = if products < PRODUCTS_FOR_TEAM_MIN { 1 } else { team.threads() };
    let lines = PixelLines::new(shape, &input);
    let cut = ConvSplit::new(threads, shape, &lines, tiles.lanes);
    let tasks = threads.min(cut.units());
    let mut slots = std::mem::take(&mut scratch.slots);
    let shared = SharedSlots::new(&mut slots, tasks);
    let (taps, bias) = (&scratch.taps[..], &scratch.bias[..]);
    let output = SharedSlice::new(output);
    let pass = ChannelsLastPass { shape, input, weights, bias, taps, tiles, lines, cut, epilogue, output };
    let next = AtomicUsize::new(0);
    team.run(tasks, &|task| {
        // SAFETY: every task has its own index, and borrows the slot once.
        let slot = unsafe { shared.take(task) };
        loop {
            let unit = next.fetch_add(1, Ordering::Relaxed);
            if unit >= pass.cut.units() {
                break;
            }
            pass.unit(unit, slot);
        }
    });
    scratch.slots = slots;
}

/// Sets the bias of each filter, and zeros after the last one.
fn fill_bias(bias: &mut [f32], epilogue: &Epilogue<'_, f32>) {
    bias.fill(0.0);
    bias.iter_mut().zip(epilogue.bias.into_iter().flatten()).for_each(|(to, from)| *to = *from);
}

/// Sets the taps of a shape, column by column. Offsets wrap, because those of taps outside of the
/// image may be of any size.
fn set_taps(taps: &mut Vec<Tap>, shape: &ConvShape, input: &Pixels<'_>) {
    taps.clear();
    taps.extend((0..shape.taps()).map(|index| {
        let (column, row) = (index / shape.kernel[0], index % shape.kernel[0]);
        let down = (row * shape.dilation[0]).wrapping_mul(input.strides[2]);
        let right = (column * shape.dilation[1]).wrapping_mul(input.strides[3]);
        Tap { offset: down.wrapping_add(right) as isize, index }
    }));
}

/// Turns one row of taps of one channel, without padding, into one tap with that number of
/// channels: neighbouring pixels are as far apart as channels, and one long loop replaces many
/// short ones.
fn taps_as_channels<'a>(shape: &ConvShape, input: Pixels<'a>) -> (ConvShape, Pixels<'a>) {
    let [rows, columns] = shape.kernel;
    let is_line = shape.channels == 1 && rows == 1 && columns > 1 && shape.padding == [0; 4] && shape.dilation[1] == 1;
    if !is_line {
        return (*shape, input);
    }
    let [image, _, row, pixel] = input.strides;
    let width = (shape.output()[1] - 1) * shape.stride[1] + 1;
    let lying = ConvShape { channels: columns, kernel: [1, 1], input: [shape.input[0], width], ..*shape };
    (lying, Pixels { strides: [image, pixel, row, pixel], ..input })
}

/// Reorders weights for the tiles: by block of filters, column of taps, row of taps, channel, and
/// filter in the block.
fn pack(team: &Team, shape: &ConvShape, lanes: usize, weights: &[f32], packed: &mut [f32]) {
    let ([rows, columns], channels) = (shape.kernel, shape.channels);
    let depth = rows * columns * channels;
    let packed = SharedSlice::new(packed);
    team.run_ranges(shape.filters.div_ceil(2 * lanes), 1, &|range| {
        for filters in range.map(|index| block(shape.filters, 2 * lanes, index)) {
            let width = filters.len().next_multiple_of(lanes);
            // SAFETY: the parts of different blocks of filters are disjoint.
            let part = unsafe { packed.part(filters.start * depth, width * depth) };
            part.fill(0.0);
            for (lane, filter) in filters.enumerate() {
                let from = &weights[filter * depth..][..depth];
                for (channel, taps) in from.chunks_exact(rows * columns).enumerate() {
                    for (tap, weight) in taps.iter().enumerate() {
                        let tap = tap % columns * rows + tap / columns;
                        part[(tap * channels + channel) * width + lane] = super::real::StoredElement::weight(*weight);
                    }
                }
            }
        }
    });
}

/// The output's pixels, split into lines.
struct PixelLines {
    count: usize,
    /// Pixels of a line; the last one may have fewer.
    pixels: usize,
    total: usize,
    /// Whether lines are not rows, because each output reads exactly one pixel, at its own
    /// position.
    is_flat: bool,
}

impl PixelLines {
    fn new(shape: &ConvShape, input: &Pixels<'_>) -> PixelLines {
        let ([rows, columns], [height, width]) = (shape.output(), shape.input);
        let [image, _, row, pixel] = input.strides;
        let total = shape.batch * rows * columns;
        let is_pointwise = shape.taps() == 1 && shape.stride == [1, 1] && shape.padding == [0; 4];
        let is_dense = (height == 1 || row == width * pixel) && (shape.batch == 1 || image == height * width * pixel);
        let is_flat = is_pointwise && is_dense;
        let pixels = if is_flat { FLAT_LINE_PIXELS.min(total) } else { columns };
        PixelLines { count: total.div_ceil(pixels), pixels, total, is_flat }
    }

    /// The range of the output's pixels that a line has.
    fn range(&self, line: usize) -> Range<usize> {
        block(self.total, self.pixels, line)
    }
}

/// The split of a convolution into units.
struct ConvSplit {
    band_lines: usize,
    bands: usize,
    chunk_filters: usize,
    chunks: usize,
}

impl ConvSplit {
    fn new(threads: usize, shape: &ConvShape, lines: &PixelLines, lanes: usize) -> ConvSplit {
        let width = 2 * lanes;
        let read = shape.input[1] * shape.stride[0].min(shape.input[0]) * shape.channels;
        let line_numbers = match lines.is_flat {
            true => lines.pixels * (shape.channels + shape.filters),
            false => lines.pixels * shape.filters + read,
        };
        let largest = match shape.weight_len() <= NEAR_WEIGHTS_MAX {
            true => (NEAR_BAND_NUMBERS_MAX / line_numbers.max(1)).max(NEAR_BAND_PIXELS_MIN.div_ceil(lines.pixels)),
            false => BAND_NUMBERS_MAX / line_numbers.max(1),
        };
        let largest = largest.clamp(1, lines.count);
        // If there are more weights than pixels, threads take different filters, so that each
        // weight is read once.
        let pixels = shape.output_len() + shape.input_len();
        let (bands, chunks) = match threads {
            1 => (lines.count.div_ceil(largest), 1),
            _ if shape.weight_len() > pixels => {
                let chunks = (CHUNKS_PER_THREAD * threads).min(shape.filters.div_ceil(width));
                (lines.count.div_ceil(largest), chunks)
            }
            _ => (lines.count.div_ceil(largest).max((UNITS_PER_THREAD * threads).min(lines.count)), 1),
        };
        // There are too few lines for all threads.
        let chunks = chunks.max(threads.div_ceil(bands).min(shape.filters.div_ceil(width)));
        let band_lines = lines.count.div_ceil(bands);
        let chunk_filters = shape.filters.div_ceil(width).div_ceil(chunks) * width;
        ConvSplit {
            band_lines,
            bands: lines.count.div_ceil(band_lines),
            chunk_filters,
            chunks: shape.filters.div_ceil(chunk_filters),
        }
    }

    fn units(&self) -> usize {
        self.bands * self.chunks
    }
}

/// One running convolution.
struct ChannelsLastPass<'a> {
    shape: &'a ConvShape,
    input: Pixels<'a>,
    weights: &'a [f32],
    bias: &'a [f32],
    taps: &'a [Tap],
    tiles: &'static Tiles,
    lines: PixelLines,
    cut: ConvSplit,
    epilogue: &'a Epilogue<'a, f32>,
    output: SharedSlice<f32>,
}

/// A block of filters with its weights.
struct FilterBlock<'a> {
    filters: Range<usize>,
    /// Vectors of filters; the last one may have unused lanes.
    vectors: usize,
    weights: &'a [f32],
    bias: &'a [f32],
    /// How many numbers of the next block's weights are prefetched already.
    ahead: Cell<usize>,
}

impl FilterBlock<'_> {
    /// A pointer to the weights of the next block, which follow this block's weights, for
    /// prefetching during a tile of `depth` taps and channels. Once all are fetched, the last ones
    /// are fetched again, which costs nothing.
    fn ahead(&self, depth: usize) -> *const f32 {
        let (next, len, wanted) = (self.ahead.get(), self.weights.len(), depth * LINE_NUMBERS);
        self.ahead.set((next + wanted).min(len));
        self.weights.as_ptr().wrapping_add(len + next.min(len.saturating_sub(wanted)))
    }
}

impl ChannelsLastPass<'_> {
    fn unit(&self, index: usize, slot: &mut ThreadBuffers<f32>) {
        let filters = block(self.shape.filters, self.cut.chunk_filters, index / self.cut.bands);
        let lines = block(self.lines.count, self.cut.band_lines, index % self.cut.bands);
        let (width, depth) = (2 * self.tiles.lanes, self.shape.channels * self.taps.len());
        let spare = at_least(&mut slot.outputs, TILE_PIXELS_MAX * width);
        for start in filters.clone().step_by(width) {
            let own = start..(start + width).min(filters.end);
            let vectors = own.len().div_ceil(self.tiles.lanes);
            let block = FilterBlock {
                weights: &self.weights[start * depth..][..vectors * self.tiles.lanes * depth],
                bias: &self.bias[start..][..vectors * self.tiles.lanes],
                filters: own,
                vectors,
                ahead: Cell::new(0),
            };
            let mut line = lines.start;
            while line < lines.end {
                line += self.line(&block, line, lines.end, spare);
            }
        }
        self.activate(lines, filters);
    }

    /// The rows of taps that meet the image in a line that is a row.
    fn tap_rows(&self, line: usize) -> Range<usize> {
        let shape = self.shape;
        let first = line % shape.output()[0] * shape.stride[0];
        inside(first, shape.padding[0], shape.kernel[0], shape.dilation[0], shape.input[0])
    }

    /// Computes one line or two, and returns how many.
    fn line(&self, block: &FilterBlock<'_>, line: usize, end: usize, spare: &mut [f32]) -> usize {
        let [image_step, _, row_step, pixel_step] = self.input.strides;
        let pixels = self.lines.range(line);
        if self.lines.is_flat {
            let first = self.input.numbers.as_ptr().wrapping_add(pixels.start * pixel_step);
            let count = pixels.len().div_ceil(self.tiles.pixels());
            for index in 0..count {
                let part = index * pixels.len() / count..(index + 1) * pixels.len() / count;
                let from = first.wrapping_add(part.start * pixel_step);
                let sums = Sums { first: pixels.start + part.start, row: 0 };
                self.tile(block, self.taps, from, [part.len(), 1], &sums, true, spare);
            }
            return 1;
        }
        let shape = self.shape;
        let [rows, columns] = shape.output();
        let (image, row) = (line / rows, line % rows);
        let tap_rows = self.tap_rows(line);
        // A few pixels of two rows are computed together, so that the weights are read once.
        let count = columns.div_ceil(self.tiles.pixels());
        let is_pair = columns.div_ceil(count) <= self.tiles.pairs.len()
            && block.vectors == 2
            && line + 1 < end
            && row + 1 < rows
            && self.tap_rows(line + 1) == tap_rows;
        let lines = 1 + usize::from(is_pair);
        let above = (row * shape.stride[0]).wrapping_sub(shape.padding[0]).wrapping_mul(row_step);
        let left = shape.padding[1].wrapping_mul(pixel_step);
        let first = (image * image_step).wrapping_add(above).wrapping_sub(left);
        let step = shape.stride[1].wrapping_mul(pixel_step);
        for index in 0..count {
            let part = index * columns / count..(index + 1) * columns / count;
            let from = self.input.numbers.as_ptr().wrapping_add(first).wrapping_add(part.start.wrapping_mul(step));
            let sums = Sums { first: pixels.start + part.start, row: columns };
            let met = |column: usize| self.met(column, &part);
            let is_whole = tap_rows.len() == shape.kernel[0] && (0..shape.kernel[1]).all(|column| met(column) == part);
            if is_whole {
                self.tile(block, self.taps, from, [part.len(), lines], &sums, true, spare);
                continue;
            }
            self.begin(block, part.len(), lines, &sums);
            for column in 0..shape.kernel[1] {
                let met = met(column);
                if met.is_empty() || tap_rows.is_empty() {
                    continue;
                }
                let taps = &self.taps[column * shape.kernel[0]..][tap_rows.clone()];
                let skipped = met.start - part.start;
                let from = from.wrapping_add(skipped.wrapping_mul(step));
                let sums = Sums { first: sums.first + skipped, ..sums };
                self.tile(block, taps, from, [met.len(), lines], &sums, false, spare);
            }
        }
        lines
    }

    /// The pixels of `part` of a row for which the column of taps lies inside the image.
    fn met(&self, column: usize, part: &Range<usize>) -> Range<usize> {
        let shape = self.shape;
        let (step, tap) = (shape.stride[1], column * shape.dilation[1]);
        let start = shape.padding[1].saturating_sub(tap).div_ceil(step);
        let end = (shape.input[1] + shape.padding[1]).saturating_sub(tap).div_ceil(step);
        let start = start.clamp(part.start, part.end);
        start..end.clamp(start, part.end)
    }

    /// Pointer to the sums of a pixel of the output.
    fn place(&self, block: &FilterBlock<'_>, pixel: usize) -> *mut f32 {
        self.output.pointer(pixel * self.shape.filters + block.filters.start, block.filters.len())
    }

    /// Sets the sums to the bias.
    fn begin(&self, block: &FilterBlock<'_>, pixels: usize, rows: usize, sums: &Sums) {
        for pixel in (0..rows).flat_map(|row| (0..pixels).map(move |pixel| row * sums.row + pixel)) {
            let first = (sums.first + pixel) * self.shape.filters + block.filters.start;
            // SAFETY: no other unit writes these filters of this pixel.
            let to = unsafe { self.output.part(first, block.filters.len()) };
            to.copy_from_slice(&block.bias[..block.filters.len()]);
        }
    }

    /// Computes one tile of `columns` pixels in `rows` rows. The sums start from the bias or
    /// continue from their current values.
    fn tile(
        &self,
        block: &FilterBlock<'_>,
        taps: &[Tap],
        pixels: *const f32,
        [columns, rows]: [usize; 2],
        sums: &Sums,
        from_bias: bool,
        spare: &mut [f32],
    ) {
        let kernels = if rows == 2 { self.tiles.pairs } else { self.tiles.rows[block.vectors - 1] };
        let kernel: TileFn = kernels[columns - 1];
        let (width, filters) = (block.vectors * self.tiles.lanes, block.filters.len());
        let is_direct = filters == width;
        let (first, step) = (self.place(block, sums.first), self.shape.filters);
        if !is_direct && !from_bias {
            for (row, pixel) in (0..rows).flat_map(|row| (0..columns).map(move |pixel| (row, pixel))) {
                let from = self.place(block, sums.first + row * sums.row + pixel);
                // SAFETY: these filters of the pixel belong to this unit.
                let from = unsafe { std::slice::from_raw_parts(from, filters) };
                spare[(row * columns + pixel) * width..][..filters].copy_from_slice(from);
            }
        }
        self.place(block, sums.first + (rows - 1) * sums.row + columns - 1);
        let tile = Tile {
            pixels,
            pixel_step: self.shape.stride[1].wrapping_mul(self.input.strides[3]),
            row_step: self.shape.stride[0].wrapping_mul(self.input.strides[2]),
            channels: self.shape.channels,
            channel_step: self.input.strides[1],
            taps,
            weights: block.weights.as_ptr(),
            ahead: block.ahead(taps.len() * self.shape.channels),
            bias: if from_bias { block.bias.as_ptr() } else { std::ptr::null() },
            sums: if is_direct { first } else { spare[..rows * columns * width].as_mut_ptr() },
            sum_step: if is_direct { step } else { width },
            sum_row: if is_direct { sums.row * step } else { columns * width },
        };
        // SAFETY: the level was limited to what the CPU has. All taps of these pixels lie inside
        // the image, which lies inside its memory. Weights and bias have whole vectors for each tap
        // and channel. The sums of all pixels belong to this unit, or are in `spare`.
        unsafe { kernel(&tile) };
        if !is_direct {
            for (row, pixel) in (0..rows).flat_map(|row| (0..columns).map(move |pixel| (row, pixel))) {
                let to = self.place(block, sums.first + row * sums.row + pixel);
                // SAFETY: these filters of the pixel belong to this unit.
                let to = unsafe { std::slice::from_raw_parts_mut(to, filters) };
                to.copy_from_slice(&spare[(row * columns + pixel) * width..][..filters]);
            }
        }
    }

    /// Activates these filters in these lines.
    fn activate(&self, lines: Range<usize>, filters: Range<usize>) {
        let Some(activate) = self.epilogue.activate else { return };
        let pixels = self.lines.range(lines.start).start..self.lines.range(lines.end - 1).end;
        let (all, at_once) = (self.shape.filters, if filters.len() == self.shape.filters { pixels.len() } else { 1 });
        for pixel in pixels.step_by(at_once) {
            let first = pixel * all + filters.start;
            // SAFETY: no other unit writes these filters of these pixels.
            activate(first, unsafe { self.output.part(first, (at_once - 1) * all + filters.len()) });
        }
    }
}

/// The position of a tile's sums: its first pixel in the output, and the distance to the next row,
/// in pixels.
#[derive(Clone, Copy)]
struct Sums {
    first: usize,
    row: usize,
}

/// The range of taps that lie inside an axis of `size` with `padding` zeros before it, if the first
/// tap is at `first`.
fn inside(first: usize, padding: usize, taps: usize, dilation: usize, size: usize) -> Range<usize> {
    let start = padding.saturating_sub(first).div_ceil(dilation).min(taps);
    let end = (size + padding).saturating_sub(first).div_ceil(dilation).min(taps);
    start..end.max(start)
}
