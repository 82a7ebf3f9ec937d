//! Sampled signals.

use panoply_core::op::signal::SignalOp;
use panoply_core::{Result, Support, Value};

use crate::context::Context;

mod fft;

pub(super) fn run(op: &SignalOp, context: &mut Context) -> Result<Value> {
    match op {
        SignalOp::Fft(op) => fft::run(op, context),
        SignalOp::Ifft(op) => fft::run_inverse(op, context),
    }
}

pub(super) fn supports(op: &SignalOp) -> Support {
    match op {
        SignalOp::Fft(op) => fft::supports(op.input.shape()[op.axis]),
        SignalOp::Ifft(op) => fft::supports(op.real_len.unwrap_or(op.input.shape()[op.axis])),
    }
}
