//! Ops over whole signals: one file for each kind of op.

use panoply_core::op::signal::SignalOp;
use panoply_core::{Result, Threads, Value};

use super::output::TakeMemory;
use super::space::Space;
use super::{codes, coding, filtering, loops, modems, planes, spectra, waves};

/// Runs an op to its end. `None` for Fourier transforms and for streams.
pub(super) fn run_whole(
    op: &SignalOp,
    space: &mut Space,
    threads: &dyn Threads,
    take: TakeMemory<'_>,
) -> Option<Result<Value>> {
    Some(match op {
        SignalOp::Fft(_) | SignalOp::Ifft(_) | SignalOp::StartFilter(_) | SignalOp::StreamFilter(_) => return None,
        SignalOp::Fir(op) => filtering::fir(op, space, threads, take),
        SignalOp::Iir(op) => filtering::iir(op, space, threads, take),
        SignalOp::Convolve(op) => filtering::convolve(op, space, threads, take),
        SignalOp::Convolve2(op) => planes::convolve2(op, space, threads, take),
        SignalOp::FindPeaks(op) => planes::find_peaks(op, threads, take),
        SignalOp::Adapt(op) => loops::adapt(op, threads, take),
        SignalOp::Channelize(op) => loops::channelize(op, space, threads, take),
        SignalOp::Mix(op) => loops::mix(op, threads, take),
        SignalOp::Track(op) => loops::track(op, threads, take),
        SignalOp::Dct(op) => spectra::dct(op, space, threads, take),
        SignalOp::Fft2(op) => spectra::fft2(op, space, threads, take),
        SignalOp::Hilbert(op) => spectra::hilbert(op, space, threads, take),
        SignalOp::Stft(op) => spectra::stft(op, space, threads, take),
        SignalOp::Istft(op) => spectra::istft(op, space, threads, take),
        SignalOp::Psd(op) => spectra::psd(op, space, threads, take),
        SignalOp::ModulateWave(op) => waves::modulate(op, space, threads, take),
        SignalOp::DemodulateWave(op) => waves::demodulate(op, space, threads, take),
        SignalOp::ReadSamples(op) => waves::read_samples(op, threads, take),
        SignalOp::LdpcEncode(op) => coding::ldpc_encode(op, space, threads, take),
        SignalOp::LdpcDecode(op) => coding::ldpc_decode(op, space, threads, take),
        SignalOp::Interleave(op) => coding::interleave(op, threads, take),
        SignalOp::Scramble(op) => coding::scramble(op, threads, take),
        SignalOp::Crc(op) => codes::crc(op, threads, take),
        SignalOp::RsEncode(op) => codes::rs_encode(op, space, threads, take),
        SignalOp::RsDecode(op) => codes::rs_decode(op, space, threads, take),
        SignalOp::ErasureEncode(op) => codes::erasure_encode(op, space, threads, take),
        SignalOp::ErasureRebuild(op) => codes::erasure_rebuild(op, space, threads, take),
        SignalOp::ConvolutionalEncode(op) => codes::convolutional_encode(op, space, threads, take),
        SignalOp::Viterbi(op) => codes::viterbi(op, space, threads, take),
        SignalOp::Modulate(op) => modems::modulate(op, space, threads, take),
        SignalOp::Demodulate(op) => modems::demodulate(op, space, threads, take),
    })
}
