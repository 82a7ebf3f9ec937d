//! What is made of the keys that ops name: each is expanded once, and that lies with the key, so that it goes with its last handle.

use panoply_core::Result;
use panoply_core::op::crypto::{Key, Purpose};

use crate::aead::AeadKey;
use crate::cipher::CipherKey;
use crate::hash::HmacKey;
use crate::signature::{PrivateKey, PublicKey};

/// A key, as the functions of this crate take it.
#[allow(clippy::large_enum_variant)] // There are few, each in memory of its own.
pub enum Expanded {
    /// For `Seal` and `Open`.
    Aead(AeadKey),
    /// For `Encrypt` and `Decrypt`.
    Cipher(CipherKey),
    /// For `Hmac`, and `Verify` of its tags.
    Hmac(HmacKey),
    /// For `Sign`.
    Private(PrivateKey),
    /// For `Verify`.
    Public(PublicKey),
}

impl Expanded {
    /// The key, expanded now where it was not before. A malformed key is the caller's error, and is not kept.
    pub fn of(key: &Key) -> Result<&Expanded> {
        key.expanded(|| Expanded::new(key)?.ok_or_else(|| key.invalid()))
    }

    /// Expands a key; `None` where it is malformed, and for a key of `Hkdf`, of which nothing can be kept, since the salt comes first.
    fn new(key: &Key) -> Result<Option<Expanded>> {
        let material = key.material().as_slice()?;
        Ok(match key.purpose() {
            Purpose::Seal(algorithm) => AeadKey::new(algorithm, material).map(Expanded::Aead),
            Purpose::Encrypt(algorithm) => CipherKey::new(algorithm, material).map(Expanded::Cipher),
            Purpose::Hmac(algorithm) => Some(Expanded::Hmac(HmacKey::new(algorithm, material))),
            Purpose::Sign(algorithm) => PrivateKey::new(algorithm, material).map(Expanded::Private),
            Purpose::Verify(algorithm) => PublicKey::new(algorithm, material).map(Expanded::Public),
            Purpose::Hkdf(_) => None,
        })
    }
}
