//! From a graph to text.

use std::fmt::Write;

use panoply_core::expr::Node as ExprNode;
use panoply_core::graph::{Dim, Graph, Kind};
use panoply_core::op::compute::{ComputeOp, Map};
use panoply_core::{Error, Op, Result};

use super::ops::arguments_of;
use super::values;

/// A graph as text, which [`parse`](super::parse) reads. Fails, naming the node, for ops that the text has no words for.
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
                    let reason = "the text of graphs has no words for it".to_owned();
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

fn call(kind: &Kind, operands: &str, dims: &str) -> Option<String> {
    Some(match kind {
        Kind::Reshape | Kind::Broadcast => format!("{}({operands}, to={dims})", kind.name()),
        Kind::Permute(order) => format!("permute({operands}, order={order:?})"),
        Kind::Slice { axis, start, end, step } => {
            format!("slice({operands}, axis={axis}, start={start}, end={end}, step={step})")
        }
        Kind::Op(op) => match &**op {
            Op::Compute(ComputeOp::Map(map)) => map_call(map, operands)?,
            op => format!("{}({operands}{})", kind.name(), arguments_of(op)?),
        },
        Kind::Input | Kind::Constant(_) | Kind::Part(_) => return None,
    })
}

/// The function's own name where the map is one function of its inputs in order, else its expression.
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

fn dims(graph: &Graph, dims: &[Dim]) -> String {
    let dims: Vec<String> = dims.iter().map(|dim| dim.text(graph.symbols()).to_string()).collect();
    format!("[{}]", dims.join(", "))
}
