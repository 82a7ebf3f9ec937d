//! The signal domain: sampled signals, modems and codes.

use panoply_core::op::signal::SignalOp;
use panoply_core::{Op, Result, Support, Value};

mod checks;
mod convolutional;
mod fft;
mod filters;
mod modem;
mod words;

/// The answer to an op of the domain.
pub(super) fn run(op: &SignalOp) -> Result<Value> {
    match op {
        SignalOp::ConvolutionalEncode(op) => convolutional::encode(op),
        SignalOp::Convolve(op) => filters::convolve(op),
        SignalOp::Crc(op) => checks::crc(op),
        SignalOp::Demodulate(op) => modem::demodulate(op),
        SignalOp::ErasureEncode(op) => words::erasure_encode(op),
        SignalOp::ErasureRebuild(op) => words::erasure_rebuild(op),
        SignalOp::Fft(op) => fft::forward(op),
        SignalOp::Fir(op) => filters::fir(op),
        SignalOp::Ifft(op) => fft::inverse(op),
        SignalOp::Iir(op) => filters::iir(op),
        SignalOp::Modulate(op) => modem::modulate(op),
        SignalOp::RsDecode(op) => words::rs_decode(op),
        SignalOp::RsEncode(op) => words::rs_encode(op),
        SignalOp::Viterbi(op) => convolutional::viterbi(op),
        // Streams live on a device.
        SignalOp::StartFilter(_) | SignalOp::StreamFilter(_) => {
            let op = Op::Signal(op.clone());
            Err(Support::unknown(&op).refusal(&op))
        }
    }
}
