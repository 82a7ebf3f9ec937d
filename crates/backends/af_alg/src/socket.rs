//! The kernel's sockets for ciphers and hashes. A transform is an algorithm with its key. An
//! operation is created from a transform, takes messages and returns their results.
//!
//! No call blocks: if the kernel does not accept or return all data immediately, the call fails.

use std::fmt;
use std::io;

#[cfg(not(target_os = "linux"))]
mod absent;
#[cfg(target_os = "linux")]
mod linux;

#[cfg(not(target_os = "linux"))]
pub(crate) use absent::{Operation, Transform};
#[cfg(target_os = "linux")]
pub(crate) use linux::{Operation, Transform};

/// Maximum size of an initialisation vector.
pub(crate) const IV_BYTES_MAX: usize = 16;

/// The kinds of algorithms. Each has its own calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Hash,
    Cipher,
    Aead,
}

impl Family {
    /// The kernel's name of the kind.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    fn name(self) -> &'static str {
        match self {
            Family::Hash => "hash",
            Family::Cipher => "skcipher",
            Family::Aead => "aead",
        }
    }
}

/// The parameters of a cipher for one message.
#[derive(Clone, Copy)]
pub(crate) struct Control<'a> {
    /// Whether it encrypts.
    pub(crate) encrypts: bool,
    /// The initialisation vector, at most [`IV_BYTES_MAX`] bytes.
    pub(crate) iv: &'a [u8],
    /// Size of the associated data at the start of the message, if the algorithm has any.
    pub(crate) associated_len: Option<usize>,
}

/// An error of a system call.
#[derive(Debug)]
pub(crate) struct SystemCallError {
    call: &'static str,
    error: io::Error,
}

impl SystemCallError {
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    fn last(call: &'static str) -> SystemCallError {
        SystemCallError { call, error: io::Error::last_os_error() }
    }

    /// The kernel accepted or returned a wrong number of bytes.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    fn short(call: &'static str, expected: usize, got: usize) -> SystemCallError {
        SystemCallError { call, error: io::Error::other(format!("{got} bytes instead of {expected}")) }
    }

    /// Whether the error means that a message is not authentic.
    pub(crate) fn is_rejection(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.error.raw_os_error() == Some(libc::EBADMSG);
        #[cfg(not(target_os = "linux"))]
        false
    }
}

impl fmt::Display for SystemCallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.error)
    }
}
