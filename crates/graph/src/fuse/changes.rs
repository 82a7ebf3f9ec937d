//! The changes that a map applies to one of its inputs, in order: a factor, an addend, a function,
//! another element type.

use panoply_core::expr::{BinaryOp, Node, Program, UnaryOp};
use panoply_core::graph::{Graph, Origin, slot_of};
use panoply_core::op::compute::{Activation, Map};
use panoply_core::{DType, Tensor, bf16, f16};

use crate::views::is_same;
use crate::work::Rewrite;

/// One change that a map applies to a result.
pub(super) enum Change<'a> {
    Scale(f64),
    Add(&'a Tensor),
    /// Adds a tensor times a number.
    AddTimes(&'a Tensor, f64),
    Activate(Activation),
    Cast(DType),
}

impl Change<'_> {
    /// The tensor that is added, if any.
    pub(super) fn addend(&self) -> Option<&Tensor> {
        match self {
            Change::Add(addend) | Change::AddTimes(addend, _) => Some(addend),
            Change::Scale(_) | Change::Activate(_) | Change::Cast(_) => None,
        }
    }
}

/// The changes that a map applies to its input `result`, in order. `None` if the map is anything
/// else.
pub(super) fn changes<'a>(work: &Rewrite, graph: &Graph, map: &'a Map, result: &Tensor) -> Option<Vec<Change<'a>>> {
    let program = map.program().ok()?;
    let inputs: Vec<&Tensor> = map.inputs().collect();
    let is_result = |node: &Node| matches!(node, Node::Input(index) if is_same(inputs[*index as usize], result));
    let nodes = program.nodes();
    let number_of = |node: Node| match node {
        Node::Const(constant) => Some(constant.value()),
        Node::Input(index) => number(work, graph, inputs[index as usize]),
        _ => None,
    };
    let tensor_times = |tensor: Node, factor: Node| {
        let Node::Input(index) = tensor else { return None };
        Some((inputs[index as usize], number_of(factor)?))
    };
    let times = |a: u32, b: u32| {
        let (a, b) = (nodes[a as usize], nodes[b as usize]);
        tensor_times(a, b).or_else(|| tensor_times(b, a))
    };
    let mut current = nodes.iter().position(is_result)? as u32;
    let mut changes = Vec::new();
    while current as usize + 1 < nodes.len() {
        let reader = only_reader(program, current)?;
        changes.push(match nodes[reader as usize] {
            Node::Unary(op, _) => Change::Activate(activation(op)?),
            Node::Cast(dtype, _) => Change::Cast(dtype),
            Node::Binary(op, a, b) if a != b => {
                let other = nodes[if a == current { b } else { a } as usize];
                match (op, other, number_of(other)) {
                    (BinaryOp::Mul, _, Some(factor)) => Change::Scale(factor),
                    (BinaryOp::Div, _, Some(divisor)) if a == current && divisor != 0.0 => Change::Scale(1.0 / divisor),
                    (BinaryOp::Add, Node::Input(index), _) => Change::Add(inputs[index as usize]),
                    (BinaryOp::Add, Node::Binary(BinaryOp::Mul, a, b), _) => {
                        let (addend, factor) = times(a, b)?;
                        Change::AddTimes(addend, factor)
                    }
                    _ => return None,
                }
            }
            _ => return None,
        });
        current = reader;
    }
    Some(changes)
}

fn only_reader(program: &Program, node: u32) -> Option<u32> {
    let mut readers = (0..).zip(program.nodes()).filter(|(_, reader)| reader.operands().any(|operand| operand == node));
    let first = readers.next()?.0;
    readers.next().is_none().then_some(first)
}

/// The value of a constant tensor of one element.
fn number(work: &Rewrite, graph: &Graph, tensor: &Tensor) -> Option<f64> {
    let slot = &work.slots[slot_of(tensor)?];
    let Origin::Constant(node) = slot.origin else { return None };
    let constant = graph.nodes()[node].constant().filter(|constant| constant.elements() == 1)?;
    Some(match constant.dtype() {
        DType::F32 => f64::from(constant.as_slice::<f32>().ok()?[0]),
        DType::F16 => constant.as_slice::<f16>().ok()?[0].to_f64(),
        DType::BF16 => constant.as_slice::<bf16>().ok()?[0].to_f64(),
        DType::F64 => constant.as_slice::<f64>().ok()?[0],
        _ => return None,
    })
}

fn activation(op: UnaryOp) -> Option<Activation> {
    Some(match op {
        UnaryOp::Relu => Activation::Relu,
        UnaryOp::Gelu => Activation::Gelu,
        UnaryOp::Silu => Activation::Silu,
        UnaryOp::Sigmoid => Activation::Sigmoid,
        UnaryOp::Tanh => Activation::Tanh,
        _ => return None,
    })
}
