//! Fuses epilogues into products and convolutions: a factor, a bias, a residual, an activation.
//!
//! A map is fused entirely or not at all: a remaining map would read the result anyway.

use panoply_core::graph::{Graph, slot_of};
use panoply_core::op::compute::{Activation, ComputeOp, Conv2d, LayerNorm, Map, MatMul};
use panoply_core::{DType, Describe, Op, Shape, Strides, Tensor};

use super::changes::{Change, changes};
use crate::Facts;
use crate::views::{is_same, is_whole};
use crate::work::Rewrite;

/// For more 16-bit sums than this, writing them in f32 for the function that follows takes longer
/// than a separate map on rounded sums.
const ROUNDED_LATE_MAX: usize = 1 << 20;

pub(crate) fn run(work: &mut Rewrite, graph: &Graph, facts: &Facts) {
    for step in 0..work.steps.len() {
        if let Some((op, maker)) = work.map(step).and_then(|map| absorbed(work, graph, step, map, facts)) {
            pass_order_on(work, maker, step);
            work.replace(step, op);
            work.remove_if_unread(maker);
        }
    }
}

/// Copies the layout of a step's output to the step that replaces it.
pub(super) fn pass_order_on(work: &mut Rewrite, from: usize, to: usize) {
    let slot = |step: usize| work.steps[step].as_ref().and_then(|step| step.outputs.first());
    if let (Some(from), Some(to)) = (slot(from), slot(to)) {
        work.orders[to] = work.orders[from];
    }
}

/// The product or convolution that a map reads, with the whole map fused into it, and its step.
fn absorbed(work: &Rewrite, graph: &Graph, step: usize, map: &Map, facts: &Facts) -> Option<(Op, usize)> {
    map.inputs().find_map(|input| {
        let maker = work.private_maker(input, step)?;
        let slot = slot_of(input)?;
        let shape = work.slots[slot].shape;
        let output = map.output_shape().ok()?;
        if !is_whole(input, shape.elements()) || output.elements() != shape.elements() {
            return None;
        }
        let changes = changes(work, graph, map, input)?;
        // A second view of the same product would remain to be read, and keep the product itself.
        if map.inputs().any(|other| slot_of(other) == Some(slot) && !is_same(other, input))
            || changes.iter().any(|change| change.addend().is_some_and(|addend| slot_of(addend) == Some(slot)))
        {
            return None;
        }
        // A device that adds a scaled tensor in a separate pass takes longer than with the map.
        if !facts.adds_scaled && changes.iter().any(|change| matches!(change, Change::AddTimes(..))) {
            return None;
        }
        // An elementwise function is the same in every shape.
        let only_activates = changes.iter().all(|change| matches!(change, Change::Activate(_)));
        let is_same = *input.shape() == shape && output == shape;
        let is_product = matches!(work.op(maker)?, Op::Compute(ComputeOp::MatMul(_)));
        let rounds =
            |change: &Change<'_>| matches!(change, Change::Activate(activation) if *activation != Activation::Relu);
        let is_half = matches!(input.dtype(), DType::F16 | DType::BF16);
        let stays = facts.joins_heads && is_half && shape.elements() > ROUNDED_LATE_MAX && changes.iter().any(rounds);
        let takes_any = facts.channels_last || facts.activates_any_shape;
        let takes_shape = is_same || takes_any && only_activates && is_product;
        if is_product && stays || !takes_shape {
            return None;
        }
        let op = match work.op(maker)? {
            Op::Compute(ComputeOp::MatMul(op)) => {
                let product = product(op.clone(), &changes, &shape)?;
                if op.c.is_none() && product.c.is_some() && norm_takes_it(work, step, map, facts) {
                    return None;
                }
                ComputeOp::MatMul(product)
            }
            Op::Compute(ComputeOp::Conv2d(op)) => {
                let channels = if work.orders[slot].is_some() { 3 } else { 1 };
                ComputeOp::Conv2d(convolution(op.clone(), &changes, &shape, channels)?)
            }
            _ => return None,
        };
        let op = Op::Compute(op);
        op.validate().is_ok().then_some((op, maker))
    })
}

/// Whether the sum made by a map of 16-bit numbers is read by a norm alone. The norm adds while it
/// reads; a product that adds would have to keep its sums in f32 first.
fn norm_takes_it(work: &Rewrite, step: usize, map: &Map, facts: &Facts) -> bool {
    let reader = || {
        let slot = work.steps[step].as_ref()?.outputs.first()?;
        match work.op(work.only_reader(slot)?)? {
            Op::Compute(ComputeOp::LayerNorm(op)) => Some(op),
            _ => None,
        }
    };
    let len = |norm: &LayerNorm| norm.input.shape().iter().rev().take(norm.axes).product::<usize>();
    facts.joins_heads
        && map.inputs().all(|input| matches!(input.dtype(), DType::F16 | DType::BF16))
        && reader().is_some_and(|norm| len(norm) <= facts.row_len_max)
}

fn product(mut op: MatMul, changes: &[Change<'_>], shape: &Shape) -> Option<MatMul> {
    if !op.a.dtype().is_float() {
        return None;
    }
    for change in changes {
        if op.activation != Activation::None {
            return None;
        }
        match change {
            Change::Activate(activation) => op.activation = *activation,
            Change::Scale(factor) => {
                let single = *factor as f32;
                // Factors of a product are f32, which is not precise enough for a product of f64.
                let is_exact = op.a.dtype() != DType::F64 || f64::from(single) == *factor && op.alpha == 1.0;
                if op.bias.is_some() || !single.is_finite() || !is_exact {
                    return None;
                }
                (op.alpha, op.beta) = (op.alpha * single, op.beta * single);
            }
            Change::Add(addend) if addend.dtype() == op.output_dtype() => add_to_product(&mut op, addend, shape)?,
            Change::AddTimes(addend, factor) if addend.dtype() == op.output_dtype() => {
                let single = *factor as f32;
                if op.c.is_some() || !single.is_finite() || op.a.dtype() == DType::F64 {
                    return None;
                }
                (op.beta, op.c) = (single, Some(addend.broadcast_to(shape).ok()?));
            }
            Change::Add(_) | Change::AddTimes(..) | Change::Cast(_) => return None,
        }
    }
    Some(op)
}

fn add_to_product(op: &mut MatMul, addend: &Tensor, shape: &Shape) -> Option<()> {
    let rank = shape.rank();
    let wide = addend.broadcast_to(shape).ok()?;
    if op.bias.is_none()
        && let Some(bias) = along(&wide, rank - 1)
    {
        op.bias = Some(bias);
    } else if op.c.is_none() {
        (op.beta, op.c) = (1.0, Some(wide));
    } else {
        return None;
    }
    Some(())
}

fn convolution(mut op: Conv2d, changes: &[Change<'_>], shape: &Shape, channels: usize) -> Option<Conv2d> {
    for change in changes {
        if op.activation != Activation::None {
            return None;
        }
        match change {
            Change::Activate(activation) => op.activation = *activation,
            Change::Add(addend) if op.bias.is_none() && addend.dtype() == op.input.dtype() => {
                op.bias = Some(along(&addend.broadcast_to(shape).ok()?, channels)?);
            }
            Change::Add(_) | Change::AddTimes(..) | Change::Scale(_) | Change::Cast(_) => return None,
        }
    }
    Some(op)
}

/// The tensor along one axis, if it is constant along all others.
fn along(tensor: &Tensor, axis: usize) -> Option<Tensor> {
    let same = |other: &usize| *other == axis || tensor.strides()[*other] == 0 || tensor.shape()[*other] == 1;
    if !(0..tensor.shape().rank()).all(|axis| same(&axis)) {
        return None;
    }
    let (shape, strides) = (Shape::new([tensor.shape()[axis]]).ok()?, Strides::new([tensor.strides()[axis]]).ok()?);
    Tensor::from_parts(tensor.dtype(), shape, strides, tensor.offset(), tensor.buffer().clone()).ok()
}
