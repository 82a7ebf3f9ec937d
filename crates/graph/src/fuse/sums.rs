//! Joins sums of sums, on devices that support it: sums along the last axes and then along other
//! axes read the input once, without an intermediate tensor. Sums of a map's result stay separate:
//! the first sum fuses with the map ([`super::rows`]).

use panoply_core::op::compute::{ComputeOp, Reduce, Reduction};
use panoply_core::{DType, Describe, Op};

use crate::Facts;
use crate::views::is_whole;
use crate::work::Rewrite;

pub(crate) fn run(work: &mut Rewrite, facts: &Facts) {
    if !facts.joins_sums {
        return;
    }
    for step in 0..work.steps.len() {
        if let Some((op, inner)) = joined(work, step) {
            work.replace(step, op);
            work.remove_if_unread(inner);
        }
    }
}

/// A sum or mean of sums or means as one op, and the step of the inner one.
fn joined(work: &Rewrite, step: usize) -> Option<(Op, usize)> {
    let outer = sum(work, step)?;
    let maker = work.private_maker(&outer.input, step)?;
    let inner = sum(work, maker)?;
    let shape = inner.output_shape().ok()?;
    let is_same = *outer.input.shape() == shape && is_whole(&outer.input, shape.elements());
    let (first, then) = (inner.reduced().ok()?, outer.reduced().ok()?);
    // The rows to sum are contiguous. If a map makes them, the first sum should fuse with the map
    // instead.
    let is_of_rows = *first.last()? && inner.input.is_contiguous();
    let is_of_map = work.private_maker(&inner.input, maker).is_some_and(|before| work.map(before).is_some());
    if inner.reduction != outer.reduction || !is_same || !is_of_rows || is_of_map {
        return None;
    }
    let axes: Vec<usize> = (0..first.len()).filter(|axis| first[*axis] || then[*axis]).collect();
    let op = Op::Compute(ComputeOp::Reduce(Reduce::new(&inner.input, inner.reduction).axes(&axes).keep_dims()));
    op.validate().is_ok().then_some((op, maker))
}

/// The sum or mean of f32 elements computed by a step, with reduced axes kept as ones.
fn sum(work: &Rewrite, step: usize) -> Option<&Reduce> {
    let Op::Compute(ComputeOp::Reduce(op)) = work.op(step)? else { return None };
    let is_sum = matches!(op.reduction, Reduction::Sum | Reduction::Mean);
    (is_sum && op.keeps_dims && op.input.dtype() == DType::F32 && op.input.elements() > 0).then_some(op)
}
