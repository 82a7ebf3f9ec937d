//! Channels-last (NHWC) images between convolutions.
//!
//! Steps are visited in order. A convolution writes its output channels-last, and a map, a pool or
//! a kernel of such an image does the same, so that nothing is permuted between them. Weights are
//! laid out once. A convolution with a 1 × 1 kernel and stride one is a matrix product, which can
//! also take a residual. Readers of such an image read it through strides. If strides cannot
//! express a reader's view, or the image is an output of the graph, the image stays as it was.

use panoply_core::expr::Expr;
use panoply_core::graph::{Origin, Slot, placeholder, slot_of};
use panoply_core::op::compute::{ComputeOp, Conv2d, Kernel, Map, MatMul, Pool2d};
use panoply_core::{DType, Describe, Op, Shape, Strides, Tensor};

use crate::Facts;
use crate::fold::steps_of_constants;
use crate::plan::Order;
use crate::views::is_whole;
use crate::work::Rewrite;

/// The memory order of the axes of a channels-last image. `BACK` is the inverse permutation.
pub const CHANNELS_LAST: Order = [0, 2, 3, 1];
const BACK: Order = [0, 3, 1, 2];
/// Channels and filters of 16-bit numbers come in multiples of this.
const GROUP: usize = 8;
/// The fewest f32 filters for channels-last. Filters are the vector lanes, so fewer filters leave
/// most lanes idle. That pays off only if the image would have to be permuted otherwise.
const FILTERS_MIN: usize = 12;

pub(crate) fn run(work: &mut Rewrite, facts: &Facts) {
    if !facts.channels_last && !facts.channels_last_f32 {
        return;
    }
    let (readers, once) = (work.all_readers(), steps_of_constants(work));
    for step in (0..work.steps.len()).filter(|step| !once[*step]) {
        let Some(turned) = turned(work, step, facts) else { continue };
        let Some(slot) = work.steps[step].as_ref().and_then(|step| step.outputs.first()) else { continue };
        if work.is_output(slot) {
            continue;
        }
        let old = work.slots[slot].shape;
        let Some(lies) = Shape::new(CHANNELS_LAST.map(|axis| old[axis])).ok() else { continue };
        let Ok(memory) = placeholder(work.slots[slot].dtype, lies, slot) else { continue };
        let Ok(seen) = memory.permute(&BACK) else { continue };
        let own = readers.get(slot).unwrap_or_default();
        if !work.can_see(slot, own, &old, &seen) {
            continue;
        }
        let Some((op, order)) = turned.into_op(work, step) else { continue };
        work.replace(step, op);
        work.slots[slot].set_shape(lies);
        work.orders[slot] = order;
        own.iter().for_each(|reader| work.see(*reader as usize, slot, &old, &seen));
    }
}

/// The replacement of a step whose output becomes channels-last.
enum ChannelsLastStep {
    /// The same op, with channels-last output.
    Ordered(Op),
    /// The same convolution, with channels-last weights.
    Convolution(Conv2d),
    /// An op whose output has the permuted shape of a channels-last image.
    Plain(Op),
}

impl ChannelsLastStep {
    fn into_op(self, work: &mut Rewrite, step: usize) -> Option<(Op, Option<&'static Order>)> {
        match self {
            ChannelsLastStep::Ordered(op) => Some((op, Some(&CHANNELS_LAST))),
            ChannelsLastStep::Plain(op) => Some((op, None)),
            ChannelsLastStep::Convolution(mut op) => {
                // Fewer channels are padded with zeros by the device.
                if op.weights.shape()[1] >= GROUP {
                    op.weights = turned_weights(work, step, &op.weights)?;
                }
                Some((conv2d(op), Some(&CHANNELS_LAST)))
            }
        }
    }
}

fn turned(work: &Rewrite, step: usize, facts: &Facts) -> Option<ChannelsLastStep> {
    let Op::Compute(op) = work.op(step)? else { return None };
    match op {
        ComputeOp::Conv2d(op) if op.input.dtype() == DType::F32 => {
            (facts.channels_last_f32 && is_for_lanes(work, op)).then(|| ChannelsLastStep::Ordered(conv2d(op.clone())))
        }
        ComputeOp::Conv2d(op) if facts.channels_last => convolution(work, op),
        ComputeOp::Pool2d(op) if is_channels_last(&op.input) => pool(op, facts).map(ChannelsLastStep::Ordered),
        ComputeOp::Kernel(op) if facts.channels_last_f32 => kernel(op).map(ChannelsLastStep::Plain),
        ComputeOp::Map(op) => map(op).map(ChannelsLastStep::Plain),
        _ => None,
    }
}

fn pool(op: &Pool2d, facts: &Facts) -> Option<Op> {
    let turns = match op.input.dtype() {
        DType::F32 => facts.channels_last_f32 && !op.input.is_contiguous(),
        dtype => facts.channels_last && is_half(dtype) && op.input.shape()[1].is_multiple_of(GROUP),
    };
    turns.then(|| Op::Compute(ComputeOp::Pool2d(op.clone())))
}

/// The kernel for channels-last images, if most of the bytes it reads are channels-last and the
/// kernel has a permuted form.
fn kernel(op: &Kernel) -> Option<Op> {
    let (mut turned_bytes, mut other_bytes) = (0_usize, 0_usize);
    for image in op.inputs.iter().filter(|input| input.shape().rank() == 4) {
        // An image with one channel or one pixel has both layouts.
        match (has_channels_side_by_side(image), is_channels_last(image) && image.is_contiguous()) {
            (_, true) => {}
            (true, _) => turned_bytes = turned_bytes.saturating_add(image.len_bytes()),
            (false, _) => other_bytes = other_bytes.saturating_add(image.len_bytes()),
        }
    }
    let [shape] = op.outputs[..] else { return None };
    if turned_bytes == 0 || turned_bytes < other_bytes || shape.rank() != 4 {
        return None;
    }
    let turned = op.permuted(&CHANNELS_LAST)?;
    turned.validate().ok()?;
    let fits = turned.outputs[..] == [Shape::new(CHANNELS_LAST.map(|axis| shape[axis])).ok()?];
    fits.then(|| Op::Compute(ComputeOp::Kernel(turned)))
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Whether a tensor is channels-last: its second axis is innermost in memory, and its pixels are
/// contiguous.
pub fn is_channels_last(tensor: &Tensor) -> bool {
    let (Ok(dims), strides) = (<[usize; 4]>::try_from(tensor.shape().dims()), tensor.strides()) else { return false };
    let mut step = 1;
    let lies = CHANNELS_LAST.iter().rev().all(|axis| {
        let fits = dims[*axis] == 1 || strides[*axis] == step;
        step *= dims[*axis] as isize;
        fits
    });
    lies && tensor.elements() > 0
}

/// Whether the channels of each pixel are adjacent in memory, with any distance between pixels.
/// This includes views of some channels of an image.
fn has_channels_side_by_side(tensor: &Tensor) -> bool {
    let (Ok([_, channels, ..]), strides) = (<[usize; 4]>::try_from(tensor.shape().dims()), tensor.strides()) else {
        return false;
    };
    let pixels = (2..4).filter(|axis| tensor.shape()[*axis] > 1).map(|axis| strides[axis]);
    channels > 1
        && strides[1] == 1
        && tensor.elements() > 0
        && pixels.min().is_some_and(|step| step >= channels as isize)
}

fn conv2d(op: Conv2d) -> Op {
    Op::Compute(ComputeOp::Conv2d(op))
}

/// Whether weights are a whole constant.
fn is_constant(work: &Rewrite, weights: &Tensor) -> bool {
    let slot = slot_of(weights).and_then(|slot| work.slots.get(slot));
    slot.is_some_and(|slot| matches!(slot.origin, Origin::Constant(_)) && is_whole(weights, slot.shape.elements()))
}

/// Whether an f32 convolution should use vector lanes for filters. Each filter has to read all
/// channels, or one channel of its own.
fn is_for_lanes(work: &Rewrite, op: &Conv2d) -> bool {
    op.conv_shape().is_ok_and(|shape| {
        let is_depthwise = shape.groups == shape.channels && shape.channels == shape.filters;
        let is_turned = shape.taps() == 1 && !op.input.is_contiguous() && has_channels_side_by_side(&op.input);
        let fits = (shape.filters >= FILTERS_MIN || is_turned) && (shape.groups == 1 || is_depthwise);
        fits && is_constant(work, &op.weights) && op.input.elements() > 0
    })
}

fn convolution(work: &Rewrite, op: &Conv2d) -> Option<ChannelsLastStep> {
    let shape = op.conv_shape().ok()?;
    let is_constant = is_constant(work, &op.weights);
    let fits = shape.filters.is_multiple_of(GROUP) && (shape.channels.is_multiple_of(GROUP) || shape.channels < GROUP);
    if !is_half(op.input.dtype()) || !is_constant || !fits || shape.groups != 1 || op.input.elements() == 0 {
        return None;
    }
    let is_product = shape.taps() == 1 && shape.stride == [1, 1] && shape.padding == [0; 4];
    if !is_product || !is_channels_last(&op.input) {
        return Some(ChannelsLastStep::Convolution(op.clone()));
    }
    let strides = Strides::new([1, shape.channels as isize]).ok()?;
    let sizes = Shape::new([shape.channels, shape.filters]).ok()?;
    let (offset, buffer) = (op.weights.offset(), op.weights.buffer().clone());
    let weights = Tensor::from_parts(op.weights.dtype(), sizes, strides, offset, buffer).ok()?;
    let product = MatMul::new(&op.input.permute(&CHANNELS_LAST).ok()?, &weights).activation(op.activation);
    let product = MatMul { bias: op.bias.clone(), ..product };
    product.validate().ok()?;
    Some(ChannelsLastStep::Plain(Op::Compute(ComputeOp::MatMul(product))))
}

/// The channels-last weights, made once.
fn turned_weights(work: &mut Rewrite, step: usize, weights: &Tensor) -> Option<Tensor> {
    let view = weights.permute(&CHANNELS_LAST).ok()?;
    let copy = Map::with_program(&Expr::input(0).finish().ok()?, &[&view]);
    copy.validate().ok()?;
    let (node, shape) = (work.steps[step].as_ref()?.node, *view.shape());
    let slot = Slot::new(weights.dtype(), shape, Origin::Step(0));
    let slot = work.push_once(node, Op::Compute(ComputeOp::Map(copy)), slot);
    placeholder(weights.dtype(), shape, slot).ok()?.permute(&BACK).ok()
}

/// The map in channels-last order, if one of its images is channels-last.
fn map(op: &Map) -> Option<Op> {
    let shape = op.output_shape().ok()?;
    let lies = |input: &Tensor| *input.shape() == shape && has_channels_side_by_side(input);
    if shape.rank() != 4 || !op.inputs().any(lies) {
        return None;
    }
    let turned = |input: &Tensor| input.broadcast_to(shape).ok()?.permute(&CHANNELS_LAST).ok();
    let inputs: Vec<Tensor> = op.inputs().map(turned).collect::<Option<_>>()?;
    let map = Map::with_program(op.program().ok()?, &inputs.iter().collect::<Vec<_>>());
    map.validate().ok()?;
    Some(Op::Compute(ComputeOp::Map(map)))
}
