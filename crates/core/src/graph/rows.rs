//! Decides whether a graph's rows along its first symbol are independent, so that rows of different
//! callers can be joined.

use super::dim::Dim;
use super::node::{Kind, Node, Nodes};
use crate::op::Op;
use crate::op::compute::ComputeOp;

/// Whether the first symbol is the first dimension of every input and output and occurs nowhere
/// else, and no op mixes rows.
pub(super) fn has_rows(nodes: &Nodes, inputs: &[usize], outputs: &[(String, usize)]) -> bool {
    let ports = inputs.iter().chain(outputs.iter().map(|(_, node)| node));
    let row = Dim::symbol(0);
    let list = &nodes.list;
    !inputs.is_empty()
        && nodes.symbols.len() == 1
        && ports.into_iter().all(|port| list[*port].dims.first() == Some(&row))
        && list.iter().all(|node| keeps_rows(node, list))
}

fn is_row(node: &Node) -> bool {
    node.dims.first() == Some(&Dim::symbol(0))
}

/// Whether a node with rows computes each row from the same rows of its operands, and a node
/// without rows has no operand with rows.
fn keeps_rows(node: &Node, list: &[Node]) -> bool {
    let inner_is_fixed = node.dims.iter().skip(1).all(|dim| dim.as_fixed().is_some());
    let operands = || node.operands.iter().map(|operand| &list[*operand as usize]);
    if !is_row(node) {
        return node.dims.iter().all(|dim| dim.as_fixed().is_some()) && !operands().any(is_row);
    }
    inner_is_fixed
        && match &node.kind {
            Kind::Input | Kind::Constant(_) | Kind::Reshape | Kind::Part(_) => true,
            // A stretched row must be the same for all rows, and an existing row axis must stay in
            // first position.
            Kind::Broadcast => operands().all(|operand| !is_row(operand) || operand.dims.len() == node.dims.len()),
            Kind::Permute(order) => order.first() == Some(&0),
            Kind::Slice { axis, .. } => *axis != 0,
            Kind::Op(op) => op_keeps_rows(op.form(), node, list),
        }
}

fn op_keeps_rows(op: &Op, node: &Node, list: &[Node]) -> bool {
    let Op::Compute(op) = op else { return false };
    let rank = node.dims.len();
    let operand = |place: usize| &list[node.operands[place] as usize];
    let aligned = |operand: &Node| !is_row(operand) || operand.dims.len() == rank;
    match op {
        ComputeOp::Map(_) => (0..node.operands.len()).all(|place| aligned(operand(place))),
        ComputeOp::Softmax(op) => op.axis != 0,
        ComputeOp::LayerNorm(op) => op.axes < rank && (1..node.operands.len()).all(|place| !is_row(operand(place))),
        ComputeOp::Reduce(op) => op.reduced().is_ok_and(|reduced| reduced.first() == Some(&false)),
        ComputeOp::Pool2d(_) => true,
        ComputeOp::Conv2d(_) => (1..node.operands.len()).all(|place| !is_row(operand(place))),
        ComputeOp::MatMul(op) => {
            let left = is_row(operand(0)) && operand(0).dims.len() == rank && (rank > 2 || !op.transpose_a);
            let right = !is_row(operand(1)) || rank > 2 && aligned(operand(1));
            left && right && (2..node.operands.len()).all(|place| aligned(operand(place)))
        }
        _ => false,
    }
}
