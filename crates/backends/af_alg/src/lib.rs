//! AF_ALG: AES-GCM, AES-CBC, AES-CTR, SHA-2 and HMAC by the Linux kernel, through its sockets.
//!
//! The kernel's own code runs on the same cores as the CPU backend and is slower, because of two
//! copies and two system calls per message. The device is meant for machines whose kernel drives a
//! crypto engine that no other backend can use. So it is enabled only if the environment variable
//! [`VARIABLE`] is `1`.
//!
//! * [`AfAlgBackend`] finds the kernel's algorithms by binding a socket to each.
//! * `socket` has the system calls, `ops` converts ops to system calls, and `engine` finishes ops
//!   in `submit`: a call returns when the kernel is done.
//!
//! The kernel wipes keys when their socket is closed. It does not wipe its copies of messages, so
//! secret messages are refused.
#![allow(unsafe_code)] // System calls take addresses.

mod backend;
mod engine;
mod ops;
mod socket;

pub use backend::{AF_ALG, AfAlgBackend, VARIABLE};
