//! The crypto domain: ciphers, hashes, signatures and compression, of one message or of a batch.
//!
//! * [`Messages`]: one message, a list of messages, or one buffer with offsets. An op's output has
//!   the form of its input.
//! * [`Key`]: secret bytes with the one algorithm that they are for. A key is expanded once, and
//!   wiped with its last handle.
//! * [`Nonces`], [`Session`] and [`RandomSession`]: numbers that are used once: the caller's own,
//!   counted, or drawn at random.
//! * [`Seal`] and [`Open`]: authenticated encryption. [`Encrypt`] and [`Decrypt`]: unauthenticated,
//!   for protocols that need it.
//! * [`Hash`], [`Hmac`], [`Hkdf`]; [`Sign`] and [`Verify`]; [`Compress`] and [`Decompress`].
//!
//! Every op is a function of its inputs, including nonces, so a fallback may run it again: it seals
//! the same message with the same nonce, and never another. A message that is not authentic, not
//! correctly padded or not correctly compressed is [`Error::Rejected`](crate::Error::Rejected),
//! which reveals only its index; nothing of the batch is handed out then.

mod algorithm;
pub(super) mod answer;
mod compress;
mod encrypt;
mod hash;
mod key;
mod messages;
mod nonces;
mod random_session;
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
pub use messages::{MESSAGES_MAX, Messages, PackedMessages};
pub use nonces::{NONCE_BYTES, NonceBytes, Nonces};
pub use random_session::{DRAWN_MAX, RandomSession, RandomSource};
pub use seal::{Open, Seal, SealedMessages, TAG_BYTES};
pub use session::Session;
pub use sign::{Sign, Verify};

#[cfg(all(test, not(loom)))]
mod session_tests;
#[cfg(all(test, not(loom)))]
mod tests;
