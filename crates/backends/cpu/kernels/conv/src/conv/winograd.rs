//! Winograd's algorithm for 3×3 taps: a tile of 4×4 outputs costs 36 products for each channel and
//! filter instead of 144.
//!
//! 1. Weights are transformed once, inputs for each call. For each of the 36 points there is a
//!    matrix product over the channels, filters × tiles, with tiles in the lanes of vectors. The
//!    sums are transformed back.
//! 2. If there is one band for all threads, they first transform its inputs, each thread some
//!    channels, and wait for each other before the products.
//! 3. A unit of work is (group, band of rows of tiles, chunk of filters). The rows of all images
//!    are numbered consecutively, so that a band of small images has tiles of several images. A
//!    unit owns its outputs.
//! 4. Sums differ from those of the other algorithms in the last digits: intermediate numbers are
//!    up to a few dozen times as large as the result. The algorithm is therefore used only if the
//!    caller keeps the weights, as models do, and for f32.
//! 5. The sum of one output runs in one fixed order, independent of bands and threads.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::ConvShape;
use super::blocks::{block, largest};
use super::correlation::PRODUCTS_FOR_TEAM_MIN;
use super::epilogue::Epilogue;
use super::packed::{PackedWeights, transformed};
use super::real::StoredElement;
use super::tile::{Kernel, LaneRun, RealKernels as _, TILE_VECTORS, Tile, filter_blocks};
use super::vector::LaneMask;
use super::winograd_tile::{POINTS, TILE_IN, TILE_OUT, WinogradKernels};
use super::workspace::{HasScratch as _, Scratch, SharedSlice, SharedSlots, ThreadBuffers, lines};
use crate::simd::Simd;
use crate::team::Team;

/// Maximum of channels times tiles of a band: their transforms take half of a typical second-level
/// cache.
const BAND_INPUTS_MAX: usize = 4608;
/// Minimum tiles of a band, if there are enough: the weights are read once for each band.
const BAND_TILES_MIN: usize = 32;
/// If all images together have up to this number of tiles, they are one band, and threads take
/// different filters.
const WHOLE_TILES_MAX: usize = 48;
/// Channels of a block: their transforms stay in the first-level cache for all filters.
const BLOCK_CHANNELS: usize = 64;
/// Maximum of filters times tiles whose sums wait for the inverse transform.
const SUMS_MAX: usize = 1820;
/// Chunks or bands for each thread, so that a slow thread costs little.
const UNITS_PER_THREAD: usize = 2;
/// Maximum number of (filter, channel) pairs. Transformed weights are four times as large, and for
/// more pairs reading them dominates.
const PAIRS_MAX: usize = 256 * 256;
/// Cost of the transforms in products for each tile: for one channel and for one filter.
const CHANNEL_COST: usize = 28;
const FILTER_COST: usize = 17;

/// Runs the convolution and returns true if the algorithm suits its shape. `simd` must be a level
/// that the CPU has.
pub(super) fn forward<S: StoredElement>(
    simd: Simd,
    team: &Team,
    scratch: &mut Scratch<S::Real>,
    shape: &ConvShape,
    (input, weights): (&[S], &[S]),
    kept: Option<&mut PackedWeights>,
    epilogue: &Epilogue<'_, S>,
    output: &mut [S],
) -> bool {
    let Some(kernels) = S::Real::winograd(simd).filter(|_| suits::<S>(simd, shape)) else { return false };
    let Some(weights) = kept.and_then(|kept| transformed::<S>(simd, team, shape, weights, S::Real::forms(kept))) else {
        return false;
    };
    let cut = WinogradSplit::new(team.threads(), shape, S::Real::lanes(simd));
    scratch.full_runs.clear();
    let runs = (0..cut.stride).step_by(cut.lanes);
    scratch.full_runs.extend(runs.map(|start| LaneRun { mask: LaneMask::all(cut.lanes), start }));
    scratch.offsets.clear();
    scratch.offsets.extend((0..BLOCK_CHANNELS.min(cut.channels)).map(|channel| channel * cut.stride));
    let units = shape.groups * cut.bands * cut.chunks;
    let products = shape.output_len().saturating_mul(shape.group_channels());
    let tasks = if products < PRODUCTS_FOR_TEAM_MIN { 1 } else { team.threads().min(units) };
    let (mut slots, mut shared) = (std::mem::take(&mut scratch.slots), std::mem::take(&mut scratch.shared));
    let own_slots = SharedSlots::new(&mut slots, tasks);
    let pass =
        WinogradPass { simd, shape, cut, kernels, scratch, input, weights, epilogue, output: SharedSlice::new(output) };
    let common = if units == pass.cut.chunks && tasks > 1 { lines(&mut shared, pass.inputs_len()) } else { &mut [] };
    if !common.is_empty() {
        let (rows, inputs) = (0..shape.batch * pass.cut.tile_rows, SharedSlice::new(common));
        team.run(tasks, &|task| {
            // SAFETY: every task has its own index, and borrows the slot once.
            let slot = unsafe { own_slots.take(task) };
            let channels = block(pass.cut.channels, pass.cut.channels.div_ceil(tasks), task);
            pass.transform(0, rows.clone(), channels, &inputs, lines(&mut slot.panel, pass.rows_len()));
        });
    }
    let (next, common) = (AtomicUsize::new(0), &*common);
    team.run(tasks, &|task| {
        // SAFETY: every task has its own index, and borrows the slot once.
        let slot = unsafe { own_slots.take(task) };
        loop {
            let unit = next.fetch_add(1, Ordering::Relaxed);
            if unit >= units {
                break;
            }
            pass.unit(unit, common, slot);
        }
    });
    (scratch.slots, scratch.shared) = (slots, shared);
    true
}

/// Whether the algorithm supports the shape and is the fastest.
fn suits<S: StoredElement>(simd: Simd, shape: &ConvShape) -> bool {
    let is_three = shape.kernel == [3, 3] && shape.stride == [1, 1] && shape.dilation == [1, 1];
    if !is_three || !S::IN_PLACE || size_of::<S>() != size_of::<f32>() || shape.output_len() * shape.input_len() == 0 {
        return false;
    }
    let (channels, filters) = (shape.group_channels(), shape.group_filters());
    let [rows, columns] = shape.output();
    let tiles = shape.batch * rows.div_ceil(TILE_OUT) * columns.div_ceil(TILE_OUT);
    let pairs = channels * filters;
    let lanes = tiles.next_multiple_of(S::Real::lanes(simd));
    let cost = pairs + CHANNEL_COST * channels + FILTER_COST * filters;
    let own = POINTS.saturating_mul(lanes).saturating_mul(cost);
    let other = shape.taps().saturating_mul(shape.batch * rows * columns).saturating_mul(pairs);
    pairs <= PAIRS_MAX && filters >= filter_blocks(simd)[0] && own < other
}

/// The split of a convolution into units, and the strides of a unit's numbers.
struct WinogradSplit {
    lanes: usize,
    channels: usize,
    filters: usize,
    /// Rows of tiles in an image, and tiles in a row.
    tile_rows: usize,
    tile_columns: usize,
    band_rows: usize,
    bands: usize,
    chunk_filters: usize,
    chunks: usize,
    /// Tiles of a band in whole vectors, plus one vector if an image's first tile may be inside a
    /// vector. The distance between channels, and between the points of one filter.
    stride: usize,
    /// Distance between points of the inputs. Not a power of two, which would map all points to the
    /// same cache sets.
    point_stride: usize,
    /// Filters whose sums are kept at the same time.
    filters_at_once: usize,
}

impl WinogradSplit {
    fn new(threads: usize, shape: &ConvShape, lanes: usize) -> WinogradSplit {
        let [tile_rows, tile_columns] = shape.output().map(|size| size.div_ceil(TILE_OUT));
        let (channels, filters, rows) = (shape.group_channels(), shape.group_filters(), shape.batch * tile_rows);
        let tiles_max = (BAND_INPUTS_MAX / channels).max(BAND_TILES_MIN);
        let is_whole = rows * tile_columns <= WHOLE_TILES_MAX.max(tiles_max.min(2 * WHOLE_TILES_MAX));
        let band_rows_max = if is_whole { rows } else { (tiles_max / tile_columns).clamp(1, rows) };
        let wanted = if is_whole || threads == 1 { rows } else { rows.div_ceil(UNITS_PER_THREAD * threads) };
        let vectors = |rows: usize| (rows * tile_columns).div_ceil(lanes);
        // Each band costs an additional half vector, because the weights are read again.
        let cost = |band: &usize| 2 * (rows / band * vectors(*band) + vectors(rows % band)) + rows.div_ceil(*band);
        let least = if is_whole { rows } else { 1 };
        let band_rows = (least..=band_rows_max.min(wanted.max(1)).max(least)).min_by_key(cost).unwrap_or(1);
        let bands = rows.div_ceil(band_rows);
        let largest = 8;
        let chunks_wanted = if bands >= threads { 1 } else { (UNITS_PER_THREAD * threads).div_ceil(bands) };
        let chunk_filters = filters.div_ceil(chunks_wanted).next_multiple_of(largest);
        let stride = (vectors(band_rows) + usize::from(shape.batch > 1)) * lanes;
        WinogradSplit {
            lanes,
            channels,
            filters,
            tile_rows,
            tile_columns,
            band_rows,
            bands,
            chunk_filters,
            chunks: filters.div_ceil(chunk_filters),
            stride,
            point_stride: channels * stride + lanes,
            filters_at_once: (SUMS_MAX / stride / largest * largest).max(largest),
        }
    }
}

/// Rows of tiles of one image that belong to a band.
struct BandPiece {
    image: usize,
    rows: Range<usize>,
    /// Index of the piece's first tile in the band.
    tile: usize,
}

/// One running convolution.
struct WinogradPass<'a, S: StoredElement> {
    simd: Simd,
    shape: &'a ConvShape,
    cut: WinogradSplit,
    kernels: WinogradKernels<S::Real>,
    scratch: &'a Scratch<S::Real>,
    input: &'a [S],
    weights: &'a [S::Real],
    epilogue: &'a Epilogue<'a, S>,
    output: SharedSlice<S>,
}

impl<S: StoredElement> WinogradPass<'_, S> {
    /// Computes one unit. If `common` is not empty, it holds the transformed inputs.
    fn unit(&self, index: usize, common: &[S::Real], slot: &mut ThreadBuffers<S::Real>) {
        let cut = &self.cut;
        let (index, chunk) = (index / cut.chunks, index % cut.chunks);
        let (group, band) = (index / cut.bands, index % cut.bands);
        let rows = block(self.shape.batch * cut.tile_rows, cut.band_rows, band);
        let own_len = if common.is_empty() { self.inputs_len() + self.rows_len() } else { 0 };
        let (own, rest) =
            lines(&mut slot.panel, own_len).split_at_mut(if own_len == 0 { 0 } else { self.inputs_len() });
        if common.is_empty() {
            self.transform(group, rows.clone(), 0..cut.channels, &SharedSlice::new(own), rest);
        }
        let inputs = if common.is_empty() { own } else { common };
        let chunk = block(cut.filters, cut.chunk_filters, chunk);
        for filter in chunk.clone().step_by(cut.filters_at_once) {
            let filters = filter..(filter + cut.filters_at_once).min(chunk.end);
            let sums = POINTS * filters.len() * cut.stride;
            let sums = lines(&mut slot.outputs, sums + TILE_OUT * TILE_OUT * cut.stride);
            let (sums, finished) = sums.split_at_mut(POINTS * filters.len() * cut.stride);
            self.multiply(group, &filters, rows.len() * cut.tile_columns, inputs, sums);
            self.finish(group, filters, rows.clone(), sums, finished);
        }
    }

    /// The rows of a band, split by image.
    fn pieces(&self, rows: Range<usize>) -> impl Iterator<Item = BandPiece> {
        let (height, columns) = (self.cut.tile_rows, self.cut.tile_columns);
        (rows.start / height..rows.end.div_ceil(height)).map(move |image| {
            let first = rows.start.max(image * height);
            let end = rows.end.min((image + 1) * height);
            BandPiece {
                image,
                rows: first - image * height..end - image * height,
                tile: (first - rows.start) * columns,
            }
        })
    }

    /// Length of the transformed inputs of a band.
    fn inputs_len(&self) -> usize {
        POINTS * self.cut.point_stride
    }

    /// Numbers of one row of a channel's tiles.
    fn row_stride(&self) -> usize {
        (self.cut.band_rows + 1) * self.cut.tile_columns + self.cut.lanes
    }

    fn rows_len(&self) -> usize {
        let line = TILE_OUT * self.cut.tile_columns.next_multiple_of(self.cut.lanes) + TILE_IN + self.cut.lanes;
        TILE_OUT * TILE_IN * self.row_stride() + line.max(self.shape.padding[1] + self.shape.input[1])
    }

    /// Transforms these channels of a band's inputs.
    fn transform(
        &self,
        group: usize,
        rows: Range<usize>,
        channels: Range<usize>,
        inputs: &SharedSlice<S::Real>,
        rest: &mut [S::Real],
    ) {
        let (cut, shape) = (&self.cut, self.shape);
        let [height, width] = shape.input;
        let stride = self.row_stride();
        let (made, line) = rest.split_at_mut(TILE_OUT * TILE_IN * stride);
        line.fill(S::Real::default());
        let pieces = |channel: usize| self.pieces(rows.clone()).map(move |piece| (channel, piece));
        for (channel, piece) in channels.flat_map(pieces) {
            let plane = piece.image * shape.channels + group * cut.channels + channel;
            let plane = &self.input[plane * height * width..][..height * width];
            for row in 0..TILE_OUT * piece.rows.len() + TILE_IN - TILE_OUT {
                let start = row % TILE_OUT * TILE_IN * stride + row / TILE_OUT * cut.tile_columns;
                let source =
                    (TILE_OUT * piece.rows.start + row).checked_sub(shape.padding[0]).filter(|row| *row < height);
                let Some(source) = source else {
                    for run in made[start..].chunks_mut(stride).take(TILE_IN) {
                        run[..cut.tile_columns].fill(S::Real::default());
                    }
                    continue;
                };
                S::widen(&plane[source * width..][..width], &mut line[shape.padding[1]..][..width]);
                // SAFETY: the CPU has the level. The line has the inputs of all tiles of a row, in
                // whole vectors. There is room for the row after `start` for each of the six
                // numbers, with a spare vector after the last row.
                unsafe { (self.kernels.rows)(line.as_ptr(), cut.tile_columns, made[start..].as_mut_ptr(), stride) };
            }
            let (tiles, next) = (piece.rows.len() * cut.tile_columns, cut.tile_columns);
            let written = tiles.next_multiple_of(cut.lanes);
            let to = inputs.pointer(channel * cut.stride + piece.tile, (POINTS - 1) * cut.point_stride + written);
            // SAFETY: the rows of these tiles were written above, with a spare vector. The channel
            // has room for whole vectors of them in each point, and no other task writes this
            // channel.
            unsafe { (self.kernels.columns)(made.as_ptr(), stride, next, tiles, to, cut.point_stride) };
        }
    }

    /// Computes the products of all points: for filter `f` of these, point `p` of tile `t` goes to
    /// `sums[(f * 36 + p) * stride + t]`.
    fn multiply(&self, group: usize, filters: &Range<usize>, tiles: usize, inputs: &[S::Real], sums: &mut [S::Real]) {
        let cut = &self.cut;
        let zeros = [S::Real::default(); 8];
        let vectors = tiles.div_ceil(cut.lanes);
        let pairs = cut.filters * cut.channels;
        for point in 0..POINTS {
            let weights = &self.weights[(group * POINTS + point) * pairs..][..pairs];
            for start in (0..cut.channels).step_by(BLOCK_CHANNELS) {
                let channels = BLOCK_CHANNELS.min(cut.channels - start);
                let mut first = 0;
                while first < vectors {
                    let count = tile_vectors(vectors - first);
                    let panel = &inputs[point * cut.point_stride + start * cut.stride + first * cut.lanes..];
                    let mut filter = filters.start;
                    while filter < filters.end {
                        let size = largest(filter_blocks(self.simd), filters.end - filter);
                        let Kernel(kernel) = S::Real::tile(self.simd, size, count);
                        let to = ((filter - filters.start) * POINTS + point) * cut.stride;
                        let tile = Tile {
                            panel: panel.as_ptr(),
                            offsets: &self.scratch.offsets[..channels],
                            weights: weights[filter * cut.channels + start * size..].as_ptr(),
                            bias: if start == 0 { zeros.as_ptr() } else { std::ptr::null() },
                            output: sums[to..].as_mut_ptr(),
                            output_stride: POINTS * cut.stride,
                            lanes: &self.scratch.full_runs[first..first + count],
                        };
                        // SAFETY: `simd` is a level that the CPU has. The inputs have whole vectors
                        // for each channel. The weights hold `size` entries for each of the
                        // channels. The sums have whole vectors for each filter and point.
                        unsafe { kernel(&tile) };
                        filter += size;
                    }
                    first += count;
                }
            }
        }
    }

    /// Transforms the sums back, adds the bias, activates the outputs and writes them.
    fn finish(
        &self,
        group: usize,
        filters: Range<usize>,
        rows: Range<usize>,
        sums: &[S::Real],
        finished: &mut [S::Real],
    ) {
        let (cut, shape) = (&self.cut, self.shape);
        let [height, width] = shape.output();
        let tiles = rows.len() * cut.tile_columns;
        for (filter, sums) in filters.zip(sums.chunks_exact(POINTS * cut.stride)) {
            let filter = group * cut.filters + filter;
            let bias = self.epilogue.bias.map_or(S::Real::default(), |bias| bias[filter].real());
            // SAFETY: the CPU has the level. The sums have whole vectors for each point, and
            // `finished` has sixteen outputs for each of their lanes.
            unsafe { (self.kernels.outputs)(sums.as_ptr(), cut.stride, tiles, bias, finished.as_mut_ptr()) };
            for piece in self.pieces(rows.clone()) {
                let plane = (piece.image * shape.filters + filter) * height * width;
                let lines = TILE_OUT * piece.rows.start..(TILE_OUT * piece.rows.end).min(height);
                let start = plane + lines.start * width;
                // SAFETY: no other unit writes these rows of this filter.
                let output = unsafe { self.output.part(start, lines.len() * width) };
                for (row, to) in output.chunks_exact_mut(width).enumerate() {
                    let tile = piece.tile + row / TILE_OUT * cut.tile_columns;
                    let from = TILE_OUT * (row % TILE_OUT * cut.stride + tile);
                    S::narrow(&finished[from..][..width], to);
                }
                if let Some(activate) = self.epilogue.activate {
                    // SAFETY: the elements are of the type that they are computed in, as `suits`
                    // has checked.
                    activate(start, unsafe { &mut *(std::ptr::from_mut(output) as *mut [S::Real]) });
                }
            }
        }
    }
}

/// Vectors of the next tile if `left` are left: the last two tiles are about equally wide.
fn tile_vectors(left: usize) -> usize {
    if left > TILE_VECTORS && left < 2 * TILE_VECTORS { left.div_ceil(2) } else { left.min(TILE_VECTORS) }
}
