//! AF_ALG: AES-GCM, AES-CBC, AES-CTR, SHA-2 and HMAC by the Linux kernel, through its sockets.
//!
//! The kernel's own code on the same cores is slower than the CPU backend's, by two copies and two system calls for each message. The device is
//! for machines whose kernel has a driver for a crypto engine that nothing else reaches, and so it is there only where the environment's variable
//! [`VARIABLE`] is `1`.
//!
//! * [`AfAlgBackend`] finds out what the kernel has, by binding a socket to each algorithm.
//! * `socket` has the system calls, `ops` goes from an op to them, `engine` answers in `submit`: a call returns when the kernel is done.
//!
//! The kernel wipes keys when their socket is closed. What it copied of messages it does not wipe, so secret messages are refused.
#![allow(unsafe_code)] // System calls take addresses.

mod backend;
mod engine;
mod ops;
mod socket;

pub use backend::{AF_ALG, AfAlgBackend, VARIABLE};
