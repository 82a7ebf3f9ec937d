//! The signal domain: sampled signals, modems and codes. Each file holds one kind of op: the ops'
//! structs, builder methods, checks and output shapes. `list` connects the ops.
//!
//! * [`Fft`], [`Ifft`], [`Fft2`], [`Dct`] and [`Hilbert`]: spectra of lines and planes. [`Stft`],
//!   [`Istft`] and [`Psd`]: spectra of overlapping frames.
//! * [`Fir`], [`Iir`], [`Convolve`], [`Channelize`]: filters along the last axis. [`Convolve2`]:
//!   filters over planes. [`FindPeaks`]: the positions of the strongest elements. [`Adapt`]:
//!   adaptive filters. [`StartFilter`] and [`StreamFilter`]: filters over a stream in pieces.
//! * [`Mix`]: frequency shifts, by an [`oscillator`]. [`Track`]: loops for gain, carrier and
//!   timing. [`ReadSamples`]: the sample formats of radios.
//! * [`Modulate`] and [`Demodulate`]: between symbols and points of the complex plane.
//!   [`ModulateWave`] and [`DemodulateWave`]: between messages and waves.
//! * [`Crc`], [`RsEncode`] and [`RsDecode`], [`ErasureEncode`] and [`ErasureRebuild`],
//!   [`ConvolutionalEncode`] and [`Viterbi`], [`LdpcEncode`] and [`LdpcDecode`]: codes.
//!   [`Interleave`] and [`Scramble`]: the reordering and whitening around codes.

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
pub mod oscillator;
mod peaks;
mod reed_solomon;
mod samples;
mod stft;
mod stream;
mod track;
mod wave;
mod whiten;

pub use super::list::SignalOp;
pub use adapt::{Adapt, AdaptTarget, LEARNED_TAPS_MAX};
pub use analytic::{Hilbert, Mix};
pub use channelize::Channelize;
pub use convolutional::{
    Convolutional, ConvolutionalEncode, EXACT_TAIL_BITS_MAX, Ending, FRAME_BITS_MAX, LOGARITHM_MAX, LOGARITHM_STEPS,
    Puncture, Viterbi,
};
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
