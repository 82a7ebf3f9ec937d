//! The graph domain: many ops that run as one.

mod recording;
mod replay;
mod run_graph;

pub use run_graph::GRAPH_TARGET;

use panoply_core::op::graph::GraphOp;
use panoply_core::{DeviceInfo, Result, Support, Value};

use crate::context::Context;

pub(super) fn run(op: &GraphOp, context: &mut Context) -> Result<Value> {
    match op {
        GraphOp::RunGraph(op) => run_graph::run(op, context),
    }
}

pub(super) fn supports(op: &GraphOp) -> Support {
    match op {
        GraphOp::RunGraph(op) => run_graph::supports(op),
    }
}

pub(super) fn fits(op: &GraphOp, device: &DeviceInfo) -> Support {
    match op {
        GraphOp::RunGraph(op) => run_graph::fits(op, device),
    }
}
