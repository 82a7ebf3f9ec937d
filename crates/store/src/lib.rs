//! An encrypted, crash-safe object store: named objects, compressed and sealed.
//!
//! A [`Store`] is a folder. Someone who has the folder without the key learns the number of files,
//! their lengths and their times, and nothing else. Every alteration, swap, renaming, truncation
//! or replacement of its content is detected. An object can be read from any byte, appended to,
//! replaced and removed. Everything that was acknowledged survives a crash at any moment. All
//! ciphers, hashes and compression are ops of `panoply_runtime::Runtime`, so this crate names no
//! backend.
//!
//! Modules in reading order:
//!
//! * [`store`]: the handle of a program, with `entry`: what it tells of an object;
//!   [`options`]: its options. [`batch`]: changes that are committed together.
//! * [`key`]: the master key, from a file, a pipe (`pipe`), an environment variable or a
//!   passphrase.
//! * [`error`]: the errors. `randomness`: random bytes.
//! * `head`: the small file with the current state. `catalog` and `log`: the names, and how
//!   changes to them are written. `newest`: the newest state that the log proves.
//! * `uses`: the devices that compressed and decompressed.
//! * `extent`: the data files: chunks that are compressed, sealed, hashed and written while the
//!   next ones are read.
//! * `merkle`: the root of an object. `sealing`: keys derived from keys, and small messages sealed
//!   with them.
//! * [`vault`]: the same keys and sealing for the files of another folder, such as a vector
//!   collection's.
//! * [`repair`]: recovers objects of a store whose head or log is damaged in both copies.
//! * `folder`: the files of a store's folder. `files`: single files. `temporary`: files that are
//!   complete before they have their name. [`lock`]: who may write, here and to other folders.
//!   `reserve`: space for removals on a full disk. `syncing`: makes files durable. `anchor`:
//!   detects the rollback of a whole store.
//!
//! # Why no nonce is ever used twice
//!
//! 1. Everything that is sealed has a key of its own, derived from a root key and 32 random bytes
//!    that are drawn for this one attempt to write it.
//! 2. Under such a key, numbers count from zero, in memory, and only while the one writer that
//!    drew the bytes continues.
//! 3. A crash, a failed write or a retried append begins with new random bytes, and so with
//!    another key. Nothing is ever resumed, so no counter has to survive.
//!
//! `docs/store-format.md` has every byte.

pub mod anchor;
pub mod batch;
mod catalog;
mod encode;
mod entry;
pub mod error;
mod extent;
mod files;
mod folder;
mod head;
pub mod key;
pub mod lock;
mod log;
mod merkle;
mod newest;
pub mod options;
mod overtaken;
mod pipe;
mod randomness;
pub mod repair;
mod reserve;
mod sealing;
pub mod store;
mod syncing;
mod temporary;
mod uses;
pub mod vault;

#[cfg(test)]
mod forgery_tests;
#[cfg(test)]
#[cfg(target_os = "linux")]
mod secrets_tests;

pub use batch::Batch;
pub use error::{Error, Result};
pub use key::{MasterKey, PassphraseCost};
pub use options::{Compression, Options};
pub use repair::{Repair, RepairOptions};
pub use store::{Entry, Store, Verification};
pub use uses::CompressionUse;
pub use vault::Vault;
