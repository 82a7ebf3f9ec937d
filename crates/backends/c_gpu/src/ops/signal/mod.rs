//! Sampled signals.

use panoply_core::op::signal::SignalOp;
use panoply_core::{Describe, Error, Op, Result, Support, Value};

use crate::context::Context;

mod fft;

/// Why an op of the domain is not run.
const NO_KERNEL: &str = "of the signal domain it runs transforms alone";

pub(super) fn run(op: &SignalOp, context: &mut Context) -> Result<Value> {
    match op {
        SignalOp::Fft(op) => fft::run(op, context),
        SignalOp::Ifft(op) => fft::run_inverse(op, context),
        other => Err(Error::Unsupported { op: Op::Signal(other.clone()).name(), reason: NO_KERNEL.to_owned() }),
    }
}

pub(super) fn supports(op: &SignalOp) -> Support {
    match op {
        SignalOp::Fft(op) => fft::supports(op.input.shape()[op.axis]),
        SignalOp::Ifft(op) => fft::supports(op.real_len.unwrap_or(op.input.shape()[op.axis])),
        _ => Support::No(NO_KERNEL.to_owned()),
    }
}
