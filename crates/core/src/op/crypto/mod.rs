//! The crypto domain: ciphers, hashes, signatures and compression, of one message or of a batch.
//!
//! * [`Messages`]: one message, a list of messages, or one buffer with offsets. An op answers in the form that it was asked in.
//! * [`Key`]: secret bytes and the one algorithm that they are for. A key is expanded once, and wiped with its last handle.
//! * [`Nonces`] and [`Session`]: numbers that are used once, the caller's own or counted.
//! * [`Seal`] and [`Open`]: encryption with authentication. [`Encrypt`] and [`Decrypt`]: without, for protocols that need it.
//! * [`Hash`], [`Hmac`], [`Hkdf`]; [`Sign`] and [`Verify`]; [`Compress`] and [`Decompress`].
//!
//! Every op is a function of its parts, nonces included, so a fallback may run it again: it seals the same message with the same
//! nonce, and never another. A message that is not authentic, not padded or not compressed as it should be is
//! [`Error::Rejected`](crate::Error::Rejected), which says no more than its number; nothing of the batch is handed out then.

mod algorithm;
pub(super) mod answer;
mod compress;
mod encrypt;
mod hash;
mod key;
mod messages;
mod nonces;
mod seal;
mod session;
mod sign;

pub use super::list::CryptoOp;
pub use algorithm::{
    AeadAlgorithm, CipherAlgorithm, CipherMode, EcdsaEncoding, Format, HashAlgorithm, RsaBits, RsaPadding,
    SignatureAlgorithm,
};
pub use compress::{Compress, Decompress, OUTPUT_BYTES_DEFAULT_MAX, OUTPUT_BYTES_TOTAL_DEFAULT_MAX};
pub use encrypt::{Decrypt, Encrypt};
pub use hash::{Hash, Hkdf, Hmac};
pub use key::{KEY_BYTES_MAX, Key, Purpose, WeakKey};
pub use messages::{MESSAGES_MAX, Messages, Packed};
pub use nonces::{NONCE_BYTES, NonceBytes, Nonces};
pub use seal::{Open, Seal, Sealed, TAG_BYTES};
pub use session::Session;
pub use sign::{Sign, Verify};

#[cfg(all(test, not(loom)))]
mod tests;
