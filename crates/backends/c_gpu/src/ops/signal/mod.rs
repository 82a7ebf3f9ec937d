//! Sampled signals, modems and codes.

use panoply_core::op::signal::SignalOp;
use panoply_core::{Error, Result, Support, Value};

use crate::context::Context;

mod checks;
mod codes;
mod dct;
mod fft;
mod filters;
mod iir;
mod ldpc;
mod modem;
mod peaks;
mod planes;
mod spectra;

/// The reason for refusing an op of the domain.
const NO_KERNEL: &str = "it has no kernel for this op of the signal domain";

pub(super) fn run(op: &SignalOp, context: &mut Context) -> Result<Value> {
    match op {
        SignalOp::Fft(op) => fft::run(op, context),
        SignalOp::Ifft(op) => fft::run_inverse(op, context),
        SignalOp::Fft2(op) => spectra::fft2(op, context),
        SignalOp::Dct(op) => dct::run(op, context),
        SignalOp::Stft(op) => spectra::stft(op, context),
        SignalOp::Istft(op) => spectra::istft(op, context),
        SignalOp::Psd(op) => spectra::psd(op, context),
        SignalOp::Fir(op) => filters::fir(op, context),
        SignalOp::Convolve(op) => filters::convolve(op, context),
        SignalOp::Convolve2(op) => planes::convolve2(op, context),
        SignalOp::FindPeaks(op) => peaks::run(op, context),
        SignalOp::Iir(op) => iir::run(op, context),
        SignalOp::Modulate(op) => modem::modulate(op, context),
        SignalOp::Demodulate(op) => modem::demodulate(op, context),
        SignalOp::Crc(op) => checks::run(op, context),
        SignalOp::RsEncode(op) => codes::rs_encode(op, context),
        SignalOp::ErasureEncode(op) => codes::erasure_encode(op, context),
        SignalOp::ErasureRebuild(op) => codes::erasure_rebuild(op, context),
        SignalOp::Viterbi(op) => codes::viterbi(op, context),
        SignalOp::LdpcDecode(op) => ldpc::decode(op, context),
        other => Err(Error::Unsupported { op: other.describe().name(), reason: NO_KERNEL.to_owned() }),
    }
}

pub(super) fn supports(op: &SignalOp) -> Support {
    match op {
        SignalOp::Fft(op) => fft::supports(op.input.shape()[op.axis]),
        SignalOp::Ifft(op) => fft::supports(op.real_len.unwrap_or(op.input.shape()[op.axis])),
        SignalOp::Dct(op) => dct::supports(op),
        SignalOp::Fft2(op) => fft::supports(op.input.shape().iter().rev().take(2).copied().max().unwrap_or(0)),
        SignalOp::Iir(op) => iir::supports(op),
        SignalOp::Convolve2(op) => planes::supports(op),
        SignalOp::Stft(_)
        | SignalOp::Istft(_)
        | SignalOp::Psd(_)
        | SignalOp::FindPeaks(_)
        | SignalOp::Fir(_)
        | SignalOp::Convolve(_)
        | SignalOp::Modulate(_)
        | SignalOp::Demodulate(_)
        | SignalOp::Crc(_)
        | SignalOp::LdpcDecode(_)
        | SignalOp::Viterbi(_)
        | SignalOp::RsEncode(_)
        | SignalOp::ErasureEncode(_)
        | SignalOp::ErasureRebuild(_) => Support::Yes,
        _ => Support::No(NO_KERNEL.to_owned()),
    }
}
