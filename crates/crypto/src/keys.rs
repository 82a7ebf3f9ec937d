//! What was made of the keys that ops name: each is expanded once, and dropped after the key's last handle.

use std::collections::HashMap;
use std::sync::Arc;

use panoply_core::Result;
use panoply_core::op::crypto::{Key, Purpose, WeakKey};

use crate::aead::AeadKey;
use crate::cipher::CipherKey;
use crate::hash::HmacKey;
use crate::signature::{PrivateKey, PublicKey};

/// The most expanded keys at a time. One that was dropped is expanded again when it is used again.
pub const KEYS_MAX: usize = 4096;

/// A key, as the functions of this crate take it.
#[allow(clippy::large_enum_variant)] // There are few, each behind a reference count.
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
    /// Expands a key; `None` for a key of `Hkdf`, of which nothing can be kept, since the salt comes first.
    fn new(key: &Key, wide: bool) -> Result<Option<Expanded>> {
        let material = key.material().as_slice()?;
        Ok(match key.purpose() {
            Purpose::Seal(algorithm) => AeadKey::new(algorithm, material).map(Expanded::Aead),
            Purpose::Encrypt(algorithm) => CipherKey::new(algorithm, material, wide).map(Expanded::Cipher),
            Purpose::Hmac(algorithm) => Some(Expanded::Hmac(HmacKey::new(algorithm, material))),
            Purpose::Sign(algorithm) => PrivateKey::new(algorithm, material).map(Expanded::Private),
            Purpose::Verify(algorithm) => PublicKey::new(algorithm, material).map(Expanded::Public),
            Purpose::Hkdf(_) => None,
        })
    }
}

/// The expanded keys of one engine.
pub struct KeyTable {
    /// Whether several blocks at a time may be worked on.
    wide: bool,
    keys: HashMap<u64, (WeakKey, Arc<Expanded>)>,
}

impl KeyTable {
    /// A table without keys. `wide`: several blocks at a time, where the CPU can.
    pub fn new(wide: bool) -> KeyTable {
        KeyTable { wide, keys: HashMap::new() }
    }

    /// The key, expanded now where it was not before. A malformed key is the caller's error, and is not kept.
    pub fn get(&mut self, key: &Key) -> Result<Arc<Expanded>> {
        if let Some((_, expanded)) = self.keys.get(&key.number()) {
            return Ok(Arc::clone(expanded));
        }
        let expanded = Arc::new(Expanded::new(key, self.wide)?.ok_or_else(|| key.invalid())?);
        if self.keys.len() >= KEYS_MAX {
            self.collect();
        }
        if self.keys.len() >= KEYS_MAX {
            self.keys.clear();
        }
        self.keys.insert(key.number(), (key.downgrade(), Arc::clone(&expanded)));
        Ok(expanded)
    }

    /// Drops what was made of keys whose last handle is gone.
    pub fn collect(&mut self) {
        self.keys.retain(|_, (key, _)| key.is_alive());
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}
