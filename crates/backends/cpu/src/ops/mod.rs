//! From an op to a kernel: one folder per domain, one file per op. Each checks what only the data can tell, dispatches on the
//! element type, and writes into an output of the context.

use panoply_core::op::compute::ComputeOp;
use panoply_core::{DeviceInfo, Domain, Op, Result, Support, Value};

use crate::context::Context;

pub(crate) mod compute;
mod crypto;
mod graph;
pub(crate) mod signal;
pub(crate) mod together;

pub(crate) use graph::{Filters, Graphs, Matrix, Weights};

/// The domains of which every op is run, but for kernels without a closure.
pub(crate) const DOMAINS: &[Domain] = &[Domain::Compute, Domain::Crypto, Domain::Signal, Domain::Graph];

/// Whether an op is run on a node.
pub(crate) fn supports(op: &Op, device: &DeviceInfo) -> Support {
    match op {
        Op::Graph(op) => graph::supports(op, device),
        op if can_run(op, device) => Support::Yes,
        Op::Compute(ComputeOp::Kernel(op)) => Support::No(op.lacks("closure", "on_cpu(closure)")),
        op => Support::unknown(op),
    }
}

/// The same, without a reason.
pub(crate) fn can_run(op: &Op, device: &DeviceInfo) -> bool {
    match op {
        Op::Graph(op) => graph::supports(op, device).is_yes(),
        Op::Compute(ComputeOp::Kernel(op)) => op.program.runs_on_cpu(),
        op => DOMAINS.contains(&op.domain()),
    }
}

/// Runs one op to its end on the calling thread and the context's team.
pub(crate) fn run(op: &Op, context: &mut Context) -> Result<Value> {
    match op {
        Op::Compute(op) => compute::run(op, context),
        Op::Crypto(op) => crypto::run(op, context),
        Op::Signal(_) => signal::run(op, context),
        Op::Graph(op) => graph::run(op, context),
        op => Err(Support::unknown(op).refusal(op)),
    }
}
