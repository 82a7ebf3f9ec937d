//! The signal domain on the CPU: filters, modems and codes over slices, as a crate of its own, so that it compiles and is tested by itself.
//!
//! [`run`] takes an op to its end, with the backend's threads and memory. Below it:
//!
//! * [`window`], [`design`], [`equiripple`] and [`pulse`]: filters from what they shall do.
//! * [`fir`], [`spectral`] and [`rates`]: filters of finite response, by sums, by spectra, and with rates that change.
//! * [`iir`]: recursive filters. [`learn`]: filters that learn. [`bank`]: many channels at once. [`peaks`]: where something is.
//! * [`cosine`] and [`framing`]: spectra of other sorts. [`turning`] and [`track`]: frequencies moved, and loops. [`samples`]: what radios give.
//! * [`modem`] and [`waves`]: from symbols to points of the plane, or to waves, and back.
//! * [`crc`], [`hamming`], [`gf256`], [`reed_solomon`], [`erasure`], [`viterbi`], [`ldpc`]: codes. [`coded_stream`]: convolutional codes without an end. [`whiten`]: bits that look like noise.
//! * [`recording`], [`datagrams`] and [`synthetic`]: where signals come from and go to. [`packets`]: all of it together.
//! * [`level`] and [`threads`]: the vector instructions that kernels are compiled for, and work cut for threads of the caller's.
//!
//! Fourier transforms of lines themselves are in the CPU backend and in `panoply-fourier`.
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
pub use run::{Stream, TakeMemory, Workspace, run};
