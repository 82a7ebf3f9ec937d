//! The signal domain on the CPU: filters, modems and codes over slices. It is a crate of its own,
//! so that it compiles and is tested by itself.
//!
//! [`run`] runs an op to its end, with the backend's threads and memory. Below it:
//!
//! * [`window`], [`design`], [`equiripple`] and [`pulse`]: design of filters from specifications.
//! * [`fir`], [`spectral`] and [`rates`]: filters of finite response, by direct sums, by spectra,
//!   and with changes of the sample rate.
//! * [`iir`]: recursive filters. [`learn`]: adaptive filters. [`bank`]: many channels at once.
//!   [`peaks`]: peak search.
//! * [`cosine`] and [`framing`]: cosine transforms and short-time spectra. [`turning`] and
//!   [`track`]: frequency shifts and tracking loops. [`samples`]: sample formats of radios.
//! * [`modem`] and [`waves`]: from symbols to points of the complex plane, or to waves, and back.
//! * [`crc`], [`hamming`], [`gf256`], [`reed_solomon`], [`erasure`], [`viterbi`], [`ldpc`]: codes.
//!   [`coded_stream`]: endless convolutional codes. [`whiten`]: scramblers.
//! * [`recording`], [`datagrams`] and [`synthetic`]: sources and sinks of signals. [`packets`]: a
//!   whole packet link made of these parts.
//! * [`level`] and [`threads`]: the vector instructions for which kernels are compiled, and work
//!   split for the caller's threads.
//!
//! Plain Fourier transforms are in the CPU backend and in `panoply-cpu-fourier`.
#![allow(unsafe_code)] // Vector instructions.

pub mod bank;
mod byte_lanes;
pub mod coded_stream;
pub mod cosine;
pub mod crc;
pub mod datagrams;
pub mod design;
mod elliptic;
pub mod equiripple;
pub mod erasure;
mod finite;
pub mod fir;
pub mod framing;
pub mod gf256;
pub mod hamming;
pub mod iir;
mod lanes;
pub mod ldpc;
pub mod learn;
pub mod level;
pub mod modem;
pub mod packets;
pub mod peaks;
pub mod pulse;
pub mod rates;
pub mod recording;
pub mod reed_solomon;
mod run;
pub mod samples;
pub mod spectral;
mod streaming;
pub mod synthetic;
pub mod threads;
pub mod track;
pub mod turning;
pub mod viterbi;
pub mod waves;
pub mod whiten;
pub mod window;

pub use level::Level;
pub use panoply_core::{OneThread, Threads};
pub use run::{Stream, TakeMemory, Workspace, run, run_op};
