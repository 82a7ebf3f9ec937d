//! Convolutions of images of a few pixels. The lanes of vectors are filters, because there are not
//! enough pixels to fill them.
//!
//! A tile is a few neighbouring pixels of one row, or of two short rows, times two vectors of
//! filters. For each channel and tap, the tile loads the contiguous weights of its filters and
//! multiplies them with one pixel after the other. A unit of work is (image, group, chunk of
//! filters). The weights of a block of filters stay in the second-level cache while they are
//! applied to all pixels.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::blocks::block;
use super::correlation::{Correlation, PRODUCTS_FOR_TEAM_MIN, Placement};
use super::filter_tile::{FilterKernel, FilterTile, TILE_PIXELS_MAX, tile_pixels};
use super::packed::{Blocks, PackedWeights, packed};
use super::panel::{PanelLayout, Stencil};
use super::real::StoredElement;
use super::split::{is_pointwise, products};
use super::tile::RealKernels as _;
use super::workspace::{Scratch, SharedSlice, SharedSlots, ThreadBuffers, at_least};
use crate::simd::Simd;
use crate::team::Team;

/// Vectors of filters in a tile.
pub(super) const VECTORS: usize = 2;
/// Units for each thread, so that a slow thread costs little.
const UNITS_PER_THREAD: usize = 2;
/// Maximum numbers of one image in a panel. The panel holds all channels at once, in half of a
/// typical second-level cache.
const PANEL_NUMBERS_MAX: usize = 128 << 10;
/// Maximum number of computed pixels, in percent of the output's pixels, if the gaps between rows
/// are computed, too.
const FLAT_PERCENT_MAX: usize = 115;
/// Minimum percentage of lanes that pixels have to fill to be the better choice.
const PIXEL_LANES_PERCENT_MIN: usize = 80;

/// Whether pixels would leave too many lanes idle, and filters would not.
pub(super) fn suits<S: StoredElement>(
    simd: Simd,
    stencil: &Stencil,
    layout: &PanelLayout,
    job: &Correlation<'_, S>,
) -> bool {
    let lanes = S::Real::lanes(simd);
    let [rows, columns] = stencil.output;
    let vectors = layout.flat_len(rows).div_ceil(lanes);
    let panel = job.channels.saturating_mul(layout.channel_len(rows));
    S::Real::filter_tile(simd, 1, 1).is_some()
        && job.placement == Placement::dense(stencil.output)
        && job.filters >= lanes
        && job.channels * stencil.taps.len() > 0
        && 100 * rows * columns < PIXEL_LANES_PERCENT_MIN * vectors * lanes
        && (panel <= PANEL_NUMBERS_MAX || is_pointwise(stencil, job))
}

/// Runs the correlation of the stencil and the layout in `scratch`.
pub(super) fn run<S: StoredElement>(
    simd: Simd,
    team: &Team,
    scratch: &mut Scratch<S::Real>,
    job: &Correlation<'_, S>,
    kept: Option<&mut PackedWeights>,
    output: &mut [S],
) {
    let width = VECTORS * S::Real::lanes(simd);
    let direct = is_pointwise(&scratch.stencil, job);
    let [rows, columns] = scratch.stencil.output;
    scratch.offsets.clear();
    if direct {
        scratch.offsets.extend((0..job.channels).map(|channel| channel * rows * columns));
    } else {
        scratch.layout.push_offsets(rows, job.channels, &mut scratch.offsets);
    }
    let blocks = job.filters.div_ceil(width);
    let images = job.batch * job.groups;
    let threads = if products(&scratch.stencil, job) < PRODUCTS_FOR_TEAM_MIN { 1 } else { team.threads() };
    let chunks = if threads == 1 { 1 } else { (UNITS_PER_THREAD * threads).div_ceil(images).min(blocks) };
    let units = images * chunks;
    let tasks = threads.min(units);
    let mut own = std::mem::take(&mut scratch.packed);
    let weights = packed(team, Blocks::FilterLanes(width), job, &scratch.tap_weights, kept, &mut own);
    let mut slots = std::mem::take(&mut scratch.slots);
    let shared = SharedSlots::new(&mut slots, tasks);
    let pass = FilterLanesPass { simd, job, scratch, weights, width, direct, output: SharedSlice::new(output) };
    let next = AtomicUsize::new(0);
    team.run(tasks, &|task| {
        // SAFETY: every task has its own index, and borrows the slot once.
        let slot = unsafe { shared.take(task) };
        loop {
            let unit = next.fetch_add(1, Ordering::Relaxed);
            if unit >= units {
                break;
            }
            pass.unit(unit / chunks, block(blocks, blocks.div_ceil(chunks), unit % chunks), slot);
        }
    });
    scratch.slots = slots;
    scratch.packed = own;
}

/// One running correlation.
struct FilterLanesPass<'a, S: StoredElement> {
    simd: Simd,
    job: &'a Correlation<'a, S>,
    scratch: &'a Scratch<S::Real>,
    weights: &'a [S::Real],
    /// Filters in a block.
    width: usize,
    direct: bool,
    output: SharedSlice<S>,
}

impl<S: StoredElement> FilterLanesPass<'_, S> {
    /// Computes some blocks of filters of one image's group (`image` counts groups of images).
    fn unit(&self, image: usize, blocks: Range<usize>, slot: &mut ThreadBuffers<S::Real>) {
        let (job, layout) = (self.job, &self.scratch.layout);
        let [rows, columns] = self.scratch.stencil.output;
        let plane = self.scratch.stencil.source[0] * self.scratch.stencil.source[1];
        let source = &job.source[image * job.channels * plane..][..job.channels * plane];
        let ThreadBuffers { panel, outputs } = slot;
        let (panel, pitch): (*const S::Real, usize) = if self.direct {
            (source.as_ptr().cast(), columns)
        } else {
            let channel_len = layout.channel_len(rows);
            let panel = at_least(panel, job.channels * channel_len);
            for (source, part) in source.chunks_exact(plane.max(1)).zip(panel.chunks_exact_mut(channel_len)) {
                layout.fill(self.simd, source, 0..rows, rows, part);
            }
            (panel.as_ptr(), layout.pitch)
        };
        let sums = at_least(outputs, self.width * (rows * columns + 1 + TILE_PIXELS_MAX));
        let (bias, sums) = sums.split_at_mut(self.width);
        let (tile, sums) = sums.split_at_mut(self.width * TILE_PIXELS_MAX);
        for index in blocks {
            let filters = block(job.filters, self.width, index);
            let group = image % job.groups;
            bias.fill(S::Real::default());
            bias[..filters.len()].copy_from_slice(&self.scratch.bias[group * job.filters..][filters.clone()]);
            let depth = self.scratch.offsets.len();
            let packed_filters = Blocks::FilterLanes(self.width).filters(job.filters);
            let weights = &self.weights[(group * packed_filters + filters.start) * depth..][..self.width * depth];
            // All weights are read once for each tile, so the gaps between rows are computed as
            // well if that makes fewer tiles.
            let tile_pixels = tile_pixels(self.simd);
            let flat = rows * pitch - (pitch - columns);
            let fewer_tiles = flat.div_ceil(tile_pixels) < rows * columns.div_ceil(tile_pixels);
            let is_flat = fewer_tiles && 100 * flat <= FLAT_PERCENT_MAX * rows * columns || pitch == columns;
            let (runs, run) = if is_flat { (1, flat) } else { (rows, columns) };
            // Two short rows are computed together, so that the weights are read once for both.
            let pairs = S::Real::filter_tile(self.simd, columns, 2).filter(|_| runs > 1);
            let paired = if pairs.is_some() { rows / 2 * 2 } else { 0 };
            for (row, kernel) in (0..paired).step_by(2).zip(pairs.iter().cycle()) {
                let start = panel.wrapping_add(row * pitch);
                self.tile(kernel, start, pitch, weights, bias, tile);
                for (pixel, from) in tile.chunks_exact(self.width).take(2 * columns).enumerate() {
                    let to = sums[row * columns + pixel..].iter_mut().step_by(rows * columns);
                    to.zip(&from[..filters.len()]).for_each(|(to, from)| *to = *from);
                }
            }
            for row in paired..runs {
                let start = panel.wrapping_add(row * pitch);
                let to = &mut sums[row * columns..];
                self.row(start, run, pitch, weights, bias, tile, to, filters.len());
            }
            self.finish(image * job.filters + filters.start, filters.len(), sums);
        }
    }

    /// Computes one run of neighbouring pixels: filter `f` of pixel `p` goes to `sums[f * plane +
    /// p]`. Pixels in the gaps between rows are dropped.
    fn row(
        &self,
        panel: *const S::Real,
        pixels: usize,
        pitch: usize,
        weights: &[S::Real],
        bias: &[S::Real],
        tile: &mut [S::Real],
        sums: &mut [S::Real],
        filters: usize,
    ) {
        let [rows, columns] = self.scratch.stencil.output;
        let plane = rows * columns;
        let tiles = pixels.div_ceil(tile_pixels(self.simd));
        for index in 0..tiles {
            let (first, end) = (index * pixels / tiles, (index + 1) * pixels / tiles);
            let Some(kernel) = S::Real::filter_tile(self.simd, end - first, 1) else { continue };
            self.tile(&kernel, panel.wrapping_add(first), pitch, weights, bias, tile);
            for (pixel, from) in (first..end).zip(tile.chunks_exact(self.width)) {
                let (row, column) = (pixel / pitch, pixel % pitch);
                if column < columns {
                    let to = sums[row * columns + column..].iter_mut().step_by(plane);
                    to.zip(&from[..filters]).for_each(|(to, from)| *to = *from);
                }
            }
        }
    }

    /// Computes one tile: the sums of all filters of a block, pixel by pixel. `panel` points to the
    /// tile's first pixel.
    fn tile(
        &self,
        FilterKernel(kernel): &FilterKernel<S::Real>,
        panel: *const S::Real,
        pitch: usize,
        weights: &[S::Real],
        bias: &[S::Real],
        tile: &mut [S::Real],
    ) {
        let offsets = &self.scratch.offsets;
        let job = FilterTile {
            panel,
            pitch,
            offsets,
            weights: weights.as_ptr(),
            bias: bias.as_ptr(),
            sums: tile.as_mut_ptr(),
        };
        // SAFETY: `simd` was limited to what the CPU has. The panel holds these pixels at every
        // offset. The weights have a block for each offset, the bias has one block, and the tile
        // has room for one block for each pixel.
        unsafe { kernel(&job) };
    }

    /// Activates and writes the sums of these filters. The first filter's plane has the index
    /// `first` in the output.
    fn finish(&self, first: usize, filters: usize, sums: &mut [S::Real]) {
        let plane = self.scratch.stencil.output[0] * self.scratch.stencil.output[1];
        let sums = &mut sums[..filters * plane];
        if let Some(activate) = self.job.activate {
            activate(first * plane, sums);
        }
        // SAFETY: no other unit writes the planes of these filters.
        S::narrow(sums, unsafe { self.output.part(first * plane, filters * plane) });
    }
}
