//! Products and convolutions take what is done to their result: a factor, a bias, a residual, an activation.
//!
//! A map is taken whole or not at all: one that stays reads the result anyway.

use panoply_core::graph::{Graph, slot_of};
use panoply_core::op::compute::{Activation, ComputeOp, Conv2d, Map, MatMul};
use panoply_core::{DType, Describe, Op, Shape, Strides, Tensor};

use super::changes::{Change, changes};
use crate::views::is_whole;
use crate::work::Work;

pub(crate) fn run(work: &mut Work, graph: &Graph) {
    for step in 0..work.steps.len() {
        if let Some((op, maker)) = work.map(step).and_then(|map| absorbed(work, graph, step, map)) {
            work.replace(step, op);
            work.remove_if_unread(maker);
        }
    }
}

/// The product or convolution that a map reads, with all of the map in it, and its step.
fn absorbed(work: &Work, graph: &Graph, step: usize, map: &Map) -> Option<(Op, usize)> {
    map.inputs().find_map(|input| {
        let maker = work.private_maker(input, step)?;
        let slot = slot_of(input)?;
        let shape = work.slots[slot].shape;
        if !is_whole(input, shape.elements()) || *input.shape() != shape || map.output_shape().ok()? != shape {
            return None;
        }
        let changes = changes(work, graph, map, input)?;
        let op = match work.op(maker)? {
            Op::Compute(ComputeOp::MatMul(op)) => ComputeOp::MatMul(product(op.clone(), &changes, &shape)?),
            Op::Compute(ComputeOp::Conv2d(op)) => ComputeOp::Conv2d(convolution(op.clone(), &changes, &shape)?),
            _ => return None,
        };
        let op = Op::Compute(op);
        op.validate().is_ok().then_some((op, maker))
    })
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
                // Factors of a product are f32, which is too little for a product of f64.
                let is_exact = op.a.dtype() != DType::F64 || f64::from(single) == *factor && op.alpha == 1.0;
                if op.bias.is_some() || !single.is_finite() || !is_exact {
                    return None;
                }
                (op.alpha, op.beta) = (op.alpha * single, op.beta * single);
            }
            Change::Add(addend) if addend.dtype() == op.output_dtype() => add_to_product(&mut op, addend, shape)?,
            Change::Add(_) | Change::Cast(_) => return None,
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

fn convolution(mut op: Conv2d, changes: &[Change<'_>], shape: &Shape) -> Option<Conv2d> {
    for change in changes {
        if op.activation != Activation::None {
            return None;
        }
        match change {
            Change::Activate(activation) => op.activation = *activation,
            Change::Add(addend) if op.bias.is_none() && addend.dtype() == op.input.dtype() => {
                op.bias = Some(along(&addend.broadcast_to(shape).ok()?, 1)?);
            }
            Change::Add(_) | Change::Scale(_) | Change::Cast(_) => return None,
        }
    }
    Some(op)
}

/// The tensor along one axis, where it is the same along all others.
fn along(tensor: &Tensor, axis: usize) -> Option<Tensor> {
    let same = |other: &usize| *other == axis || tensor.strides()[*other] == 0 || tensor.shape()[*other] == 1;
    if !(0..tensor.shape().rank()).all(|axis| same(&axis)) {
        return None;
    }
    let (shape, strides) = (Shape::new([tensor.shape()[axis]]).ok()?, Strides::new([tensor.strides()[axis]]).ok()?);
    Tensor::from_parts(tensor.dtype(), shape, strides, tensor.offset(), tensor.buffer().clone()).ok()
}
