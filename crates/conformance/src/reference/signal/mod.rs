//! The signal domain: sampled signals, modems and codes.

use panoply_core::op::signal::SignalOp;
use panoply_core::{Op, Result, Support, Value};

mod checks;
mod convolutional;
mod fft;
mod filters;
mod ldpc;
mod loops;
mod modem;
mod order;
mod planes;
mod spectra;
mod waves;
mod words;

/// The answer to an op of the domain.
pub(super) fn run(op: &SignalOp) -> Result<Value> {
    match op {
        SignalOp::Adapt(op) => loops::adapt(op),
        SignalOp::Channelize(op) => filters::channelize(op),
        SignalOp::ConvolutionalEncode(op) => convolutional::encode(op),
        SignalOp::Convolve(op) => filters::convolve(op),
        SignalOp::Convolve2(op) => planes::convolve2(op),
        SignalOp::Crc(op) => checks::crc(op),
        SignalOp::Dct(op) => spectra::dct(op),
        SignalOp::Demodulate(op) => modem::demodulate(op),
        SignalOp::DemodulateWave(op) => waves::demodulate(op),
        SignalOp::ErasureEncode(op) => words::erasure_encode(op),
        SignalOp::ErasureRebuild(op) => words::erasure_rebuild(op),
        SignalOp::Fft(op) => fft::forward(op),
        SignalOp::Fft2(op) => spectra::fft2(op),
        SignalOp::FindPeaks(op) => planes::find_peaks(op),
        SignalOp::Fir(op) => filters::fir(op),
        SignalOp::Hilbert(op) => spectra::hilbert(op),
        SignalOp::Ifft(op) => fft::inverse(op),
        SignalOp::Iir(op) => filters::iir(op),
        SignalOp::Interleave(op) => order::interleave(op),
        SignalOp::Istft(op) => spectra::istft(op),
        SignalOp::LdpcDecode(op) => ldpc::decode(op),
        SignalOp::LdpcEncode(op) => ldpc::encode(op),
        SignalOp::Mix(op) => loops::mix(op),
        SignalOp::Modulate(op) => modem::modulate(op),
        SignalOp::ModulateWave(op) => waves::modulate(op),
        SignalOp::Psd(op) => spectra::psd(op),
        SignalOp::ReadSamples(op) => waves::read_samples(op),
        SignalOp::RsDecode(op) => words::rs_decode(op),
        SignalOp::RsEncode(op) => words::rs_encode(op),
        SignalOp::Scramble(op) => order::scramble(op),
        SignalOp::Stft(op) => spectra::stft(op),
        SignalOp::Track(op) => loops::track(op),
        SignalOp::Viterbi(op) => convolutional::viterbi(op),
        // The state of a stream lives on a device, so the reference has no streams.
        SignalOp::StartFilter(_) | SignalOp::StreamFilter(_) => {
            let op = Op::Signal(op.clone());
            Err(Support::unknown(&op).refusal(&op))
        }
    }
}
