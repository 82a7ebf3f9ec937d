//! Sampled signals: Fourier transforms.

use panoply_core::op::signal::SignalOp;
use panoply_core::{Error, Result, Value};

use crate::context::Context;
use crate::driver::Driver;
use crate::engine::Answer;
use crate::profile::Profile;

mod fft;

const NO_KERNEL: &str = "it has no kernel in WGSL";

/// Checks that an adapter runs an op.
pub(super) fn support(profile: &Profile, op: &SignalOp) -> Result<(), String> {
    match op {
        SignalOp::Fft(op) => fft::support(profile, op),
        SignalOp::Ifft(op) => fft::inverse_support(profile, op),
        SignalOp::Fft2(op) => fft::planes_support(profile, op),
        _ => Err(NO_KERNEL.to_owned()),
    }
}

/// Records an op.
pub(super) fn run<D: Driver>(op: &SignalOp, context: &mut Context<D>) -> Result<Answer> {
    let unsupported = |reason| Error::Unsupported { op: op.describe().name(), reason };
    support(&context.profile, op).map_err(unsupported)?;
    let tensor = match op {
        SignalOp::Fft(op) => fft::run(op, context)?,
        SignalOp::Ifft(op) => fft::run_inverse(op, context)?,
        SignalOp::Fft2(op) => fft::run_planes(op, context)?,
        _ => return Err(unsupported(NO_KERNEL.to_owned())),
    };
    Ok(Answer::Value(Value::Tensor(tensor)))
}
