//! Tools around the ops of the signal domain: files, sockets, synthetic signals, a packet modem,
//! and the design of filters. It needs no device.
//!
//! * [`window`], [`design`], [`equiripple`] and [`pulse`]: filters from specifications.
//! * [`recording`]: raw, WAV and SigMF files. [`datagrams`]: samples over UDP.
//! * [`synthetic`]: seeded noise, tones, and channels that impair a signal.
//! * [`packets`]: a packet link made of ops, wherever these run. [`hamming`]: a short code.
//!
//! The ops themselves run on devices; the CPU's kernels are in
//! `crates/backends/cpu/kernels/signal`.

pub mod datagrams;
pub mod design;
mod elliptic;
pub mod equiripple;
pub mod hamming;
pub mod packets;
pub mod pulse;
pub mod recording;
pub mod synthetic;
pub mod window;
