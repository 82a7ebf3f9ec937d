//! The driver of forward convolutions and input gradients: a stencil with weights, over images, groups and bands.
//!
//! 1. A unit of work is (image, group, band of output rows, chunk of filters). Units write disjoint outputs.
//! 2. As many tasks as threads; each owns one slot (panel and outputs) and claims units from a counter.
//! 3. In a unit, channels are taken in blocks: a block is copied into the panel, then every tile of pixels meets every
//!    block of filters while its part of the panel is in the nearest cache. Sums go on in the output.
//! 4. The sum of one output runs over channels and taps in one fixed order, whatever the bands and threads.

use super::ahead::Ahead;
use super::blocks::{block, largest};
use super::real::Stored;
use super::tile::{Kernel, LaneRun, RealKernels as _, SINGLE_FILTER_VECTORS, TILE_VECTORS, Tile, filter_blocks};
use super::workspace::{Scratch, SharedSlice, SharedSlots, Slot, at_least};
use crate::simd::Simd;
use crate::team::Team;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Numbers in a panel: half of a typical second-level cache, in f32.
const PANEL_NUMBERS_MAX: usize = 160 << 10;
/// Channels times rows of taps in a block: their part of the panel stays in the first-level cache for one tile.
const BLOCK_TAP_ROWS_MAX: usize = 96;
/// Rows of output in a band, where the panel allows it.
const BAND_ROWS_MIN: usize = 4;
/// Below this many products the calling thread is done before another one is awake.
const PRODUCTS_FOR_TEAM_MIN: usize = 1 << 18;
/// Units for each thread, so that a thread that lags costs little.
const UNITS_PER_THREAD: usize = 4;

/// A function that is applied to finished sums, in runs.
pub type Activate<'a, T> = &'a (dyn Fn(&mut [T]) + Sync);

/// The numbers of a correlation beside its stencil, which is in the scratch.
pub(super) struct Correlation<'a, S: Stored> {
    pub batch: usize,
    pub groups: usize,
    /// Source channels and filters of one group.
    pub channels: usize,
    pub filters: usize,
    pub source: &'a [S],
    pub weights: WeightView<'a, S>,
    pub bias: Option<&'a [S]>,
    pub activate: Option<Activate<'a, S::Real>>,
    pub placement: Placement,
}

/// How weights are found: the weight of (group, filter, channel, tap) is at the sum of index times stride, plus the
/// tap's entry in the scratch's `tap_weights`.
pub(super) struct WeightView<'a, S> {
    pub data: &'a [S],
    pub group_stride: usize,
    pub filter_stride: usize,
    pub channel_stride: usize,
}

/// Where the stencil's output pixels are in the planes of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placement {
    /// Height and width of an output plane.
    pub plane: [usize; 2],
    /// Pixel `(y, x)` of the stencil goes to `origin + step * (y, x)`.
    pub origin: [usize; 2],
    pub step: [usize; 2],
}

impl Placement {
    pub fn dense(plane: [usize; 2]) -> Placement {
        Placement { plane, origin: [0, 0], step: [1, 1] }
    }
}

/// Runs the correlation of the stencil in `scratch`.
pub(super) fn correlate<S: Stored>(
    simd: Simd,
    team: &Team,
    scratch: &mut Scratch<S::Real>,
    job: &Correlation<'_, S>,
    output: &mut [S],
) {
    let rows = scratch.stencil.output[0];
    if job.batch * job.groups * job.filters * rows * scratch.stencil.output[1] == 0 {
        return;
    }
    scratch.layout.rebuild(&scratch.stencil);
    let split = Split::new::<S>(team, scratch, job, simd);
    let lanes = S::Real::lanes(simd);
    scratch.offsets.clear();
    scratch.layout.push_offsets(split.band_rows, split.block_channels, &mut scratch.offsets);
    scratch.full_runs.clear();
    scratch.layout.push_lane_runs(split.band_rows, lanes, &mut scratch.full_runs);
    scratch.last_runs.clear();
    scratch.layout.push_lane_runs(block(rows, split.band_rows, split.bands - 1).len(), lanes, &mut scratch.last_runs);
    widen_bias(job, &mut scratch.bias);
    pack_weights(simd, team, job, &scratch.tap_weights, &mut scratch.packed);

    let tasks = team.threads().min(split.units(job));
    let tasks = if split.products < PRODUCTS_FOR_TEAM_MIN { 1 } else { tasks };
    let mut slots = std::mem::take(&mut scratch.slots);
    let shared = SharedSlots::new(&mut slots, tasks);
    let pass = Pass { job, split: &split, scratch, output: SharedSlice::new(output), simd };
    let next = AtomicUsize::new(0);
    team.run(tasks, &|task| {
        // SAFETY: every task has its own index, and the slot is borrowed once in it.
        let slot = unsafe { shared.take(task) };
        let claim = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|unit| *unit < split.units(job));
        let mut claimed = claim();
        while let Some(unit) = claimed {
            // The unit after this one is claimed already, so that its images can be fetched meanwhile.
            claimed = claim();
            pass.run(unit, claimed, slot);
        }
    });
    scratch.slots = slots;
}

/// How a correlation is cut into units and blocks.
struct Split {
    block_channels: usize,
    band_rows: usize,
    bands: usize,
    chunk_filters: usize,
    chunks: usize,
    tile_vectors: usize,
    products: usize,
}

impl Split {
    fn new<S: Stored>(team: &Team, scratch: &Scratch<S::Real>, job: &Correlation<'_, S>, simd: Simd) -> Split {
        let layout = &scratch.layout;
        let [rows, columns] = scratch.stencil.output;
        let taps = scratch.stencil.taps.len();
        let tap_rows = (taps as f64).sqrt().ceil().max(1.0) as usize;
        let mut block_channels = (BLOCK_TAP_ROWS_MAX / tap_rows).max(1).min(job.channels);
        let mut band_rows = rows;
        while block_channels * layout.channel_len(band_rows) > PANEL_NUMBERS_MAX {
            // Bands of a few rows copy the rows around them too often; fewer channels in a block cost less.
            if band_rows > BAND_ROWS_MIN || block_channels == 1 && band_rows > 1 {
                band_rows = band_rows.div_ceil(2);
            } else if block_channels > 1 {
                block_channels = block_channels.div_ceil(2);
            } else {
                break;
            }
        }
        let images = job.batch * job.groups;
        let units_wanted = if team.threads() == 1 { 1 } else { UNITS_PER_THREAD * team.threads() };
        // A band of less than two tiles wastes lanes and copies the rows around it too often.
        let lanes = S::Real::lanes(simd);
        let band_rows_min = (2 * TILE_VECTORS * lanes).div_ceil(layout.pitch).max(BAND_ROWS_MIN).min(band_rows);
        let bands_wanted = units_wanted.div_ceil(images).min(rows);
        band_rows = band_rows.min(rows.div_ceil(bands_wanted)).max(band_rows_min);
        let bands = rows.div_ceil(band_rows);
        let band_rows = rows.div_ceil(bands);
        let bands = rows.div_ceil(band_rows);
        let block_filters = filter_blocks(simd)[0];
        let filter_blocks = job.filters.div_ceil(block_filters);
        let chunks_wanted = team.threads().div_ceil(images * bands).min(filter_blocks);
        let chunk_filters = filter_blocks.div_ceil(chunks_wanted) * block_filters;
        Split {
            block_channels,
            band_rows,
            bands,
            chunk_filters,
            chunks: job.filters.div_ceil(chunk_filters),
            tile_vectors: if job.filters == 1 { SINGLE_FILTER_VECTORS } else { TILE_VECTORS },
            products: images.saturating_mul(job.filters * rows * columns).saturating_mul(job.channels * taps),
        }
    }

    /// Blocks of channels. There is one even where there are no channels: it stores the bias.
    fn blocks<S: Stored>(&self, job: &Correlation<'_, S>) -> usize {
        job.channels.div_ceil(self.block_channels.max(1)).max(1)
    }

    /// Vectors of the next tile, where so many are left: the last two tiles are about equally wide.
    fn vectors(&self, left: usize) -> usize {
        match left {
            left if left >= self.tile_vectors && self.tile_vectors > TILE_VECTORS => self.tile_vectors,
            left if left > TILE_VECTORS && left < 2 * TILE_VECTORS => left.div_ceil(2),
            left => left.min(TILE_VECTORS),
        }
    }

    fn units<S: Stored>(&self, job: &Correlation<'_, S>) -> usize {
        job.batch * job.groups * self.bands * self.chunks
    }
}

/// One correlation on its way.
struct Pass<'a, S: Stored> {
    job: &'a Correlation<'a, S>,
    split: &'a Split,
    scratch: &'a Scratch<S::Real>,
    output: SharedSlice<S>,
    simd: Simd,
}

/// What one unit makes: some filters and rows of one image's group (`image` counts groups of images).
struct Unit<'a> {
    image: usize,
    group: usize,
    filters: Range<usize>,
    rows: Range<usize>,
    runs: &'a [LaneRun],
}

/// Where a unit's sums go: filter `i` of the unit at `start + i * stride`.
struct Sums<T> {
    start: *mut T,
    stride: usize,
}

impl<S: Stored> Pass<'_, S> {
    fn unit(&self, index: usize) -> Unit<'_> {
        let (job, split) = (self.job, self.split);
        let (index, chunk) = (index / split.chunks, index % split.chunks);
        let (image, band) = (index / split.bands, index % split.bands);
        Unit {
            image,
            group: image % job.groups,
            filters: block(job.filters, split.chunk_filters, chunk),
            rows: block(self.scratch.stencil.output[0], split.band_rows, band),
            runs: if band + 1 == split.bands { &self.scratch.last_runs } else { &self.scratch.full_runs },
        }
    }

    /// The images of a unit, to be fetched over the steps of the unit before it.
    fn ahead(&self, unit: usize, steps: usize) -> Ahead<'_, S> {
        let unit = self.unit(unit);
        let [height, width] = self.scratch.stencil.source;
        let rows = self.scratch.layout.source_rows(&unit.rows);
        let planes = &self.job.source[unit.image * self.job.channels * height * width..];
        let planes = &planes[..self.job.channels * height * width];
        Ahead::new(planes, height * width, rows.start * width, rows.end * width, steps)
    }

    /// Computes one unit, and fetches the images of the next.
    fn run(&self, index: usize, next: Option<usize>, slot: &mut Slot<S::Real>) {
        let job = self.job;
        let columns = self.scratch.stencil.output[1];
        let unit = self.unit(index);
        let steps = unit.runs.len().div_ceil(self.split.tile_vectors) * self.split.blocks(job);
        let ahead = next.map_or_else(Ahead::nothing, |next| self.ahead(next, steps));
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
        for (index, filter) in unit.filters.clone().enumerate() {
            // SAFETY: the sums of one filter and band, written above, in the unit's own outputs or its own slot.
            let sums = unsafe { std::slice::from_raw_parts_mut(sums.start.add(index * sums.stride), run) };
            if let Some(activate) = job.activate {
                activate(sums);
            }
            if !in_place {
                self.place(&unit, filter, sums);
            }
        }
    }

    /// Leaves the unit's sums, bias included, in `sums`.
    fn sum(&self, unit: &Unit<'_>, panel: &mut Vec<S::Real>, sums: &Sums<S::Real>, mut ahead: Ahead<'_, S>) {
        let (job, split, scratch) = (self.job, self.split, self.scratch);
        let plane = scratch.stencil.source[0] * scratch.stencil.source[1];
        let taps = scratch.stencil.taps.len();
        let channel_len = scratch.layout.channel_len(split.band_rows);
        // Vectors of pixels read past the last pixel by less than one tile.
        let slack = SINGLE_FILTER_VECTORS * S::Real::lanes(self.simd);
        let panel = at_least(panel, split.block_channels * channel_len + slack);
        for index in 0..split.blocks(job) {
            let channels = block(job.channels, split.block_channels, index);
            for (channel, part) in channels.clone().zip(panel.chunks_exact_mut(channel_len.max(1))) {
                let source = &job.source[(unit.image * job.channels + channel) * plane..][..plane];
                scratch.layout.fill(self.simd, source, unit.rows.clone(), split.band_rows, part);
            }
            let offsets = &scratch.offsets[..channels.len() * taps];
            self.tiles(unit, panel, offsets, channels.start * taps, sums, &mut ahead);
        }
    }

    /// Adds one block of channels to every tile of the unit. `weight_start` products of each output are done already.
    fn tiles(
        &self,
        unit: &Unit<'_>,
        panel: &[S::Real],
        offsets: &[usize],
        weight_start: usize,
        sums: &Sums<S::Real>,
        ahead: &mut Ahead<'_, S>,
    ) {
        let (job, scratch) = (self.job, self.scratch);
        let depth = job.channels * scratch.stencil.taps.len();
        let lanes = S::Real::lanes(self.simd);
        let group_weights = &scratch.packed[unit.group * job.filters * depth..][..job.filters * depth];
        let group_bias = &scratch.bias[unit.group * job.filters..][..job.filters];
        let mut first = 0;
        while first < unit.runs.len() {
            let vectors = self.split.vectors(unit.runs.len() - first);
            ahead.step();
            let mut filter = unit.filters.start;
            while filter < unit.filters.end {
                let filters = largest(filter_blocks(self.simd), unit.filters.end - filter);
                let Kernel(kernel) = S::Real::tile(self.simd, filters, vectors);
                let bias = if weight_start == 0 { group_bias[filter..].as_ptr() } else { std::ptr::null() };
                let tile = Tile {
                    panel: panel.as_ptr().wrapping_add(first * lanes),
                    offsets,
                    weights: group_weights[filter * depth + weight_start * filters..].as_ptr(),
                    bias,
                    // SAFETY: the filter is one of the unit's, all of which `sums` has room for.
                    output: unsafe { sums.start.add((filter - unit.filters.start) * sums.stride) },
                    output_stride: sums.stride,
                    lanes: &unit.runs[first..first + vectors],
                };
                // SAFETY: `simd` was limited to what the CPU has. The panel is laid out for these offsets with slack for
                // one tile; weights and bias hold `filters` entries here; the lane runs stay within a filter's run.
                unsafe { kernel(&tile) };
                filter += filters;
            }
            first += vectors;
        }
    }

    /// Rounds one filter's sums to the output type and writes them to their places.
    fn place(&self, unit: &Unit<'_>, filter: usize, sums: &[S::Real]) {
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
                    // SAFETY: within the span asked for; no other unit writes this pixel.
                    unsafe { first.add(column * step[1]).write(value[0]) };
                }
            }
        }
    }
}

fn widen_bias<S: Stored>(job: &Correlation<'_, S>, bias: &mut Vec<S::Real>) {
    let bias = at_least(bias, job.groups * job.filters);
    match job.bias {
        Some(given) => S::widen(given, bias),
        None => bias.fill(S::Real::default()),
    }
}

/// Orders the weights as the tiles read them: by group, block of filters, channel, tap, and filter in the block.
fn pack_weights<S: Stored>(
    simd: Simd,
    team: &Team,
    job: &Correlation<'_, S>,
    tap_weights: &[usize],
    packed: &mut Vec<S::Real>,
) {
    let depth = job.channels * tap_weights.len();
    let total = job.groups * job.filters * depth;
    if total == 0 {
        return;
    }
    let packed = SharedSlice::new(at_least(packed, total));
    let block_filters = filter_blocks(simd)[0];
    let group_blocks = job.filters.div_ceil(block_filters);
    let grain = (PACK_GRAIN_NUMBERS / (block_filters * depth)).max(1);
    team.run_ranges(job.groups * group_blocks, grain, &|blocks| {
        for index in blocks {
            let group = index / group_blocks;
            let filters = block(job.filters, block_filters, index % group_blocks);
            // SAFETY: every block of filters has its own part.
            let part = unsafe { packed.part((group * job.filters + filters.start) * depth, filters.len() * depth) };
            let mut rest = part;
            let mut filter = filters.start;
            while filter < filters.end {
                let size = largest(filter_blocks(simd), filters.end - filter);
                let (part, after) = rest.split_at_mut(size * depth);
                pack_block(&job.weights, group, filter, size, tap_weights, part);
                (rest, filter) = (after, filter + size);
            }
        }
    });
}

fn pack_block<S: Stored>(
    view: &WeightView<'_, S>,
    group: usize,
    filter: usize,
    filters: usize,
    tap_weights: &[usize],
    packed: &mut [S::Real],
) {
    let channels = packed.len() / (filters * tap_weights.len());
    let first = group * view.group_stride + filter * view.filter_stride;
    for index in 0..filters {
        let mut to = packed[index..].iter_mut().step_by(filters);
        for channel in 0..channels {
            let weights = &view.data[first + index * view.filter_stride + channel * view.channel_stride..];
            for (tap, to) in tap_weights.iter().zip(to.by_ref()) {
                *to = weights[*tap].real();
            }
        }
    }
}

/// Weights that one thread packs before another one is asked to help.
const PACK_GRAIN_NUMBERS: usize = 1 << 13;
