//! The signal domain: Fourier transforms are implemented here, all other ops in the crate
//! `panoply-cpu-signal`, with the node's threads and memory.

use panoply_core::op::signal::SignalOp;
use panoply_core::{DeviceId, Error, Result, Value};
use panoply_cpu_signal::{Level, Workspace};

use crate::context::Context;
use crate::fft::FftWorkspace;
use crate::simd::Simd;

mod fft;

/// The state that the domain keeps from one op to the next.
pub(crate) struct State {
    /// Plans and scratch of Fourier transforms.
    fft: FftWorkspace,
    /// Tables of codes, plans of filters, and streams.
    others: Workspace,
}

impl State {
    pub(crate) fn new(simd: Simd) -> State {
        State { fft: FftWorkspace::default(), others: Workspace::new(level(simd)) }
    }

    /// Streams start on this device.
    pub(crate) fn keep_streams(&mut self, device: DeviceId) {
        self.others.keep_streams(device);
    }

    /// Frees the streams that were dropped.
    pub(crate) fn collect(&mut self) {
        self.others.collect();
    }

    pub(crate) fn bytes(&self) -> usize {
        self.fft.bytes() + self.others.bytes()
    }
}

/// The level of the domain's kernels, at most `simd`.
fn level(simd: Simd) -> Level {
    match simd {
        Simd::Avx512 => Level::best(),
        Simd::Avx2 => Level::avx2().unwrap_or(Level::PLAIN),
        Simd::Scalar | Simd::Neon => Level::PLAIN,
    }
}

/// Runs one op of the domain.
pub(super) fn run(op: &SignalOp, context: &mut Context) -> Result<Value> {
    match op {
        SignalOp::Fft(op) => fft::run(op, context),
        SignalOp::Ifft(op) => fft::run_inverse(op, context),
        other => {
            let Context { signal, team, memory, .. } = context;
            let ran = panoply_cpu_signal::run_op(other, &mut signal.others, team, &mut |bytes| memory.take(bytes));
            let unknown = || Error::Unsupported { op: other.describe().name(), reason: "it has no kernel".to_owned() };
            ran.unwrap_or_else(|| Err(unknown()))
        }
    }
}
