//! Ops on whole graphs, which run as one.

mod run_graph;

use panoply_core::op::graph::GraphOp;
use panoply_core::{DeviceInfo, Result, Support};

use crate::context::Context;
use crate::driver::Driver;
use crate::engine::Answer;
use crate::profile::Profile;

/// Checks that an adapter runs an op.
pub(super) fn support(profile: &Profile, op: &GraphOp) -> Result<(), String> {
    match op {
        GraphOp::RunGraph(op) => run_graph::support(profile, op),
    }
}

/// Whether a device has the memory that an op needs.
pub(super) fn fits(profile: &Profile, op: &GraphOp, device: &DeviceInfo) -> Support {
    match op {
        GraphOp::RunGraph(op) => run_graph::fits(profile, op, device),
    }
}

/// Records an op.
pub(super) fn run<D: Driver>(op: &GraphOp, context: &mut Context<D>) -> Result<Answer> {
    match op {
        GraphOp::RunGraph(op) => run_graph::run(op, context),
    }
}
