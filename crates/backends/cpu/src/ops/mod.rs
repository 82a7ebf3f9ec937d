//! Maps ops to kernels: one folder per domain, one file per op. Each file checks the conditions
//! that depend on the data, dispatches on the element type, and writes into an output of the
//! context.

use panoply_core::op::HostStates;
use panoply_core::op::compute::ComputeOp;
use panoply_core::{DeviceInfo, Domain, Op, Result, Support, Value};

use crate::context::Context;
use crate::states::OpState;

pub(crate) mod compute;
mod crypto;
pub(crate) mod graph;
#[cfg(feature = "signal")]
mod signal;
#[cfg(not(feature = "signal"))]
#[path = "no_signal.rs"]
mod signal;
pub(crate) mod together;

// All ops of these domains are supported, except kernels without a closure.
panoply_core::for_each_domain!(panoply_core::domain_modules);

/// The state of ops from outside the list.
impl OpState for HostStates {
    fn collect(&mut self) {
        HostStates::collect(self);
    }
}

/// The domains that a node runs. Ops outside the list run if they bring their code.
pub(crate) fn domains() -> Vec<Domain> {
    DOMAINS.iter().copied().filter(|domain| is_built(*domain)).chain([Domain::Extension]).collect()
}

/// Whether this build has the kernels of a domain.
fn is_built(domain: Domain) -> bool {
    cfg!(feature = "signal") || domain != Domain::Signal
}

/// Whether a node supports an op, with a reason if not.
pub(crate) fn supports(op: &Op, device: &DeviceInfo) -> Support {
    match op {
        Op::Graph(op) => graph::supports(op, device),
        op if can_run(op, device) => Support::Yes,
        Op::Compute(ComputeOp::Kernel(op)) => Support::No(op.lacks("closure", "on_cpu(closure)")),
        op => Support::unknown(op),
    }
}

/// Whether a node supports an op.
pub(crate) fn can_run(op: &Op, device: &DeviceInfo) -> bool {
    match op {
        Op::Graph(op) => graph::supports(op, device).is_yes(),
        Op::Compute(ComputeOp::Kernel(op)) => op.program.runs_on_cpu(),
        Op::Extension(op) => op.runs_on_host(),
        op => DOMAINS.contains(&op.domain()) && is_built(op.domain()),
    }
}

/// Runs one op to completion on the calling thread and the context's team.
pub(crate) fn run(op: &Op, context: &mut Context) -> Result<Value> {
    // If a graph wants the output's axes in another order, the op itself handles the empty output.
    if context.order.is_none()
        && let Some(nothing) = op.empty_answer()
    {
        return Ok(nothing);
    }
    by_domain!(op => run(op, context), run_own_code(op, context))
}

/// Runs an op from outside the list by its own code.
fn run_own_code(op: &Op, context: &mut Context) -> Result<Value> {
    let unknown = || Support::unknown(op).refusal(op);
    let (Op::Extension(extension), Some(device)) = (op, context.own_device) else { return Err(unknown()) };
    let states = context.states.get_or(|| HostStates::new(device));
    extension.run_on_host(&context.team, states).unwrap_or_else(|| Err(unknown()))
}
