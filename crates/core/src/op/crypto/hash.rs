//! Hash, Hmac and Hkdf: SHA-2 and functions built on it.

use super::algorithm::HashAlgorithm;
use super::key::{Key, Purpose};
use super::messages::Messages;
use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::op::{BatchKey, CostClass, Describe};

/// The fixed cost of a message, as a number of bytes that are hashed in the same time:
/// for Hash; and with a key, per message or derived key.
const MESSAGE_COST_BYTES: u64 = 128;
const KEYED_COST_BYTES: u64 = 384;

/// The digest of each message.
#[derive(Clone, Debug)]
pub struct Hash {
    /// The hash algorithm.
    pub algorithm: HashAlgorithm,
    /// The messages to hash.
    pub messages: Messages,
}

/// The HMAC tag of each message (RFC 2104). To check tags, use [`Verify`](super::Verify) with the
/// same key: it compares in constant time.
#[derive(Clone, Debug)]
pub struct Hmac {
    key: Key,
    messages: Messages,
}

/// Keys derived from one secret (HKDF, RFC 5869): one for each of `infos`, all of the same length.
/// The output is secret.
#[derive(Clone, Debug)]
pub struct Hkdf {
    key: Key,
    salt: Option<Bytes>,
    infos: Messages,
    len: usize,
}

impl Hash {
    /// Hashes each message.
    pub fn new(algorithm: HashAlgorithm, messages: impl Into<Messages>) -> Hash {
        Hash { algorithm, messages: messages.into() }
    }
}

impl Hmac {
    /// Computes the tag of each message.
    pub fn new(key: &Key, messages: impl Into<Messages>) -> Hmac {
        Hmac { key: key.clone(), messages: messages.into() }
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The messages to authenticate.
    pub fn messages(&self) -> &Messages {
        &self.messages
    }
}

impl Hkdf {
    /// Derives a key of `len` bytes for each of `infos`, which describe the keys' uses.
    pub fn new(key: &Key, infos: impl Into<Messages>, len: usize) -> Hkdf {
        Hkdf { key: key.clone(), salt: None, infos: infos.into(), len }
    }

    /// Sets a salt: a value that need not be secret, ideally random.
    pub fn salt(mut self, salt: Bytes) -> Hkdf {
        self.salt = Some(salt);
        self
    }

    /// The secret.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The salt.
    pub fn salt_bytes(&self) -> Option<&Bytes> {
        self.salt.as_ref()
    }

    /// The use of each key.
    pub fn infos(&self) -> &Messages {
        &self.infos
    }

    /// Length of each key in bytes.
    pub fn key_len(&self) -> usize {
        self.len
    }
}

fn work(messages: &Messages, each: u64) -> u64 {
    (messages.total_bytes() as u64).saturating_add((messages.count() as u64).saturating_mul(each))
}

impl Describe for Hash {
    fn name(&self) -> &'static str {
        "hash"
    }

    fn validate(&self) -> Result<()> {
        self.messages.check()
    }

    crate::parts!(messages);

    fn work(&self) -> u64 {
        work(&self.messages, MESSAGE_COST_BYTES)
    }

    fn cost_class(&self) -> CostClass {
        CostClass::labelled(self.algorithm.name())
    }

    fn batch_key(&self) -> Option<BatchKey> {
        Some(BatchKey::of(("hash", self.algorithm)))
    }
}

impl Describe for Hmac {
    fn name(&self) -> &'static str {
        "hmac"
    }

    fn validate(&self) -> Result<()> {
        match self.key.purpose() {
            Purpose::Hmac(_) => self.messages.check(),
            _ => Err(self.key.wrong_purpose("hmac: key", "a key made by Key::hmac")),
        }
    }

    crate::parts!(messages, key);

    fn work(&self) -> u64 {
        work(&self.messages, KEYED_COST_BYTES)
    }

    fn cost_class(&self) -> CostClass {
        CostClass::labelled(self.key.purpose().algorithm())
    }

    fn batch_key(&self) -> Option<BatchKey> {
        Some(BatchKey::of(("hmac", self.key.number())))
    }
}

impl Describe for Hkdf {
    fn name(&self) -> &'static str {
        "hkdf"
    }

    fn validate(&self) -> Result<()> {
        let Purpose::Hkdf(hash) = self.key.purpose() else {
            return Err(self.key.wrong_purpose("hkdf: key", "a key made by Key::hkdf"));
        };
        self.infos.check()?;
        let len_max = 255 * hash.digest_bytes();
        if self.len == 0 || self.len > len_max {
            return Err(Error::invalid("hkdf: bytes of a derived key", format!("1 to {len_max}"), self.len));
        }
        match self.infos.count().checked_mul(self.len) {
            Some(_) => Ok(()),
            None => {
                let (got, limit) = (vec![self.infos.count(), self.len], isize::MAX as usize);
                Err(Error::SizeOverflow { what: "hkdf: derived keys", got, limit })
            }
        }
    }

    crate::parts!(infos, key, salt);

    fn work(&self) -> u64 {
        work(&self.infos, (self.len as u64).saturating_mul(8).saturating_add(KEYED_COST_BYTES))
    }

    fn cost_class(&self) -> CostClass {
        CostClass::labelled(self.key.purpose().algorithm())
    }

    fn batch_key(&self) -> Option<BatchKey> {
        Some(BatchKey::of(("hkdf", self.key.number(), self.len)))
    }
}
