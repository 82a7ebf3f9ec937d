//! Intel QuickAssist (QAT): seal, encrypt, hash, sign and compress on the accelerator, through qatlib (`libqat` and `libusdm`), which is loaded
//! at run time. Where qatlib has no instance for compression, QATzip compresses, if it has one.
//!
//! * [`QatBackend`] finds devices: [`pci`] in sysfs, and their instances in the library.
//! * `library` has the library's functions, `memory` what a device reaches, `instance` an instance with its sessions, `request` one request
//!   that is under way.
//! * `zip` is QATzip, on a thread of its own.
//! * `ops/` goes from an op to requests, `keys` and `der` from a key to numbers.
//! * `engine` keeps as many requests under way as the instances take, and polls for their answers.
//!
//! Nothing falls back to software: an instance that is not there is an absence, and a request that fails is an error.
#![allow(unsafe_code)] // The library is C.

mod backend;
mod der;
mod engine;
mod instance;
mod keys;
mod library;
mod memory;
mod ops;
pub mod pci;
mod request;
mod sys;
mod zip;
mod zip_sys;

pub use backend::{Places, QatBackend};
