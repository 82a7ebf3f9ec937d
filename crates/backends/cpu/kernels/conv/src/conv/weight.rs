//! The gradient of the weights. For each filter, channel and tap, it is the product of the output's
//! gradient with the input that the tap reads, summed over images and pixels.
//!
//! 1. A unit of work is (group, chunk of filters, chunk of channels). A unit owns its weights and
//!    iterates over all images and bands itself, in order, so the result does not depend on the
//!    number of threads.
//! 2. For each band, the inputs are copied into a panel and the gradients to the same pitch; then
//!    tiles of filters × taps run over the flat pixels. Pixels between rows are masked out of the
//!    inputs, so that an infinity at a row's end is not multiplied by a zero, which would make a
//!    NaN.
//! 3. Each sum stays a vector, one partial sum for each lane, until the end.

use super::ConvShape;
use super::blocks::{block, largest};
use super::forward::set_stencil;
use super::real::StoredElement;
use super::tile::{GRADIENT_FILTERS, GradientKernel, GradientTile, RealKernels as _, gradient_taps};
use super::workspace::{ConvWorkspace, HasScratch, Scratch, SharedSlice, SharedSlots, ThreadBuffers, at_least};
use crate::simd::Simd;
use crate::team::Team;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Flat pixels in a band: a tile's gradients and inputs stay in the first-level cache.
const BAND_PIXELS: usize = 1024;
/// Maximum filters, and channels times taps, of a unit: its sums stay in the second-level cache.
const UNIT_FILTERS_MAX: usize = 64;
const UNIT_TAPS_MAX: usize = 144;
/// Minimum number of products for a team. With fewer, the calling thread is done before another one
/// is awake.
const PRODUCTS_FOR_TEAM_MIN: usize = 1 << 18;

/// Computes the gradient of the weights: the derivative of the sum of `gradient * output` by each
/// weight.
pub(super) fn backward_weight<S: StoredElement>(
    simd: Simd,
    team: &Team,
    workspace: &mut ConvWorkspace,
    shape: &ConvShape,
    operands: (&[S], &[S]),
    weight_gradient: &mut [S],
) {
    let (input, gradient) = operands;
    assert_eq!((input.len(), gradient.len()), (shape.input_len(), shape.output_len()), "input and gradient");
    assert_eq!(weight_gradient.len(), shape.weight_len(), "weight gradient");
    if shape.weight_len() == 0 {
        return;
    }
    let simd = simd.min(Simd::detect());
    let scratch = S::Real::scratch(workspace);
    set_stencil(scratch, shape);
    if scratch.stencil.taps.len() < shape.taps() {
        weight_gradient.fill(S::default());
    }
    if scratch.stencil.taps.is_empty() {
        return;
    }
    scratch.layout.rebuild(&scratch.stencil);
    let split = WeightSplit::new(team, shape, scratch.layout.pitch);
    let rows = shape.output()[0];
    let lanes = S::Real::lanes(simd);
    scratch.offsets.clear();
    scratch.layout.push_offsets(split.band_rows, split.channels, &mut scratch.offsets);
    scratch.full_runs.clear();
    scratch.layout.push_lane_runs(split.band_rows, lanes, &mut scratch.full_runs);
    scratch.last_runs.clear();
    scratch.layout.push_lane_runs(block(rows, split.band_rows, split.bands - 1).len(), lanes, &mut scratch.last_runs);

    let units = shape.groups * split.filter_chunks * split.channel_chunks;
    let products = shape.output_len().saturating_mul(shape.group_channels() * shape.taps());
    let tasks = if products < PRODUCTS_FOR_TEAM_MIN { 1 } else { team.threads().min(units) };
    let mut slots = std::mem::take(&mut scratch.slots);
    let shared = SharedSlots::new(&mut slots, tasks);
    let output = SharedSlice::new(weight_gradient);
    let pass = GradientPass { shape, split: &split, scratch, input, gradient, output, simd };
    let next = AtomicUsize::new(0);
    team.run(tasks, &|task| {
        // SAFETY: every task has its own index, and borrows the slot once.
        let slot = unsafe { shared.take(task) };
        loop {
            let unit = next.fetch_add(1, Ordering::Relaxed);
            if unit >= units {
                break;
            }
            pass.unit(unit, slot);
        }
    });
    scratch.slots = slots;
}

/// The split of the weights into units, and of the pixels into bands.
struct WeightSplit {
    filters: usize,
    filter_chunks: usize,
    channels: usize,
    channel_chunks: usize,
    band_rows: usize,
    bands: usize,
}

impl WeightSplit {
    fn new(team: &Team, shape: &ConvShape, pitch: usize) -> WeightSplit {
        let (all_channels, all_filters) = (shape.group_channels(), shape.group_filters());
        let channels = (UNIT_TAPS_MAX / shape.taps()).clamp(1, all_channels);
        let channel_chunks = all_channels.div_ceil(channels);
        let units_wanted = (2 * team.threads()).div_ceil(shape.groups * channel_chunks);
        let largest = GRADIENT_FILTERS[0];
        let filters = all_filters.div_ceil(units_wanted).next_multiple_of(largest).min(UNIT_FILTERS_MAX);
        let rows = shape.output()[0];
        let band_rows = (BAND_PIXELS / pitch).clamp(1, rows);
        WeightSplit {
            filters,
            filter_chunks: all_filters.div_ceil(filters),
            channels,
            channel_chunks,
            band_rows,
            bands: rows.div_ceil(band_rows),
        }
    }
}

/// One running gradient.
struct GradientPass<'a, S: StoredElement> {
    shape: &'a ConvShape,
    split: &'a WeightSplit,
    scratch: &'a Scratch<S::Real>,
    input: &'a [S],
    gradient: &'a [S],
    output: SharedSlice<S>,
    simd: Simd,
}

/// The weights of one unit; both ranges count inside the group.
struct WeightUnit {
    group: usize,
    filters: Range<usize>,
    channels: Range<usize>,
}

impl<S: StoredElement> GradientPass<'_, S> {
    fn unit(&self, index: usize, slot: &mut ThreadBuffers<S::Real>) {
        let (shape, split) = (self.shape, self.split);
        let (index, channel_chunk) = (index / split.channel_chunks, index % split.channel_chunks);
        let unit = WeightUnit {
            group: index / split.filter_chunks,
            filters: block(shape.group_filters(), split.filters, index % split.filter_chunks),
            channels: block(shape.group_channels(), split.channels, channel_chunk),
        };
        let lanes = S::Real::lanes(self.simd);
        let channel_len = self.scratch.layout.channel_len(split.band_rows);
        let gradient_len = self.scratch.full_runs.len() * lanes;
        let inputs_len = split.channels * channel_len + lanes;
        let panel = at_least(&mut slot.panel, inputs_len + split.filters * gradient_len);
        let (inputs, gradients) = panel.split_at_mut(inputs_len);
        let depth = unit.channels.len() * self.scratch.stencil.taps.len();
        let sums = at_least(&mut slot.outputs, unit.filters.len() * depth * lanes);
        sums.fill(S::Real::default());
        for image in 0..shape.batch {
            for band in 0..split.bands {
                let rows = block(shape.output()[0], split.band_rows, band);
                let last = band + 1 == split.bands;
                let runs = if last { &self.scratch.last_runs } else { &self.scratch.full_runs };
                self.fill(&unit, image, rows, inputs, gradients);
                let band = Band { inputs, gradients, gradient_len, runs };
                self.tiles(&unit, &band, sums);
            }
        }
        self.store(&unit, sums);
    }

    /// Copies one band of the unit's inputs and gradients.
    fn fill(
        &self,
        unit: &WeightUnit,
        image: usize,
        rows: Range<usize>,
        inputs: &mut [S::Real],
        gradients: &mut [S::Real],
    ) {
        let (shape, layout) = (self.shape, &self.scratch.layout);
        let plane = shape.input[0] * shape.input[1];
        let channel_len = layout.channel_len(self.split.band_rows);
        let first = image * shape.channels + unit.group * shape.group_channels();
        for (channel, part) in unit.channels.clone().zip(inputs.chunks_exact_mut(channel_len)) {
            let source = &self.input[(first + channel) * plane..][..plane];
            layout.fill(self.simd, source, rows.clone(), self.split.band_rows, part);
        }
        let [height, width] = shape.output();
        let first = image * shape.filters + unit.group * shape.group_filters();
        let gradient_len = gradients.len() / self.split.filters;
        for (filter, part) in unit.filters.clone().zip(gradients.chunks_exact_mut(gradient_len)) {
            let start = (first + filter) * height * width + rows.start * width;
            layout.spread(&self.gradient[start..][..rows.len() * width], part);
        }
    }

    fn tiles(&self, unit: &WeightUnit, band: &Band<'_, S::Real>, sums: &mut [S::Real]) {
        let lanes = S::Real::lanes(self.simd);
        let depth = unit.channels.len() * self.scratch.stencil.taps.len();
        let offsets = &self.scratch.offsets[..depth];
        let mut filter = 0;
        while filter < unit.filters.len() {
            let filters = largest(&GRADIENT_FILTERS, unit.filters.len() - filter);
            let mut tap = 0;
            while tap < depth {
                let taps = largest(gradient_taps(self.simd), depth - tap);
                let GradientKernel(kernel) = S::Real::gradient_tile(self.simd, filters, taps);
                let tile = GradientTile {
                    gradient: band.gradients[filter * band.gradient_len..].as_ptr(),
                    gradient_stride: band.gradient_len,
                    panel: band.inputs.as_ptr(),
                    offsets: &offsets[tap..tap + taps],
                    lanes: band.runs,
                    sums: sums[(filter * depth + tap) * lanes..].as_mut_ptr(),
                    sums_stride: depth * lanes,
                };
                // SAFETY: `simd` was limited to what the CPU has. The panel is laid out for these
                // offsets with one spare vector. The gradients hold whole vectors for each filter,
                // and the sums for each weight.
                unsafe { kernel(&tile) };
                tap += taps;
            }
            filter += filters;
        }
    }

    /// Adds up the lanes and rounds to the stored type.
    fn store(&self, unit: &WeightUnit, sums: &[S::Real]) {
        let shape = self.shape;
        let lanes = S::Real::lanes(self.simd);
        let taps = &self.scratch.tap_weights;
        let depth = unit.channels.len() * taps.len();
        let row = shape.group_channels() * shape.taps();
        for (filter, sums) in unit.filters.clone().zip(sums.chunks_exact(depth * lanes)) {
            let start = (unit.group * shape.group_filters() + filter) * row + unit.channels.start * shape.taps();
            // SAFETY: these filters and channels belong to no other unit.
            let weights = unsafe { self.output.part(start, unit.channels.len() * shape.taps()) };
            for (index, sums) in sums.chunks_exact(lanes).enumerate() {
                let mut total = S::Real::default();
                sums.iter().for_each(|sum| total += *sum);
                let place = index / taps.len() * shape.taps() + taps[index % taps.len()];
                S::narrow(&[total], std::slice::from_mut(&mut weights[place]));
            }
        }
    }
}

/// The copied inputs and gradients of one band.
struct Band<'a, T> {
    inputs: &'a [T],
    gradients: &'a [T],
    gradient_len: usize,
    runs: &'a [super::tile::LaneRun],
}
