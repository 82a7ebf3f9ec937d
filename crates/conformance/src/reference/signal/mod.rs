//! The signal domain: sampled signals.

use panoply_core::op::signal::SignalOp;
use panoply_core::{Result, Value};

mod fft;

/// The answer to an op of the domain.
pub(super) fn run(op: &SignalOp) -> Result<Value> {
    match op {
        SignalOp::Fft(op) => fft::forward(op),
        SignalOp::Ifft(op) => fft::inverse(op),
    }
}
