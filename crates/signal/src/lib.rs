//! The signal domain on the CPU: filters, modems and codes over slices, as a crate of its own, so that it compiles and is tested by itself.
//!
//! [`run`] takes an op to its end, with the backend's threads and memory. Below it:
//!
//! * [`window`] and [`design`]: filters from what they shall do.
//! * [`fir`], [`spectral`] and [`rates`]: filters of finite response, by sums, by spectra, and with rates that change.
//! * [`iir`]: recursive filters.
//! * [`modem`]: from symbols to points of the plane and back.
//! * [`crc`], [`hamming`], [`gf256`], [`reed_solomon`], [`erasure`], [`viterbi`]: codes.
//! * [`level`] and [`threads`]: the vector instructions that kernels are compiled for, and threads of the caller's.
//!
//! Transforms themselves are in the CPU backend and in `panoply-fourier`.
#![allow(unsafe_code)] // Vector instructions.

mod byte_lanes;
pub mod crc;
pub mod design;
pub mod erasure;
pub mod fir;
pub mod gf256;
pub mod hamming;
pub mod iir;
mod lanes;
pub mod level;
pub mod modem;
pub mod rates;
pub mod reed_solomon;
mod run;
pub mod spectral;
pub mod threads;
pub mod viterbi;
pub mod window;

pub use level::Level;
pub use run::{Stream, TakeMemory, Workspace, run};
pub use threads::{OneThread, Threads};
