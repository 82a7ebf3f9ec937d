//! The graph domain: runs a graph's plan step by step, each step with the whole team.

mod run_graph;

pub use run_graph::GRAPH_TARGET;

use panoply_core::op::graph::GraphOp;
use panoply_core::{DeviceInfo, Result, Support, Value};

use crate::context::Context;

/// Runs one op of the domain.
pub(super) fn run(op: &GraphOp, context: &mut Context) -> Result<Value> {
    match op {
        GraphOp::RunGraph(op) => run_graph::run(op, context),
    }
}

/// Whether a node runs an op of the domain.
pub(super) fn supports(op: &GraphOp, device: &DeviceInfo) -> Support {
    match op {
        GraphOp::RunGraph(op) => run_graph::supports(op, device),
    }
}
