//! Convolutions take the map that is their only reader, with any expression. It is applied to sums
//! while they are in the caches.
//!
//! This is the last pass. The maps that remain after convolutions (a residual with its activation,
//! `x * sigmoid(x)`, bounds) become tails.

use panoply_core::expr::Operand;
use panoply_core::graph::slot_of;
use panoply_core::op::compute::{ComputeOp, Map};
use panoply_core::{DType, Op, Tensor};

use super::elementwise::place;
use super::epilogue::pass_order_on;
use crate::Facts;
use crate::plan::Tail;
use crate::views::{is_same, is_whole};
use crate::work::Rewrite;

/// Runs the pass. `once` marks the steps that run once; they are left unchanged.
pub(crate) fn run(work: &mut Rewrite, once: &[bool], facts: &Facts) {
    if !facts.takes_tails {
        return;
    }
    for step in (0..work.steps.len()).filter(|step| !once[*step]) {
        let Some((op, tail, maker)) = work.map(step).and_then(|map| taken(work, step, map, once)) else { continue };
        pass_order_on(work, maker, step);
        work.replace_with_tail(step, op, tail);
        work.remove_if_unread(maker);
    }
}

/// The convolution that takes a map, the map as its tail, and the convolution's step. Of several
/// convolutions the last one is used, because its output is still in the caches.
fn taken(work: &Rewrite, step: usize, map: &Map, once: &[bool]) -> Option<(Op, Tail, usize)> {
    let makers = map.inputs().filter_map(|input| Some((work.private_maker(input, step)?, input)));
    let (maker, result) =
        makers.filter(|(maker, _)| !once[*maker] && is_convolution(work, *maker)).max_by_key(|(maker, _)| *maker)?;
    let (slot, output) = (slot_of(result)?, map.output_shape().ok()?);
    let shape = work.slots[slot].shape;
    let is_plain = is_whole(result, shape.elements()) && *result.shape() == shape && output == shape;
    let is_single = map.output_dtype().ok()? == DType::F32 && result.dtype() == DType::F32;
    let is_seen_once = map.inputs().all(|other| slot_of(other) != Some(slot) || is_same(other, result));
    let lies = work.steps[step].as_ref()?.outputs.iter().all(|slot| work.orders[slot].is_none());
    if !is_plain || !is_single || !is_seen_once || !lies || work.tails[maker].is_some() {
        return None;
    }
    let mut all: Vec<Tensor> = vec![result.clone()];
    let operands: Vec<Operand<'_>> = map.inputs().map(|input| Operand::Input(place(&mut all, input))).collect();
    let program = map.program().ok()?.compose(&operands).ok()?;
    let op = work.op(maker)?.clone();
    Some((op, Tail { program, more: all.split_off(1) }, maker))
}

fn is_convolution(work: &Rewrite, step: usize) -> bool {
    matches!(work.op(step), Some(Op::Compute(ComputeOp::Conv2d(_))))
}
