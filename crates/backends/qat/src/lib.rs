//! Intel QuickAssist (QAT): encryption, hashes, signatures and compression on the accelerator,
//! through qatlib (`libqat` and `libusdm`), which is loaded at run time. If qatlib has no instance
//! for compression, QATzip compresses, if it has one.
//!
//! * [`QatBackend`] finds devices: [`pci`] in sysfs, and their instances in the library.
//! * `library` has the library's functions, `memory` the memory that devices can access, `instance`
//!   an instance with its sessions, `request` one request in flight.
//! * `zip` is QATzip, on its own thread.
//! * `ops/` converts ops to requests, `keys` and `der` convert keys to numbers.
//! * `sessions` keeps sessions for further ops with the same key.
//! * `engine` keeps the instances filled with requests and polls for answers.
//!
//! There is no fallback to software: a missing instance is an absence, and a failed request is an
//! error.
#![allow(unsafe_code)] // qatlib is a C library.

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
mod sessions;
mod sys;
mod zip;
mod zip_sys;

pub use backend::{Places, QatBackend};
