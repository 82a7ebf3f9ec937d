//! Attention writes the heads of a row next to each other (`[batch, rows, heads, columns]` in
//! memory) if its reader needs them so. This removes the copy after it.

use panoply_core::graph::slot_of;
use panoply_core::op::compute::ComputeOp;
use panoply_core::{Op, Tensor};

use super::copies::copied;
use crate::Facts;
use crate::plan::Order;
use crate::work::Rewrite;

/// The memory order of attention's output axes (batch, heads, rows, columns) with the heads of a
/// row next to each other.
pub const HEADS_INSIDE: Order = [0, 2, 1, 3];

pub(crate) fn run(work: &mut Rewrite, facts: &Facts) {
    if !facts.joins_heads {
        return;
    }
    for step in 0..work.steps.len() {
        if let Some((copy, slot)) = copy_behind(work, step)
            && let Some(op) = work.op(step).cloned()
        {
            work.replace(copy, op);
            work.remove(step);
            work.orders[slot] = Some(&HEADS_INSIDE);
        }
    }
}

/// The step that only moves the heads of this step's attention next to each other, and its slot.
fn copy_behind(work: &Rewrite, step: usize) -> Option<(usize, usize)> {
    let Op::Compute(ComputeOp::Attention(_)) = work.op(step)? else { return None };
    let slot = work.steps[step].as_ref()?.outputs.first()?;
    let shape = work.slots[slot].shape;
    let copy = work.only_reader(slot)?;
    let view = copied(work.op(copy)?).filter(|view| slot_of(view) == Some(slot))?;
    let target = work.steps[copy].as_ref()?.outputs.first()?;
    let [batch, heads, rows, columns] = <[usize; 4]>::try_from(shape.dims()).ok()?;
    let steps = [heads * rows * columns, columns, rows * columns, 1].map(|step| step as isize);
    let lies = |view: &Tensor| {
        view.shape().dims() == [batch, rows, heads, columns]
            && view.offset() == 0
            && (0..4).all(|axis| view.shape()[axis] == 1 || view.strides()[axis] == steps[axis])
    };
    (lies(&view) && !work.is_output(target) && view.elements() > 0).then_some((copy, target))
}
