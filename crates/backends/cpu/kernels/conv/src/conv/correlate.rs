//! The driver of forward convolutions and input gradients: a stencil with weights, iterated over
//! images, groups and bands.
//!
//! 1. A unit of work is (image, group, band of output rows, chunk of filters). Units write disjoint
//!    outputs.
//! 2. There are as many tasks as threads. Each task owns one slot (panel and outputs) and claims
//!    units from a counter.
//! 3. A unit processes its channels in blocks. A block is copied into the panel; then every tile of
//!    pixels meets every block of filters while its part of the panel is in the nearest cache. The
//!    sums accumulate in the output.
//! 4. The sum of one output runs over channels and taps in one fixed order, independent of bands
//!    and threads.
//!
//! If each output reads one pixel and the planes are small, the pixels are read in place. Images of
//! a few pixels are handled by `filter_lanes`.

use super::ahead::PlanePrefetch;
use super::blocks::{block, largest};
use super::correlation::{Correlation, PRODUCTS_FOR_TEAM_MIN, Placement};
use super::filter_lanes;
use super::packed::{Blocks, PackedWeights, packed};
use super::real::StoredElement;
use super::split::{COPIED_VECTORS, CorrelationSplit};
use super::tile::{Kernel, LaneRun, RealKernels as _, SINGLE_FILTER_VECTORS, Tile, filter_blocks};
use super::workspace::{Scratch, SharedSlice, SharedSlots, ThreadBuffers, at_least, lines};
use crate::simd::Simd;
use crate::team::Team;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs the correlation of the stencil in `scratch`. `kept` holds the packed weights, or receives
/// them.
pub(super) fn correlate<S: StoredElement>(
    simd: Simd,
    team: &Team,
    scratch: &mut Scratch<S::Real>,
    job: &Correlation<'_, S>,
    kept: Option<&mut PackedWeights>,
    output: &mut [S],
) {
    let rows = scratch.stencil.output[0];
    if job.batch * job.groups * job.filters * rows * scratch.stencil.output[1] == 0 {
        return;
    }
    scratch.layout.rebuild(&scratch.stencil);
    widen_bias(job, &mut scratch.bias);
    if filter_lanes::suits(simd, &scratch.stencil, &scratch.layout, job) {
        return filter_lanes::run(simd, team, scratch, job, kept, output);
    }
    let split = CorrelationSplit::new(team.threads(), &scratch.stencil, &scratch.layout, job, simd);
    let lanes = S::Real::lanes(simd);
    scratch.offsets.clear();
    if split.direct {
        let plane = scratch.stencil.source[0] * scratch.stencil.source[1];
        scratch.offsets.extend((0..split.block_channels).map(|channel| channel * plane));
    } else if split.pointwise {
        scratch.offsets.extend((0..split.block_channels).map(|channel| channel * copied_stride(lanes)));
    } else {
        scratch.layout.push_offsets(split.band_rows, split.block_channels, &mut scratch.offsets);
    }
    scratch.full_runs.clear();
    scratch.layout.push_lane_runs(split.band_rows, lanes, &mut scratch.full_runs);
    scratch.last_runs.clear();
    scratch.layout.push_lane_runs(block(rows, split.band_rows, split.bands - 1).len(), lanes, &mut scratch.last_runs);
    let mut own = std::mem::take(&mut scratch.packed);
    let weights = packed(team, Blocks::PixelLanes(simd), job, &scratch.tap_weights, kept, &mut own);

    let tasks = team.threads().min(split.units(job));
    let tasks = if split.products < PRODUCTS_FOR_TEAM_MIN { 1 } else { tasks };
    let mut slots = std::mem::take(&mut scratch.slots);
    let shared = SharedSlots::new(&mut slots, tasks);
    let pass = CorrelationPass { job, split: &split, scratch, weights, output: SharedSlice::new(output), simd };
    let next = AtomicUsize::new(0);
    team.run(tasks, &|task| {
        // SAFETY: every task has its own index, and borrows the slot once.
        let slot = unsafe { shared.take(task) };
        let claim = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|unit| *unit < split.units(job));
        let mut claimed = claim();
        while let Some(unit) = claimed {
            // The unit after this one is claimed already, so that its images can be prefetched
            // meanwhile.
            claimed = claim();
            pass.run(unit, claimed, slot);
        }
    });
    scratch.slots = slots;
    scratch.packed = own;
}

/// One running correlation.
struct CorrelationPass<'a, S: StoredElement> {
    job: &'a Correlation<'a, S>,
    split: &'a CorrelationSplit,
    scratch: &'a Scratch<S::Real>,
    weights: &'a [S::Real],
    output: SharedSlice<S>,
    simd: Simd,
}

/// The work of one unit: some filters and rows of one image's group (`image` counts groups of
/// images).
struct CorrelationUnit<'a> {
    image: usize,
    group: usize,
    filters: Range<usize>,
    rows: Range<usize>,
    runs: &'a [LaneRun],
}

/// The position of a unit's sums: filter `i` of the unit is at `start + i * stride`.
struct Sums<T> {
    start: *mut T,
    stride: usize,
}

impl<S: StoredElement> CorrelationPass<'_, S> {
    fn unit(&self, index: usize) -> CorrelationUnit<'_> {
        let (job, split) = (self.job, self.split);
        let (index, chunk) = (index / split.chunks, index % split.chunks);
        let (image, band) = (index / split.bands, index % split.bands);
        CorrelationUnit {
            image,
            group: image % job.groups,
            filters: block(job.filters, split.chunk_filters, chunk),
            rows: block(self.scratch.stencil.output[0], split.band_rows, band),
            runs: if band + 1 == split.bands { &self.scratch.last_runs } else { &self.scratch.full_runs },
        }
    }

    /// A prefetch of a unit's images over the `steps` of the unit before it.
    fn ahead(&self, unit: usize, steps: usize) -> PlanePrefetch<'_, S> {
        let unit = self.unit(unit);
        let [height, width] = self.scratch.stencil.source;
        let rows = self.scratch.layout.source_rows(&unit.rows);
        let planes = &self.job.source[unit.image * self.job.channels * height * width..];
        let planes = &planes[..self.job.channels * height * width];
        PlanePrefetch::new(planes, height * width, rows.start * width, rows.end * width, steps)
    }

    /// Computes one unit and prefetches the images of the next.
    fn run(&self, index: usize, next: Option<usize>, slot: &mut ThreadBuffers<S::Real>) {
        let job = self.job;
        let columns = self.scratch.stencil.output[1];
        let unit = self.unit(index);
        let steps = unit.runs.len().div_ceil(self.split.tile_vectors) * self.split.blocks(job);
        // The next chunk of filters reads the same images.
        let next = next.filter(|next| next / self.split.chunks != index / self.split.chunks);
        let ahead = next.map_or_else(PlanePrefetch::nothing, |next| self.ahead(next, steps));
        let run = unit.rows.len() * columns;
        let in_place = S::IN_PLACE && job.placement == Placement::dense(job.placement.plane);
        let sums = if in_place {
            let stride = job.placement.plane[0] * columns;
            let first = (unit.image * job.filters + unit.filters.start) * stride + unit.rows.start * columns;
            let start = self.output.pointer(first, (unit.filters.len() - 1) * stride + run).cast::<S::Real>();
            Sums { start, stride }
        } else {
            Sums { start: at_least(&mut slot.outputs, unit.filters.len() * run).as_mut_ptr(), stride: run }
        };
        self.sum(&unit, &mut slot.panel, &sums, ahead);
        // Contiguous filters are processed as one run.
        let filters_at_once = if sums.stride == run { unit.filters.len() } else { 1 };
        for index in (0..unit.filters.len()).step_by(filters_at_once) {
            let first = unit.image * job.filters + unit.filters.start + index;
            // SAFETY: these are the sums of some filters and one band, written above, in the unit's
            // own outputs or its own slot.
            let done =
                unsafe { std::slice::from_raw_parts_mut(sums.start.add(index * sums.stride), filters_at_once * run) };
            if let Some(activate) = job.activate {
                activate((first * job.placement.plane[0] + unit.rows.start) * columns, done);
            }
            if !in_place {
                let filters = unit.filters.start + index..;
                filters.zip(done.chunks_exact(run)).for_each(|(filter, sums)| self.place(&unit, filter, sums));
            }
        }
    }

    /// Computes the unit's sums, bias included, into `sums`.
    fn sum(
        &self,
        unit: &CorrelationUnit<'_>,
        panel: &mut Vec<S::Real>,
        sums: &Sums<S::Real>,
        mut ahead: PlanePrefetch<'_, S>,
    ) {
        let (job, split, scratch) = (self.job, self.split, self.scratch);
        let plane = scratch.stencil.source[0] * scratch.stencil.source[1];
        let taps = scratch.stencil.taps.len();
        let channel_len = scratch.layout.channel_len(split.band_rows);
        // Vectors of pixels read past the last pixel by less than one tile.
        let slack = SINGLE_FILTER_VECTORS * S::Real::lanes(self.simd);
        let channel_len = match (split.direct, split.pointwise) {
            (true, _) => plane,
            (_, true) => copied_stride(S::Real::lanes(self.simd)),
            _ => channel_len,
        };
        let panel = lines(panel, split.block_channels * channel_len + slack);
        if split.pointwise {
            return self.sum_pointwise(unit, panel, channel_len, sums, ahead);
        }
        if split.direct {
            let bands = unit.runs.len().div_ceil(split.band_vectors);
            for (band, index) in (0..bands).flat_map(|band| (0..split.blocks(job)).map(move |index| (band, index))) {
                let vectors = block(unit.runs.len(), split.band_vectors, band);
                let channels = block(job.channels, split.block_channels, index);
                self.tiles_in_place(unit, vectors, channels, panel, sums, &mut ahead);
            }
            return;
        }
        for index in 0..split.blocks(job) {
            let channels = block(job.channels, split.block_channels, index);
            for (channel, part) in channels.clone().zip(panel.chunks_exact_mut(channel_len.max(1))) {
                let source = &job.source[(unit.image * job.channels + channel) * plane..][..plane];
                scratch.layout.fill(self.simd, source, unit.rows.clone(), split.band_rows, part);
            }
            let offsets = &scratch.offsets[..channels.len() * taps];
            self.tiles(unit, 0..unit.runs.len(), panel.as_ptr(), offsets, channels.start * taps, sums, &mut ahead);
        }
    }

    /// As [`CorrelationPass::sum`], for outputs that read one pixel each: a few vectors of pixels
    /// of a block of channels are copied at a time.
    fn sum_pointwise(
        &self,
        unit: &CorrelationUnit<'_>,
        panel: &mut [S::Real],
        stride: usize,
        sums: &Sums<S::Real>,
        mut ahead: PlanePrefetch<'_, S>,
    ) {
        let (job, split) = (self.job, self.split);
        let [height, width] = self.scratch.stencil.source;
        let lanes = S::Real::lanes(self.simd);
        let pixels = unit.rows.start * width..unit.rows.end * width;
        for index in 0..split.blocks(job) {
            let channels = block(job.channels, split.block_channels, index);
            for first in (0..unit.runs.len()).step_by(COPIED_VECTORS) {
                let vectors = first..(first + COPIED_VECTORS).min(unit.runs.len());
                let copied = pixels.start + first * lanes..(pixels.start + vectors.end * lanes).min(pixels.end);
                for (channel, part) in channels.clone().zip(panel.chunks_exact_mut(stride)) {
                    let source = &job.source[(unit.image * job.channels + channel) * height * width..];
                    S::widen(&source[copied.clone()], &mut part[..copied.len()]);
                }
                let offsets = &self.scratch.offsets[..channels.len()];
                let start = panel.as_ptr().wrapping_sub(first * lanes);
                self.tiles(unit, vectors, start, offsets, channels.start, sums, &mut ahead);
            }
        }
    }

    /// As [`CorrelationPass::tiles`], for a source that is its own panel. The last tile could read
    /// past the end of the source, so its pixels are copied.
    fn tiles_in_place(
        &self,
        unit: &CorrelationUnit<'_>,
        vectors: Range<usize>,
        channels: Range<usize>,
        panel: &mut [S::Real],
        sums: &Sums<S::Real>,
        ahead: &mut PlanePrefetch<'_, S>,
    ) {
        let plane = self.scratch.stencil.source[0] * self.scratch.stencil.source[1];
        let source = &self.job.source[(unit.image * self.job.channels + channels.start) * plane..];
        let lanes = S::Real::lanes(self.simd);
        let offsets = &self.scratch.offsets[..channels.len()];
        // The number of vectors that can be read for every channel without passing the end of the
        // source. They may include pixels of the channel that follows.
        let readable = (source.len() - (channels.len() - 1) * plane) / lanes;
        let mut end = vectors.start;
        while end < vectors.end && end + self.split.vectors(vectors.end - end) <= readable {
            end += self.split.vectors(vectors.end - end);
        }
        self.tiles(unit, vectors.start..end, source.as_ptr().cast(), offsets, channels.start, sums, ahead);
        if end < vectors.end {
            for channel in 0..channels.len() {
                let pixels = channel * plane + end * lanes..(channel + 1) * plane;
                S::widen(&source[pixels.clone()], &mut panel[pixels]);
            }
            self.tiles(unit, end..vectors.end, panel.as_ptr(), offsets, channels.start, sums, ahead);
        }
    }

    /// Adds one block of channels to these vectors of the unit. `weight_start` products of each
    /// output are done already.
    fn tiles(
        &self,
        unit: &CorrelationUnit<'_>,
        vectors: Range<usize>,
        panel: *const S::Real,
        offsets: &[usize],
        weight_start: usize,
        sums: &Sums<S::Real>,
        ahead: &mut PlanePrefetch<'_, S>,
    ) {
        let (job, scratch) = (self.job, self.scratch);
        let depth = job.channels * scratch.stencil.taps.len();
        let lanes = S::Real::lanes(self.simd);
        let group_weights = &self.weights[unit.group * job.filters * depth..][..job.filters * depth];
        let group_bias = &scratch.bias[unit.group * job.filters..][..job.filters];
        let mut first = vectors.start;
        while first < vectors.end {
            let vectors = self.split.vectors(vectors.end - first);
            ahead.step();
            let mut filter = unit.filters.start;
            while filter < unit.filters.end {
                let filters = largest(filter_blocks(self.simd), unit.filters.end - filter);
                let Kernel(kernel) = S::Real::tile(self.simd, filters, vectors);
                let bias = if weight_start == 0 { group_bias[filter..].as_ptr() } else { std::ptr::null() };
                let tile = Tile {
                    panel: panel.wrapping_add(first * lanes),
                    offsets,
                    weights: group_weights[filter * depth + weight_start * filters..].as_ptr(),
                    bias,
                    // SAFETY: the filter belongs to the unit, and `sums` has room for all its
                    // filters.
                    output: unsafe { sums.start.add((filter - unit.filters.start) * sums.stride) },
                    output_stride: sums.stride,
                    lanes: &unit.runs[first..first + vectors],
                };
                // SAFETY: `simd` was limited to what the CPU has. The panel is laid out for these
                // offsets with slack for one tile. The weights and the bias hold `filters` entries
                // here. The lane runs stay within a filter's run.
                unsafe { kernel(&tile) };
                filter += filters;
            }
            first += vectors;
        }
    }

    /// Rounds one filter's sums to the output type and writes them to their positions.
    fn place(&self, unit: &CorrelationUnit<'_>, filter: usize, sums: &[S::Real]) {
        let Placement { plane: [height, width], origin, step } = self.job.placement;
        let columns = self.scratch.stencil.output[1];
        let plane = (unit.image * self.job.filters + filter) * height * width;
        for (row, sums) in unit.rows.clone().zip(sums.chunks_exact(columns)) {
            let start = plane + (origin[0] + step[0] * row) * width + origin[1];
            let span = (columns - 1) * step[1] + 1;
            if step[1] == 1 {
                // SAFETY: no other unit writes this row of this filter.
                S::narrow(sums, unsafe { self.output.part(start, span) });
            } else {
                let first = self.output.pointer(start, span);
                for (column, sum) in sums.iter().enumerate() {
                    let mut value = [S::default()];
                    S::narrow(std::slice::from_ref(sum), &mut value);
                    // SAFETY: within the span of the pointer; no other unit writes this pixel.
                    unsafe { first.add(column * step[1]).write(value[0]) };
                }
            }
        }
    }
}

/// Distance between channels of copied pixels, in numbers: an odd number of vectors, so that
/// channels use different cache sets.
fn copied_stride(lanes: usize) -> usize {
    (COPIED_VECTORS | 1) * lanes
}

fn widen_bias<S: StoredElement>(job: &Correlation<'_, S>, bias: &mut Vec<S::Real>) {
    let bias = at_least(bias, job.groups * job.filters);
    match job.bias {
        Some(given) => S::widen(given, bias),
        None => bias.fill(S::Real::default()),
    }
}
