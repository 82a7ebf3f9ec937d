//! Writes a graph as text.

use std::fmt::Write;

use panoply_core::expr::Node as ExprNode;
use panoply_core::graph::{Dim, Graph, Kind};
use panoply_core::op::compute::{ComputeOp, Map, RowMap};
use panoply_core::{Error, Op, Result};

use super::fields::{Field, Words};
use super::ops::arguments_of;
use super::values;

/// A graph as text, for [`parse`](super::parse). Fails, naming the node, for ops that the text
/// format cannot express.
pub fn write(graph: &Graph) -> Result<String> {
    let mut text = String::new();
    // Writing into a string does not fail.
    let _ = writeln!(text, "graph {}", graph.name());
    for symbol in graph.symbols() {
        let _ = writeln!(text, "symbol {symbol}");
    }
    for (index, node) in graph.nodes().iter().enumerate() {
        let name = graph.node_name(index);
        let dims = dims(graph, &node.dims);
        match &node.kind {
            Kind::Input => {
                let _ = writeln!(text, "input {name} {} {dims}", node.dtype);
            }
            Kind::Constant(tensor) => {
                let _ = write!(text, "const {name} {} {dims} = ", node.dtype);
                values::write(&mut text, tensor);
                text.push('\n');
            }
            kind => {
                let operands: Vec<String> =
                    node.operands.iter().map(|operand| graph.node_name(*operand as usize)).collect();
                let call = call(kind, &operands.join(", "), &dims);
                let unknown = || {
                    let reason = reason_without_words(kind).to_owned();
                    let cause = Box::new(Error::Unsupported { op: kind.name(), reason });
                    Error::Node { node: graph.node_text(index), cause }
                };
                let _ = writeln!(text, "{name} = {}", call.ok_or_else(unknown)?);
            }
        }
    }
    for (name, node) in graph.outputs() {
        let _ = writeln!(text, "output {name} = {}", graph.node_name(*node));
    }
    Ok(text)
}

/// Why a node cannot be written.
fn reason_without_words(kind: &Kind) -> &'static str {
    match kind {
        Kind::Op(op) if matches!(*op.op(), Op::Compute(ComputeOp::Kernel(_))) => {
            "a kernel is code that its program trusts, and may be a closure, while a text may be anyone's; add the \
             kernel in the program, with `GraphBuilder::op`"
        }
        _ => "the text of graphs has no words for it",
    }
}

fn call(kind: &Kind, operands: &str, dims: &str) -> Option<String> {
    Some(match kind {
        Kind::Reshape | Kind::Broadcast => format!("{}({operands}, to={dims})", kind.name()),
        Kind::Permute(order) => format!("permute({operands}, order={order:?})"),
        Kind::Slice { axis, start, end, step } => {
            format!("slice({operands}, axis={axis}, start={start}, end={end}, step={step})")
        }
        Kind::Op(op) => match &*op.op() {
            Op::Compute(ComputeOp::Map(map)) => map_call(map, operands)?,
            Op::Compute(ComputeOp::RowMap(map)) => row_map_call(map, operands)?,
            op => format!("{}({operands}{})", kind.name(), arguments_of(op)?),
        },
        Kind::Part(port) => format!("part({operands}, port={port})"),
        Kind::Input | Kind::Constant(_) => return None,
    })
}

/// The function's own name if the map is a single function of its inputs in order, else its
/// expression.
fn map_call(map: &Map, operands: &str) -> Option<String> {
    let program = map.program().ok()?;
    let count = map.inputs().len();
    Some(match program.nodes() {
        [ExprNode::Input(0), ExprNode::Unary(op, 0)] if count == 1 => format!("{}({operands})", op.name()),
        [ExprNode::Input(0), ExprNode::Cast(dtype, 0)] if count == 1 => format!("cast({operands}, to={dtype})"),
        [ExprNode::Input(0), ExprNode::Input(1), ExprNode::Binary(op, 0, 1)] if count == 2 => {
            format!("{}({operands})", op.name())
        }
        _ => format!("map({operands}) {{ {program} }}"),
    })
}

/// The row function, then the expressions before and after it.
fn row_map_call(map: &RowMap, operands: &str) -> Option<String> {
    let (before, after) = (map.before_program().ok()?, map.after_program().ok()?);
    let mut words = Words::default();
    map.function.say("by", &mut words);
    Some(format!("row_map({operands}, inputs={}{}) {{ {before} }} {{ {after} }}", map.inputs().len(), words.0))
}

fn dims(graph: &Graph, dims: &[Dim]) -> String {
    let dims: Vec<String> = dims.iter().map(|dim| dim.text(graph.symbols()).to_string()).collect();
    format!("[{}]", dims.join(", "))
}
