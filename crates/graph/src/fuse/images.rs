//! Images with their channels last, where convolutions want them so.
//!
//! Steps are gone through in order. A convolution writes its output with the channels of a pixel side by side, and a map, a pool or a
//! kernel of such an image does the same, so that nothing is turned between them; weights are laid out once. One of a single pixel with a step of one is a
//! product of matrices, which takes a residual besides. Whoever reads such an image sees it through strides: where strides cannot say what a
//! reader wants, and where the image is an output of the graph, it stays as it was.

use panoply_core::expr::Expr;
use panoply_core::graph::{Origin, Slot, placeholder, slot_of};
use panoply_core::op::compute::{ComputeOp, Conv2d, Kernel, Map, MatMul, Pool2d};
use panoply_core::{DType, Describe, Op, Shape, Strides, Tensor};

use crate::Facts;
use crate::fold::steps_of_constants;
use crate::plan::Order;
use crate::views::is_whole;
use crate::work::Work;

/// The axes of an image with its channels last, and those of such an image as ops name them.
pub const CHANNELS_LAST: Order = [0, 2, 3, 1];
const BACK: Order = [0, 3, 1, 2];
/// Channels and filters of 16-bit numbers come in groups of so many.
const GROUP: usize = 8;
/// Filters of f32 are the lanes of vectors: fewer leave most of them idle, which pays only where the image would have to be turned.
const FILTERS_MIN: usize = 12;

pub(crate) fn run(work: &mut Work, facts: &Facts) {
    if !facts.channels_last && !facts.channels_last_f32 {
        return;
    }
    let (readers, once) = (work.all_readers(), steps_of_constants(work));
    for step in (0..work.steps.len()).filter(|step| !once[*step]) {
        let Some(turned) = turned(work, step, facts) else { continue };
        let Some(slot) = work.steps[step].as_ref().and_then(|step| step.outputs.first().copied()) else { continue };
        if work.is_output(slot) {
            continue;
        }
        let old = work.slots[slot].shape;
        let Some(lies) = Shape::new(CHANNELS_LAST.map(|axis| old[axis])).ok() else { continue };
        let Ok(memory) = placeholder(work.slots[slot].dtype, lies, slot) else { continue };
        let Ok(seen) = memory.permute(&BACK) else { continue };
        let own: &[usize] = readers.get(slot).map_or(&[], Vec::as_slice);
        if !work.can_see(slot, own, &old, &seen) {
            continue;
        }
        let Some((op, order)) = turned.into_op(work, step) else { continue };
        work.replace(step, op);
        work.slots[slot].shape = lies;
        work.orders[slot] = order;
        own.iter().for_each(|reader| work.see(*reader, slot, &old, &seen));
    }
}

/// What becomes of a step whose output lies with its channels last.
enum Turned {
    /// The same op; its output lies so.
    Ordered(Op),
    /// The same convolution, with weights that lie so.
    Convolution(Conv2d),
    /// An op whose output is the image with its channels last.
    Plain(Op),
}

impl Turned {
    fn into_op(self, work: &mut Work, step: usize) -> Option<(Op, Option<Order>)> {
        match self {
            Turned::Ordered(op) => Some((op, Some(CHANNELS_LAST))),
            Turned::Plain(op) => Some((op, None)),
            Turned::Convolution(mut op) => {
                // Fewer channels are filled up with zeros, by who reads them.
                if op.weights.shape()[1] >= GROUP {
                    op.weights = turned_weights(work, step, &op.weights)?;
                }
                Some((conv2d(op), Some(CHANNELS_LAST)))
            }
        }
    }
}

fn turned(work: &Work, step: usize, facts: &Facts) -> Option<Turned> {
    let Op::Compute(op) = work.op(step)? else { return None };
    match op {
        ComputeOp::Conv2d(op) if op.input.dtype() == DType::F32 => {
            (facts.channels_last_f32 && is_for_lanes(work, op)).then(|| Turned::Ordered(conv2d(op.clone())))
        }
        ComputeOp::Conv2d(op) if facts.channels_last => convolution(work, op),
        ComputeOp::Pool2d(op) if is_channels_last(&op.input) => pool(op, facts).map(Turned::Ordered),
        ComputeOp::Kernel(op) if facts.channels_last_f32 => kernel(op).map(Turned::Plain),
        ComputeOp::Map(op) => map(op).map(Turned::Plain),
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

/// The kernel of images with their channels last, where most of what it reads lies so and it says how.
fn kernel(op: &Kernel) -> Option<Op> {
    let (mut turned_bytes, mut other_bytes) = (0_usize, 0_usize);
    for image in op.inputs.iter().filter(|input| input.shape().rank() == 4) {
        // What has one channel or one pixel lies both ways.
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
    let turned = op.turned(&CHANNELS_LAST)?;
    turned.validate().ok()?;
    let fits = turned.outputs[..] == [Shape::new(CHANNELS_LAST.map(|axis| shape[axis])).ok()?];
    fits.then(|| Op::Compute(ComputeOp::Kernel(turned)))
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Whether a tensor's channels, its second axis, lie side by side, and nothing lies between its pixels.
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

/// Whether the channels of each pixel of a tensor lie side by side, whatever lies between pixels: also of some channels of an image.
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

/// Whether weights are all of a constant.
fn is_constant(work: &Work, weights: &Tensor) -> bool {
    let slot = slot_of(weights).and_then(|slot| work.slots.get(slot));
    slot.is_some_and(|slot| matches!(slot.origin, Origin::Constant(_)) && is_whole(weights, slot.shape.elements()))
}

/// Whether a convolution of f32 has its filters in the lanes of vectors: all of them read all channels, or each one its own.
fn is_for_lanes(work: &Work, op: &Conv2d) -> bool {
    op.conv_shape().is_ok_and(|shape| {
        let is_depthwise = shape.groups == shape.channels && shape.channels == shape.filters;
        let is_turned = shape.taps() == 1 && !op.input.is_contiguous() && has_channels_side_by_side(&op.input);
        let fits = (shape.filters >= FILTERS_MIN || is_turned) && (shape.groups == 1 || is_depthwise);
        fits && is_constant(work, &op.weights) && op.input.elements() > 0
    })
}

fn convolution(work: &Work, op: &Conv2d) -> Option<Turned> {
    let shape = op.conv_shape().ok()?;
    let is_constant = is_constant(work, &op.weights);
    let fits = shape.filters.is_multiple_of(GROUP) && (shape.channels.is_multiple_of(GROUP) || shape.channels < GROUP);
    if !is_half(op.input.dtype()) || !is_constant || !fits || shape.groups != 1 || op.input.elements() == 0 {
        return None;
    }
    let is_product = shape.taps() == 1 && shape.stride == [1, 1] && shape.padding == [0; 4];
    if !is_product || !is_channels_last(&op.input) {
        return Some(Turned::Convolution(op.clone()));
    }
    let strides = Strides::new([1, shape.channels as isize]).ok()?;
    let sizes = Shape::new([shape.channels, shape.filters]).ok()?;
    let (offset, buffer) = (op.weights.offset(), op.weights.buffer().clone());
    let weights = Tensor::from_parts(op.weights.dtype(), sizes, strides, offset, buffer).ok()?;
    let product = MatMul::new(&op.input.permute(&CHANNELS_LAST).ok()?, &weights).activation(op.activation);
    let product = MatMul { bias: op.bias.clone(), ..product };
    product.validate().ok()?;
    Some(Turned::Plain(Op::Compute(ComputeOp::MatMul(product))))
}

/// The weights with their channels last, made once.
fn turned_weights(work: &mut Work, step: usize, weights: &Tensor) -> Option<Tensor> {
    let view = weights.permute(&CHANNELS_LAST).ok()?;
    let copy = Map::with_program(&Expr::input(0).finish().ok()?, &[&view]);
    copy.validate().ok()?;
    let (node, shape) = (work.steps[step].as_ref()?.node, *view.shape());
    let slot = Slot { dtype: weights.dtype(), shape, origin: Origin::Step(0) };
    let slot = work.push_once(node, Op::Compute(ComputeOp::Map(copy)), slot);
    placeholder(weights.dtype(), shape, slot).ok()?.permute(&BACK).ok()
}

/// The map of images, with their channels last, where one of them lies so.
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
