//! The graph domain: a graph has the meaning of its ops, run one after the other.

use panoply_core::op::graph::{GraphOp, RunGraph};
use panoply_core::{Part, Result, Value};

/// The answer to an op of the domain.
pub(super) fn run(op: &GraphOp) -> Result<Value> {
    match op {
        GraphOp::RunGraph(op) => run_graph(op),
    }
}

fn run_graph(op: &RunGraph) -> Result<Value> {
    let outputs = op.instance()?.run(op.graph(), op.inputs(), &mut super::reference)?;
    Ok(Value::List(outputs.into_iter().map(Part::Tensor).collect()))
}
