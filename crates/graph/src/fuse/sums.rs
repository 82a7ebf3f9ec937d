//! A sum of sums is one sum, on devices that say so: what is added up along the last axes and then along others is read once, and nothing
//! lies between. Sums of what a map makes stay two: the first of them takes the map ([`super::rows`]).

use panoply_core::op::compute::{ComputeOp, Reduce, Reduction};
use panoply_core::{DType, Describe, Op};

use crate::Facts;
use crate::views::is_whole;
use crate::work::Work;

pub(crate) fn run(work: &mut Work, facts: &Facts) {
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

/// A sum or mean of sums or means as one, and the step of those.
fn joined(work: &Work, step: usize) -> Option<(Op, usize)> {
    let outer = sum(work, step)?;
    let maker = work.private_maker(&outer.input, step)?;
    let inner = sum(work, maker)?;
    let shape = inner.output_shape().ok()?;
    let is_same = *outer.input.shape() == shape && is_whole(&outer.input, shape.elements());
    let (first, then) = (inner.reduced().ok()?, outer.reduced().ok()?);
    // The sums of a row are its neighbours; and where a map makes the row, the first sum is to take it.
    let is_of_rows = *first.last()? && inner.input.is_contiguous();
    let is_of_map = work.private_maker(&inner.input, maker).is_some_and(|before| work.map(before).is_some());
    if inner.reduction != outer.reduction || !is_same || !is_of_rows || is_of_map {
        return None;
    }
    let axes: Vec<usize> = (0..first.len()).filter(|axis| first[*axis] || then[*axis]).collect();
    let op = Op::Compute(ComputeOp::Reduce(Reduce::new(&inner.input, inner.reduction).axes(&axes).keep_dims()));
    op.validate().is_ok().then_some((op, maker))
}

/// The sum or mean of f32 numbers that a step is, with its axes left as ones.
fn sum(work: &Work, step: usize) -> Option<&Reduce> {
    let Op::Compute(ComputeOp::Reduce(op)) = work.op(step)? else { return None };
    let is_sum = matches!(op.reduction, Reduction::Sum | Reduction::Mean);
    (is_sum && op.keeps_dims && op.input.dtype() == DType::F32 && op.input.elements() > 0).then_some(op)
}
