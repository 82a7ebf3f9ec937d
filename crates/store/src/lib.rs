//! An encrypted store: objects under names, compressed, sealed, and safe from crashes.
//!
//! A [`Store`] is a folder. Whoever has it without the key learns how many files there are, how long they are and when they were
//! written, and nothing else; whoever alters, swaps, renames, cuts or replaces anything in it is found out. An object is read from any
//! byte, appended to, replaced and removed; what was acknowledged is there after a crash at any moment. All ciphers, hashes and
//! compression are ops of `panoply_runtime::Runtime`, so this crate names no backend.
//!
//! Modules in reading order:
//!
//! * [`store`]: what a program holds. [`batch`]: changes that are made together.
//! * [`key`]: the master key, from a file, an environment variable or a passphrase.
//! * [`error`]: what can go wrong.
//! * `head`: the one small file that says what counts. `catalog` and `log`: the names, and how changes to them are written.
//! * `extent`: the files of data: chunks that are compressed, sealed, hashed and written while the next ones are read.
//! * `merkle`: the root of an object. `sealing`: keys derived from keys, and small messages sealed with them.
//! * [`vault`]: the same keys and sealing for the files of another folder, such as a vector collection's.
//! * `folder`: files and the lock. `syncing`: files on their way to the disk. `anchor`: what finds out that a whole store was put back.
//!
//! # Why no nonce is ever used twice
//!
//! 1. Whatever is sealed has a key of its own: derived from a root key and 32 random bytes that are drawn for this one attempt to write it.
//! 2. Under such a key numbers count from zero, in memory, and only while the one writer that drew the bytes goes on.
//! 3. A crash, a failed write or an append that is tried again begins with new random bytes, and so with another key. Nothing is ever
//!    resumed, so no counter has to survive.
//!
//! `docs/store-format.md` has every byte.

pub mod anchor;
pub mod batch;
mod catalog;
mod encode;
pub mod error;
mod extent;
mod folder;
mod head;
pub mod key;
mod log;
mod merkle;
mod sealing;
pub mod store;
mod syncing;
pub mod vault;

#[cfg(test)]
mod forgery_tests;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod secrets_tests;

pub use batch::Batch;
pub use error::{Error, Result};
pub use key::{MasterKey, PassphraseCost};
pub use store::{Entry, Options, Store, Verification};
pub use vault::Vault;
