//! Weights in the order in which the tiles read them, for one convolution or kept for many.

use super::ConvShape;
use super::blocks::{block, largest};
use super::correlate::{Correlation, WeightView};
use super::real::Stored;
use super::tile::{Real, filter_blocks};
use super::winograd_tile::{POINTS, points};
use super::workspace::{HasScratch, SharedSlice};
use crate::simd::Simd;
use crate::team::Team;

/// Weights that do not change, as convolutions with them have packed them. One list of weights may be read in several orders: by the
/// size of the images.
#[derive(Default)]
pub struct PackedWeights {
    pub(super) single: Vec<Form<f32>>,
    pub(super) double: Vec<Form<f64>>,
}

impl PackedWeights {
    /// Orders of one list of weights that are kept: for large and for small images. Weights in another one are packed for each convolution.
    pub const FORMS_MAX: usize = 2;
    /// Numbers that are kept for each weight at most: one, and four where the weights are transformed.
    pub const GROWTH_MAX: usize = 5;

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let single: usize = self.single.iter().map(|form| form.numbers.bytes()).sum();
        single + self.double.iter().map(|form| form.numbers.bytes()).sum::<usize>()
    }
}

/// Weights in one order.
pub struct Form<T> {
    order: Order,
    numbers: Lines<T>,
}

/// Which filters lie side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocks {
    /// Those of a tile whose lanes are pixels: the largest block that is left.
    PixelLanes(Simd),
    /// Those of a tile whose lanes are filters: so many, with zeros beyond the last.
    FilterLanes(usize),
    /// As for lanes of pixels, of weights that are transformed for each point of `winograd`.
    Points(Simd),
    /// Two vectors of so many lanes, the last block one or two, by taps before channels: for images whose channels lie side by side.
    ChannelsLast(usize),
    /// The same of weights that are transformed for each point of `winograd`, by points.
    PointsLast(usize),
    /// All of them, tap by tap: one filter for each channel.
    Taps,
}

/// All that the order of packed weights depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Order {
    blocks: Blocks,
    /// Groups, and filters and channels of one.
    sizes: [usize; 3],
    taps: Vec<usize>,
}

/// Numbers that begin on a cache line.
pub(super) struct Lines<T> {
    numbers: Vec<T>,
    start: usize,
}

impl<T> Default for Lines<T> {
    fn default() -> Lines<T> {
        Lines { numbers: Vec::new(), start: 0 }
    }
}

/// Bytes in a cache line.
const LINE_BYTES: usize = 64;

impl<T: Real> Lines<T> {
    /// At least so many numbers, left over from earlier uses.
    fn at_least(&mut self, len: usize) -> &mut [T] {
        let spare = LINE_BYTES / size_of::<T>();
        if self.numbers.len() < len + spare {
            self.numbers = crate::scratch::zeroed(len + spare);
            self.start = self.numbers.as_ptr().align_offset(LINE_BYTES).min(spare);
        }
        &mut self.numbers[self.start..][..len]
    }

    pub(super) fn bytes(&self) -> usize {
        self.numbers.capacity() * size_of::<T>()
    }
}

/// The job's weights in this order: kept ones where there are any, else in `own`.
pub(super) fn packed<'a, S: Stored>(
    team: &Team,
    blocks: Blocks,
    job: &Correlation<'_, S>,
    tap_weights: &[usize],
    kept: Option<&'a mut PackedWeights>,
    own: &'a mut Lines<S::Real>,
) -> &'a [S::Real] {
    let total = job.groups * blocks.filters(job.filters) * job.channels * tap_weights.len();
    let sizes = [job.groups, job.filters, job.channels];
    in_order(blocks, sizes, tap_weights, total, kept, own, &|numbers| pack(team, blocks, job, tap_weights, numbers))
}

/// So many numbers that `pack` writes in an order: kept ones where there are any, else in `own`.
pub(super) fn in_order<'a, T: Real + HasScratch>(
    blocks: Blocks,
    sizes: [usize; 3],
    taps: &[usize],
    total: usize,
    kept: Option<&'a mut PackedWeights>,
    own: &'a mut Lines<T>,
    pack: &dyn Fn(&mut [T]),
) -> &'a [T] {
    let is_order = |order: &Order| (order.blocks, order.sizes) == (blocks, sizes) && order.taps == taps;
    let forms = kept.map(T::forms);
    let numbers = match forms {
        Some(forms) => match forms.iter().position(|form| is_order(&form.order)) {
            Some(index) => {
                let Lines { numbers, start } = &forms[index].numbers;
                return &numbers[*start..][..total];
            }
            None if forms.len() < PackedWeights::FORMS_MAX => {
                let mut numbers = Lines::default();
                pack(numbers.at_least(total));
                let order = Order { blocks, sizes, taps: taps.to_vec() };
                forms.push(Form { order, numbers });
                let Lines { numbers, start } = &forms[forms.len() - 1].numbers;
                return &numbers[*start..][..total];
            }
            None => own.at_least(total),
        },
        None => own.at_least(total),
    };
    pack(numbers);
    numbers
}

/// Weights of three by three taps, transformed for `winograd`: by group, point, block of filters, channel, and filter in the block. `None`
/// where they are not kept yet, and there is no room for another order.
pub(super) fn transformed<'a, S: Stored>(
    simd: Simd,
    team: &Team,
    shape: &ConvShape,
    weights: &[S],
    forms: &'a mut Vec<Form<S::Real>>,
) -> Option<&'a [S::Real]> {
    let (blocks, sizes) = (Blocks::Points(simd), [shape.groups, shape.group_filters(), shape.group_channels()]);
    let total = POINTS * sizes.iter().product::<usize>();
    let known = forms.iter().position(|form| (form.order.blocks, form.order.sizes) == (blocks, sizes));
    let index = known.unwrap_or(forms.len());
    if known.is_none() {
        if forms.len() >= PackedWeights::FORMS_MAX {
            return None;
        }
        let mut numbers = Lines::default();
        transform(team, blocks, sizes, weights, numbers.at_least(total));
        forms.push(Form { order: Order { blocks, sizes, taps: Vec::new() }, numbers });
    }
    let Lines { numbers, start } = &forms[index].numbers;
    Some(&numbers[*start..][..total])
}

fn transform<S: Stored>(team: &Team, blocks: Blocks, sizes: [usize; 3], weights: &[S], packed: &mut [S::Real]) {
    let [groups, filters, channels] = sizes;
    let block_filters = blocks.largest();
    let group_blocks = filters.div_ceil(block_filters);
    let packed = SharedSlice::new(packed);
    team.run_ranges(groups * group_blocks, 1, &|indices| {
        for index in indices {
            let group = index / group_blocks;
            let range = block(filters, block_filters, index % group_blocks);
            let mut filter = range.start;
            while filter < range.end {
                let (size, _) = blocks.next(range.end - filter);
                for (index, channel) in (0..size).flat_map(|index| (0..channels).map(move |channel| (index, channel))) {
                    let first = ((group * filters + filter + index) * channels + channel) * 9;
                    let taps = std::array::from_fn(|tap| weights[first + tap].weight());
                    for (point, value) in points(taps).into_iter().enumerate() {
                        let place = ((group * POINTS + point) * filters + filter) * channels + channel * size + index;
                        // SAFETY: every filter has its own numbers, and belongs to one task.
                        unsafe { packed.part(place, 1)[0] = value };
                    }
                }
                filter += size;
            }
        }
    });
}

impl Blocks {
    /// Filters that those of one group take, with what is added to fill blocks.
    pub(super) fn filters(self, filters: usize) -> usize {
        match self {
            Blocks::PixelLanes(_) | Blocks::Points(_) | Blocks::Taps => filters,
            Blocks::FilterLanes(width) | Blocks::ChannelsLast(width) | Blocks::PointsLast(width) => {
                filters.next_multiple_of(width)
            }
        }
    }

    fn largest(self) -> usize {
        match self {
            Blocks::PixelLanes(simd) | Blocks::Points(simd) => filter_blocks(simd)[0],
            Blocks::FilterLanes(width) => width,
            Blocks::ChannelsLast(lanes) | Blocks::PointsLast(lanes) => 2 * lanes,
            Blocks::Taps => usize::MAX,
        }
    }

    /// Filters of the next block where so many are left, and how many numbers it has for each tap.
    fn next(self, left: usize) -> (usize, usize) {
        match self {
            Blocks::PixelLanes(simd) | Blocks::Points(simd) => {
                let size = largest(filter_blocks(simd), left);
                (size, size)
            }
            Blocks::FilterLanes(width) => (left.min(width), width),
            Blocks::ChannelsLast(lanes) | Blocks::PointsLast(lanes) => {
                (left.min(2 * lanes), left.next_multiple_of(lanes).min(2 * lanes))
            }
            Blocks::Taps => (left, left),
        }
    }
}

/// Orders the weights as the tiles read them: by group, block of filters, channel, tap, and filter in the block.
fn pack<S: Stored>(
    team: &Team,
    blocks: Blocks,
    job: &Correlation<'_, S>,
    tap_weights: &[usize],
    packed: &mut [S::Real],
) {
    let depth = job.channels * tap_weights.len();
    if packed.is_empty() {
        return;
    }
    let packed = SharedSlice::new(packed);
    let block_filters = blocks.largest();
    let group_blocks = job.filters.div_ceil(block_filters);
    let group_filters = blocks.filters(job.filters);
    let grain = (PACK_GRAIN_NUMBERS / (block_filters * depth)).max(1);
    team.run_ranges(job.groups * group_blocks, grain, &|indices| {
        for index in indices {
            let group = index / group_blocks;
            let filters = block(job.filters, block_filters, index % group_blocks);
            let part_len = blocks.filters(filters.len()) * depth;
            // SAFETY: every block of filters has its own part.
            let part = unsafe { packed.part((group * group_filters + filters.start) * depth, part_len) };
            let mut rest = part;
            let mut filter = filters.start;
            while filter < filters.end {
                let (size, width) = blocks.next(filters.end - filter);
                let (part, after) = rest.split_at_mut(width * depth);
                pack_block(&job.weights, group, filter, size, width, tap_weights, part);
                (rest, filter) = (after, filter + size);
            }
        }
    });
}

/// Packs `filters` filters, of `width` that there is room for.
fn pack_block<S: Stored>(
    view: &WeightView<'_, S>,
    group: usize,
    filter: usize,
    filters: usize,
    width: usize,
    tap_weights: &[usize],
    packed: &mut [S::Real],
) {
    let channels = packed.len() / (width * tap_weights.len());
    let first = group * view.group_stride + filter * view.filter_stride;
    for index in 0..width {
        let mut to = packed[index..].iter_mut().step_by(width);
        if index >= filters {
            to.for_each(|to| *to = S::Real::default());
            continue;
        }
        for channel in 0..channels {
            let weights = &view.data[first + index * view.filter_stride + channel * view.channel_stride..];
            for (tap, to) in tap_weights.iter().zip(to.by_ref()) {
                *to = weights[*tap].weight();
            }
        }
    }
}

/// Weights that one thread packs before another one is asked to help.
const PACK_GRAIN_NUMBERS: usize = 1 << 13;
