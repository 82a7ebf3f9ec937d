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
mod failure;
pub mod hash;
pub mod keys;
pub mod lanes;
pub mod lz4;
pub mod pack;
mod random;
mod rsa;
mod run;
pub mod signature;
mod signature_lanes;
pub mod spread;

pub use failure::Failure;
pub use panoply_core::{OneThread, Threads};
pub use random::{fill_random, fill_random_anew};
pub use run::{State, TakeMemory, estimate_ns, is_in_place, run, run_in_place, signing_ns};
