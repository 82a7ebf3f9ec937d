//! The crypto domain on the CPU: the CPU backend's implementation, as a crate of its own, so that
//! it compiles and is tested separately.
//!
//! [`run`] runs an op to its end, with the backend's threads and memory. Below it, each over
//! slices:
//!
//! * [`aead`], [`cipher`], [`hash`], [`signature`]: AWS-LC's functions. Their expanded keys are
//!   wiped when dropped.
//! * `rsa`: RSA keys, with batches in lanes.
//! * [`lanes`]: several messages at a time in vector registers, if the CPU has them.
//! * [`deflate`], [`lz4`], [`pack`]: compression.
//! * [`keys`]: the expanded keys of ops.
//! * [`spread`]: distributes the messages of a batch over threads.
//!
//! The lanes are written by hand in this project and have not been audited by others.
//! `docs/crypto.md` describes their tests. [`State::new`]`(false)` is for users who must use
//! audited code only: AWS-LC then does everything that involves keys, and every hash.
//!
//! No memory access and no branch here depends on secret data, except in the libraries' own
//! compression.
#![allow(unsafe_code)] // Vector instructions, and libdeflate's functions that report how much they have read.

pub mod aead;
pub mod cipher;
pub mod deflate;
mod edwards;
pub mod hash;
pub mod keys;
pub mod lanes;
pub mod lz4;
pub mod pack;
mod rsa;
mod run;
pub mod signature;
mod signature_lanes;
pub mod spread;

pub use panoply_core::{OneThread, Threads};
pub use run::{State, TakeMemory, estimate_ns, is_in_place, run, run_in_place, signing_ns};

/// Why one message of an op failed, without details: see [`panoply_core::Error::Rejected`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It is not authentic, or its padding or compressed data is invalid.
    Rejected,
    /// The output would exceed its limit.
    Limit,
    /// With it the output of all messages would exceed their limit.
    TotalLimit,
    /// No memory for this many bytes.
    Memory(usize),
}

/// Fills `bytes` from AWS-LC's generator, which the system's randomness seeds. Returns false if
/// there is none. For threads that run ops: in a child that a signal handler has forked in the
/// middle of a draw, the library ends the process.
pub fn fill_random(bytes: &mut [u8]) -> bool {
    aws_lc_rs::rand::fill(bytes).is_ok()
}

/// Fills `bytes` with what the system draws at this call, and returns false if there is none. No
/// state of a library lies in between: it would be duplicated if a virtual machine is resumed from
/// a snapshot, and half changed if a signal handler forks in the middle of a draw.
pub fn fill_random_anew(bytes: &mut [u8]) -> bool {
    getrandom::fill(bytes).is_ok()
}
