//! The signal domain on the CPU: filters, modems and codes over slices. It is a crate of its own,
//! so that it compiles and is tested by itself.
//!
//! [`run`] runs an op to its end, with the backend's threads and memory; [`Here`] runs it on the
//! calling thread. Below them:
//!
//! * [`fir`], [`spectral`] and [`rates`]: filters of finite response, by direct sums, by spectra,
//!   and with changes of the sample rate.
//! * [`iir`]: recursive filters. [`learn`]: adaptive filters. [`bank`]: many channels at once.
//!   [`peaks`]: peak search.
//! * [`cosine`] and [`framing`]: cosine transforms and short-time spectra. [`track`]: tracking
//!   loops.
//! * [`modem`] and [`waves`]: from symbols to points of the complex plane, or to waves, and back.
//! * [`crc`], [`gf256`], [`reed_solomon`], [`erasure`], [`viterbi`], [`ldpc`]: codes.
//!   [`coded_stream`]: endless convolutional codes. [`whiten`]: scramblers.
//! * [`level`] and [`threads`]: the vector instructions for which kernels are compiled, and work
//!   split for the caller's threads.
//!
//! Plain Fourier transforms are in the CPU backend and in `panoply-cpu-fourier`; recordings, filter
//! design and synthetic signals are in `panoply-radio`.
#![allow(unsafe_code)] // Vector instructions.

pub mod bank;
mod byte_lanes;
pub mod coded_stream;
pub mod cosine;
pub mod crc;
pub mod erasure;
mod finite;
pub mod fir;
pub mod framing;
pub mod gf256;
mod here;
pub mod iir;
mod lanes;
pub mod ldpc;
pub mod learn;
pub mod level;
pub mod modem;
pub mod peaks;
pub mod rates;
pub mod reed_solomon;
mod run;
pub mod spectral;
mod streaming;
pub mod threads;
pub mod track;
pub mod viterbi;
pub mod waves;
pub mod whiten;

pub use here::Here;
pub use level::Level;
pub use panoply_core::{OneThread, Threads};
pub use run::{Stream, TakeMemory, Workspace, run, run_op};
