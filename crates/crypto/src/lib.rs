//! The crypto domain on the CPU: what the CPU backend runs for it, as a crate of its own, so that it compiles and is tested by itself.
//!
//! [`run`] takes an op to its end, with the backend's threads and memory. Below it, each over slices:
//!
//! * [`aead`], [`cipher`], [`hash`], [`signature`]: AWS-LC's functions. What they keep of a key is wiped when it is dropped.
//! * `rsa`: RSA's keys, with batches in lanes.
//! * [`lanes`]: several messages at a time in vector registers, where the CPU has them.
//! * [`deflate`], [`lz4`], [`pack`]: compression.
//! * [`keys`]: what is made of the keys that ops name.
//! * [`spread`]: the messages of a batch over threads.
//!
//! Nothing here decides by secret data which memory it reads or which way it goes, but the libraries' own compression.
#![allow(unsafe_code)] // Vector instructions, and libdeflate's functions that say how much they have read.

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

/// Why one message of an op failed. It says no more than that: see [`panoply_core::Error::Rejected`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// It is not authentic, not padded, not compressed as it should be.
    Rejected,
    /// It would become longer than it may.
    Limit,
    /// With it all messages together become longer than they may.
    TotalLimit,
    /// There is no memory for so many bytes.
    Memory(usize),
}

/// Fills `bytes` from the system's randomness. False where there is none.
pub fn fill_random(bytes: &mut [u8]) -> bool {
    aws_lc_rs::rand::fill(bytes).is_ok()
}
