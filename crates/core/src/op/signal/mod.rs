//! The signal domain: sampled signals, modems and codes. One file per kind of op, each with the ops' structs, their builder methods, their
//! checks and their outputs' shapes; `list` connects them.
//!
//! * [`Fft`] and [`Ifft`]: spectra.
//! * [`Fir`], [`Iir`], [`Convolve`]: filters along the last axis. [`StartFilter`] and [`StreamFilter`]: the same over a stream in pieces.
//! * [`Modulate`] and [`Demodulate`]: from symbols to points of the plane and back.
//! * [`Crc`], [`RsEncode`] and [`RsDecode`], [`ErasureEncode`] and [`ErasureRebuild`], [`ConvolutionalEncode`] and [`Viterbi`]: codes.

use super::axis;

mod convolutional;
mod convolve;
mod crc;
mod erasure;
mod fft;
mod fir;
mod ifft;
mod iir;
mod modem;
mod reed_solomon;
mod stream;

pub use super::list::SignalOp;
pub use convolutional::{Convolutional, ConvolutionalEncode, Ending, FRAME_BITS_MAX, Viterbi};
pub use convolve::{Convolve, Extent};
pub use crc::{Checksum, Crc};
pub use erasure::{ErasureEncode, ErasureRebuild, SHARDS_MAX};
pub use fft::{Fft, half_spectrum_len};
pub use fir::{Fir, RATE_MAX, TAPS_MAX};
pub use ifft::Ifft;
pub use iir::{Biquad, Iir, SECTIONS_MAX};
pub use modem::{Constellation, Decision, Demodulate, Modulate};
pub use reed_solomon::{ReedSolomon, RsDecode, RsEncode};
pub use stream::{Filter, StartFilter, StreamFilter};

#[cfg(all(test, not(loom)))]
mod tests;
