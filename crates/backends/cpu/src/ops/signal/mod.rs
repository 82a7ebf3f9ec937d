//! The signal domain: sampled signals.

use panoply_core::op::signal::SignalOp;
use panoply_core::{Result, Value};

use crate::context::Context;

mod fft;

/// Runs one op of the domain.
pub(super) fn run(op: &SignalOp, context: &mut Context) -> Result<Value> {
    match op {
        SignalOp::Fft(op) => fft::run(op, context),
        SignalOp::Ifft(op) => fft::run_inverse(op, context),
    }
}
