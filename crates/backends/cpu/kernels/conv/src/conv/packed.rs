//! Weights in the order in which the tiles read them, packed for one convolution or kept for many.

use super::ConvShape;
use super::blocks::{block, largest};
use super::correlation::{Correlation, WeightView};
use super::real::StoredElement;
use super::tile::{Real, filter_blocks};
use super::winograd_tile::{POINTS, points};
use super::workspace::{HasScratch, SharedSlice};
use crate::simd::Simd;
use crate::team::Team;

/// Packed forms of constant weights. The same weights may be kept in several orders, which depend
/// on the size of the images.
#[derive(Default)]
pub struct PackedWeights {
    pub(super) single: Vec<OrderedWeights<f32>>,
    pub(super) double: Vec<OrderedWeights<f64>>,
    /// Whether all weights are finite, once known.
    finite: Option<bool>,
}

/// Weights that are checked without a branch.
const LOOKED_AT: usize = 64;

/// Whether all weights are finite. For kept weights the result is cached.
pub(super) fn all_finite<S: StoredElement>(weights: &[S], kept: Option<&mut PackedWeights>) -> bool {
    if let Some(known) = kept.as_ref().and_then(|kept| kept.finite) {
        return known;
    }
    let (least, most) = (S::Real::rounded(f64::NEG_INFINITY), S::Real::rounded(f64::INFINITY));
    let is_finite = |weight: &S| (weight.real() > least) & (weight.real() < most);
    let finite = weights.chunks(LOOKED_AT).all(|run| run.iter().fold(true, |all, weight| all & is_finite(weight)));
    if let Some(kept) = kept {
        kept.finite = Some(finite);
    }
    finite
}

impl PackedWeights {
    /// Maximum number of kept orders: for large and for small images. If a convolution needs
    /// another order, its weights are packed for each call.
    pub const FORMS_MAX: usize = 2;
    /// Maximum of kept numbers for each weight: one, and four if the weights are transformed.
    pub const GROWTH_MAX: usize = 5;
    /// Filters are padded to a multiple of at most this number: two vectors of the widest level.
    pub const FILTERS_STEP: usize = 32;

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let single: usize = self.single.iter().map(|form| form.numbers.bytes()).sum();
        single + self.double.iter().map(|form| form.numbers.bytes()).sum::<usize>()
    }
}

/// Weights in one order.
pub struct OrderedWeights<T> {
    order: Order,
    numbers: AlignedNumbers<T>,
}

/// The filters that are contiguous in packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blocks {
    /// The filters of a tile whose lanes are pixels: the largest block that the remaining filters
    /// fill.
    PixelLanes(Simd),
    /// The filters of a tile whose lanes are filters: this many, with zeros after the last filter.
    FilterLanes(usize),
    /// As `PixelLanes`, for weights that are transformed for each point of `winograd`.
    Points(Simd),
}

/// The order of packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PackOrder {
    /// By channels before taps, in blocks of filters.
    Blocks(Blocks),
    /// By taps before channels, in blocks of two vectors with this number of lanes, for
    /// channels-last images.
    ChannelsLast(usize),
    /// As `ChannelsLast`, for weights that are transformed for each point of `winograd`; by points.
    PointsLast(usize),
    /// By taps, for one filter for each channel.
    Taps,
}

/// All inputs on which the order of packed weights depends.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Order {
    way: PackOrder,
    /// The number of groups, and the numbers of filters and channels of one group.
    sizes: [usize; 3],
    taps: Vec<usize>,
}

/// Numbers aligned to a cache line.
pub(super) struct AlignedNumbers<T> {
    numbers: Vec<T>,
    start: usize,
}

impl<T> Default for AlignedNumbers<T> {
    fn default() -> AlignedNumbers<T> {
        AlignedNumbers { numbers: Vec::new(), start: 0 }
    }
}

/// Bytes in a cache line.
const LINE_BYTES: usize = 64;

impl<T: Real> AlignedNumbers<T> {
    /// At least `len` numbers; the contents are left over from earlier uses.
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

/// The job's weights in this order, from `kept` or else from `own`.
pub(super) fn packed<'a, S: StoredElement>(
    team: &Team,
    blocks: Blocks,
    job: &Correlation<'_, S>,
    tap_weights: &[usize],
    kept: Option<&'a mut PackedWeights>,
    own: &'a mut AlignedNumbers<S::Real>,
) -> &'a [S::Real] {
    let total = job.groups * blocks.filters(job.filters) * job.channels * tap_weights.len();
    let sizes = [job.groups, job.filters, job.channels];
    in_order(PackOrder::Blocks(blocks), sizes, tap_weights, total, kept, own, &|numbers| {
        pack(team, blocks, job, tap_weights, numbers)
    })
}

/// `total` numbers that `pack` writes in an order, from `kept` or else from `own`.
pub(super) fn in_order<'a, T: Real + HasScratch>(
    way: PackOrder,
    sizes: [usize; 3],
    taps: &[usize],
    total: usize,
    kept: Option<&'a mut PackedWeights>,
    own: &'a mut AlignedNumbers<T>,
    pack: &dyn Fn(&mut [T]),
) -> &'a [T] {
    let is_order = |order: &Order| (order.way, order.sizes) == (way, sizes) && order.taps == taps;
    let forms = kept.map(T::forms);
    let numbers = match forms {
        Some(forms) => match forms.iter().position(|form| is_order(&form.order)) {
            Some(index) => {
                let AlignedNumbers { numbers, start } = &forms[index].numbers;
                return &numbers[*start..][..total];
            }
            None if forms.len() < PackedWeights::FORMS_MAX => {
                let mut numbers = AlignedNumbers::default();
                pack(numbers.at_least(total));
                let order = Order { way, sizes, taps: taps.to_vec() };
                forms.push(OrderedWeights { order, numbers });
                let AlignedNumbers { numbers, start } = &forms[forms.len() - 1].numbers;
                return &numbers[*start..][..total];
            }
            None => own.at_least(total),
        },
        None => own.at_least(total),
    };
    pack(numbers);
    numbers
}

/// Weights of 3×3 taps, transformed for `winograd`: by group, point, block of filters, channel, and
/// filter in the block. `None` if they are not kept yet and there is no room for another order.
pub(super) fn transformed<'a, S: StoredElement>(
    simd: Simd,
    team: &Team,
    shape: &ConvShape,
    weights: &[S],
    forms: &'a mut Vec<OrderedWeights<S::Real>>,
) -> Option<&'a [S::Real]> {
    let (blocks, sizes) = (Blocks::Points(simd), [shape.groups, shape.group_filters(), shape.group_channels()]);
    let total = POINTS * sizes.iter().product::<usize>();
    let known = forms.iter().position(|form| (form.order.way, form.order.sizes) == (PackOrder::Blocks(blocks), sizes));
    let index = known.unwrap_or(forms.len());
    if known.is_none() {
        if forms.len() >= PackedWeights::FORMS_MAX {
            return None;
        }
        let mut numbers = AlignedNumbers::default();
        transform(team, blocks, sizes, weights, numbers.at_least(total));
        forms
            .push(OrderedWeights { order: Order { way: PackOrder::Blocks(blocks), sizes, taps: Vec::new() }, numbers });
    }
    let AlignedNumbers { numbers, start } = &forms[index].numbers;
    Some(&numbers[*start..][..total])
}

fn transform<S: StoredElement>(team: &Team, blocks: Blocks, sizes: [usize; 3], weights: &[S], packed: &mut [S::Real]) {
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
    /// Number of packed filters of one group, padding included.
    pub(super) fn filters(self, filters: usize) -> usize {
        match self {
            Blocks::PixelLanes(_) | Blocks::Points(_) => filters,
            Blocks::FilterLanes(width) => filters.next_multiple_of(width),
        }
    }

    fn largest(self) -> usize {
        match self {
            Blocks::PixelLanes(simd) | Blocks::Points(simd) => filter_blocks(simd)[0],
            Blocks::FilterLanes(width) => width,
        }
    }

    /// Filters of the next block if `left` are left, and the numbers that the block has for each
    /// tap.
    fn next(self, left: usize) -> (usize, usize) {
        match self {
            Blocks::PixelLanes(simd) | Blocks::Points(simd) => {
                let size = largest(filter_blocks(simd), left);
                (size, size)
            }
            Blocks::FilterLanes(width) => (left.min(width), width),
        }
    }
}

/// Reorders the weights for the tiles: by group, block of filters, channel, tap, and filter in the
/// block.
fn pack<S: StoredElement>(
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
            // SAFETY: the parts of different blocks of filters are disjoint.
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

/// Packs `filters` filters into a block with room for `width`.
fn pack_block<S: StoredElement>(
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

/// Minimum number of weights for a thread to pack.
const PACK_GRAIN_NUMBERS: usize = 1 << 13;
