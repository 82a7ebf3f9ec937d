//! Takes the place of `signal` in a build without the signal domain.

use panoply_core::op::signal::SignalOp;
use panoply_core::{Op, Result, Support, Value};

use crate::context::Context;

/// Refuses the op.
pub(super) fn run(op: &SignalOp, _: &mut Context) -> Result<Value> {
    let op = Op::Signal(op.clone());
    Err(Support::unknown(&op).refusal(&op))
}
