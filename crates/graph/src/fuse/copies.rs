//! Removes copies that only make a view contiguous, if their readers can take the view itself.

use panoply_core::expr::Node;
use panoply_core::graph::slot_of;
use panoply_core::op::compute::ComputeOp;
use panoply_core::{Op, Tensor};

use crate::views::through;
use crate::work::Rewrite;

pub(crate) fn run(work: &mut Rewrite) {
    for step in 0..work.steps.len() {
        let Some(op) = work.op(step) else { continue };
        // A single pass over an op's tensors collects the views of all its copies.
        let mut views: Vec<(Tensor, Tensor, usize)> = Vec::new();
        op.for_each_tensor(&mut |tensor| {
            if let Some((source, copy)) = behind(work, tensor) {
                views.push((tensor.clone(), source, copy));
            }
        });
        if views.is_empty() {
            continue;
        }
        let mut changed: Op = op.clone();
        let mut views = views.into_iter().peekable();
        let mut copies = Vec::new();
        changed.for_each_tensor_mut(&mut |tensor| {
            let is_next = |(view, _, _): &(Tensor, Tensor, usize)| crate::views::is_same(view, tensor);
            if let Some((_, source, copy)) = views.next_if(is_next) {
                *tensor = source;
                copies.push(copy);
            }
        });
        work.replace(step, changed);
        copies.into_iter().for_each(|copy| work.remove_if_unread(copy));
    }
}

/// The view behind the copy that a tensor reads, and the step that makes the copy.
fn behind(work: &Rewrite, tensor: &Tensor) -> Option<(Tensor, usize)> {
    let slot = slot_of(tensor)?;
    let copy = work.maker(slot)?;
    let source = copied(work.op(copy)?)?;
    Some((through(tensor, &work.slots[slot].shape, &source)?, copy))
}

/// The view that an op copies to contiguous memory, if the op does nothing else.
pub(crate) fn copied(op: &Op) -> Option<Tensor> {
    match op {
        Op::Compute(ComputeOp::Map(map)) => {
            let mut inputs = map.inputs();
            match (map.program().ok()?.nodes(), inputs.next(), inputs.next()) {
                ([Node::Input(0)], Some(only), None) => Some(only.clone()),
                _ => None,
            }
        }
        Op::Compute(ComputeOp::Transpose(op)) => op.view().ok(),
        _ => None,
    }
}
