//! The signal domain: transforms here, all else with the node's threads and memory in the crate `panoply-signal`.

use panoply_core::op::signal::SignalOp;
use panoply_core::{Op, Result, Support, Value};
use panoply_signal::Level;

use crate::context::Context;
use crate::simd::Simd;

mod fft;

/// The level of the domain's kernels, no higher than this one.
pub(crate) fn level(simd: Simd) -> Level {
    match simd {
        Simd::Avx512 => Level::best(),
        Simd::Avx2 => Level::avx2().unwrap_or(Level::PLAIN),
        Simd::Scalar | Simd::Neon => Level::PLAIN,
    }
}

/// Runs one op of the domain.
pub(super) fn run(op: &Op, context: &mut Context) -> Result<Value> {
    match op {
        Op::Signal(SignalOp::Fft(op)) => fft::run(op, context),
        Op::Signal(SignalOp::Ifft(op)) => fft::run_inverse(op, context),
        other => {
            let Context { signal, team, memory, .. } = context;
            let ran = panoply_signal::run(other, signal, team, &mut |bytes| memory.take(bytes));
            ran.unwrap_or_else(|| Err(Support::unknown(other).refusal(other)))
        }
    }
}
