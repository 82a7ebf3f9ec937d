//! The signal domain: sampled signals, modems and codes. One file per kind of op, each with the ops' structs, their builder methods, their
//! checks and their outputs' shapes; `list` connects them.
//!
//! * [`Fft`], [`Ifft`], [`Fft2`], [`Dct`] and [`Hilbert`]: spectra of lines and planes. [`Stft`], [`Istft`] and [`Psd`]: of pieces that overlap.
//! * [`Fir`], [`Iir`], [`Convolve`], [`Channelize`]: filters along the last axis. [`Convolve2`]: over planes. [`FindPeaks`]: where something is. [`Adapt`]: filters that learn. [`StartFilter`] and [`StreamFilter`]: over a stream
//!   in pieces.
//! * [`Mix`] and [`Track`]: from one frequency to another, and loops for strength, carrier and timing. [`ReadSamples`]: what radios give.
//! * [`Modulate`] and [`Demodulate`]: from symbols to points of the plane and back. [`ModulateWave`] and [`DemodulateWave`]: to waves.
//! * [`Crc`], [`RsEncode`] and [`RsDecode`], [`ErasureEncode`] and [`ErasureRebuild`], [`ConvolutionalEncode`] and [`Viterbi`],
//!   [`LdpcEncode`] and [`LdpcDecode`]: codes. [`Interleave`] and [`Scramble`]: what stands around them.

use super::axis;

mod adapt;
mod analytic;
mod channelize;
mod checks;
mod convolutional;
mod convolve;
mod convolve2;
mod crc;
mod dct;
mod erasure;
mod fft;
mod fft2;
mod fir;
mod ifft;
mod iir;
mod ldpc;
mod modem;
mod peaks;
mod reed_solomon;
mod samples;
mod stft;
mod stream;
mod track;
mod wave;
mod whiten;

pub use super::list::SignalOp;
pub use adapt::{Adapt, LEARNED_TAPS_MAX, Target};
pub use analytic::{Hilbert, Mix};
pub use channelize::Channelize;
pub use convolutional::{Convolutional, ConvolutionalEncode, Ending, FRAME_BITS_MAX, Puncture, Viterbi};
pub use convolve::{Convolve, Extent};
pub use convolve2::Convolve2;
pub use crc::{Checksum, Crc};
pub use dct::{Dct, DctKind};
pub use erasure::{ErasureEncode, ErasureRebuild, SHARDS_MAX};
pub use fft::{Fft, half_spectrum_len};
pub use fft2::Fft2;
pub use fir::{Fir, RATE_MAX, TAPS_MAX};
pub use ifft::Ifft;
pub use iir::{Biquad, Iir, SECTIONS_MAX};
pub use ldpc::{BaseGraph, ITERATIONS_MAX, Ldpc, LdpcDecode, LdpcEncode, TelemetryRate};
pub use modem::{Constellation, Decision, Demodulate, Modulate};
pub use peaks::{FindPeaks, PEAKS_MAX};
pub use reed_solomon::{ReedSolomon, RsDecode, RsEncode};
pub use samples::{ReadSamples, SampleFormat};
pub use stft::{FRAME_LEN_MAX, Frames, Istft, PowerScale, Psd, Stft};
pub use stream::{Filter, Learning, StartFilter, StreamFilter, TRACEBACK_STEPS_MAX, VITERBI_BLOCK_BITS};
pub use track::{SYMBOL_DRIFT_MAX, SYMBOL_SAMPLES_MAX, TimingDetector, Track, Tracker};
pub use wave::{DemodulateWave, ModulateWave, WAVE_LEN_MAX, Wave};
pub use whiten::{INTERLEAVED_MAX, Interleave, Interleaver, Scramble, Scrambler};

#[cfg(all(test, not(loom)))]
mod tests;
