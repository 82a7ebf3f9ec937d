//! The kernel's sockets for ciphers and hashes. A transform is an algorithm with its key; an operation, made of it, takes messages and gives back
//! what came of them.
//!
//! No call waits for data that is not on its way: what the kernel does not take or give at once is an error.

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

/// The longest initialisation vector.
pub(crate) const IV_BYTES_MAX: usize = 16;

/// The kinds of algorithms, which have different calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    Hash,
    Cipher,
    Aead,
}

impl Family {
    /// The kernel's word for it.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    fn name(self) -> &'static str {
        match self {
            Family::Hash => "hash",
            Family::Cipher => "skcipher",
            Family::Aead => "aead",
        }
    }
}

/// What a cipher is told with a message.
#[derive(Clone, Copy)]
pub(crate) struct Control<'a> {
    /// Whether it encrypts.
    pub(crate) encrypts: bool,
    /// At most [`IV_BYTES_MAX`].
    pub(crate) iv: &'a [u8],
    /// How much of what is sent is associated data, where the algorithm has any.
    pub(crate) associated_len: Option<usize>,
}

/// What the kernel says against a call.
#[derive(Debug)]
pub(crate) struct Trouble {
    call: &'static str,
    error: io::Error,
}

impl Trouble {
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    fn last(call: &'static str) -> Trouble {
        Trouble { call, error: io::Error::last_os_error() }
    }

    /// The kernel took or gave another number of bytes.
    #[cfg_attr(not(target_os = "linux"), allow(dead_code))]
    fn short(call: &'static str, expected: usize, got: usize) -> Trouble {
        Trouble { call, error: io::Error::other(format!("{got} bytes instead of {expected}")) }
    }

    /// Whether a message is not authentic.
    pub(crate) fn is_rejection(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.error.raw_os_error() == Some(libc::EBADMSG);
        #[cfg(not(target_os = "linux"))]
        false
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.error)
    }
}
