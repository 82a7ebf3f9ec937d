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

/// Fills `bytes` from the system's randomness. Returns false if there is none.
pub fn fill_random(bytes: &mut [u8]) -> bool {
    aws_lc_rs::rand::fill(bytes).is_ok()
}

/// Like `fill_random`, with bytes mixed in that the system draws at this call: the library's
/// random state in memory is duplicated if a virtual machine is resumed from a snapshot.
pub fn fill_random_anew(bytes: &mut [u8]) -> bool {
    #[cfg(unix)]
    {
        use std::io::Read;
        let mut drawn = zeroize::Zeroizing::new(vec![0; bytes.len()]);
        let read = std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut drawn));
        if read.is_err() || !fill_random(bytes) {
            return false;
        }
        bytes.iter_mut().zip(drawn.iter()).for_each(|(byte, drawn)| *byte ^= drawn);
        true
    }
    #[cfg(not(unix))]
    fill_random(bytes)
}
