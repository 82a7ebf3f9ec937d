//! The signal domain: Fourier transforms are implemented here, all other ops in the crate
//! `panoply-cpu-signal`, with the node's threads and memory.

use panoply_core::op::signal::SignalOp;
use panoply_core::{DeviceId, Error, Result, Value};
use panoply_cpu_signal::{Level, Workspace};

use crate::context::Context;
use crate::simd::Simd;
use crate::states::OpState;

mod fft;

impl OpState for Workspace {
    /// Frees the streams that were dropped.
    fn collect(&mut self) {
        Workspace::collect(self);
    }

    fn bytes(&self) -> usize {
        Workspace::bytes(self)
    }
}

/// An empty workspace. Streams start on `device`, if it is given.
fn workspace(simd: Simd, device: Option<DeviceId>) -> Workspace {
    let mut workspace = Workspace::new(level(simd));
    device.into_iter().for_each(|device| workspace.keep_streams(device));
    workspace
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
            let Context { states, team, memory, simd, own_device, .. } = context;
            let workspace = states.get_or(|| workspace(*simd, *own_device));
            let ran = panoply_cpu_signal::run_op(other, workspace, team, &mut |bytes| memory.take(bytes));
            let unknown = || Error::Unsupported { op: other.describe().name(), reason: "it has no kernel".to_owned() };
            ran.unwrap_or_else(|| Err(unknown()))
        }
    }
}
