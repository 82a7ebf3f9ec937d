//! Hash, Hmac and Hkdf: SHA-2 and what is made of it.

use super::algorithm::HashAlgorithm;
use super::key::{Key, Purpose};
use super::messages::Messages;
use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::op::{BatchKey, CostClass, Describe};
use crate::part::{PartMut, PartRef};

/// What a message costs beside its bytes, in bytes that are hashed in the same time; with a key, and for each derived key.
const MESSAGE_COST_BYTES: u64 = 128;
const KEYED_COST_BYTES: u64 = 384;

/// The digest of each message.
#[derive(Clone, Debug)]
pub struct Hash {
    /// What they are hashed with.
    pub algorithm: HashAlgorithm,
    /// What is hashed.
    pub messages: Messages,
}

/// The tag of each message: its hash with a key (RFC 2104). To check tags, [`Verify`](super::Verify) with the same key: it compares in
/// constant time.
#[derive(Clone, Debug)]
pub struct Hmac {
    key: Key,
    messages: Messages,
}

/// Keys derived from one secret (RFC 5869): one for each of `infos`, all of one length. They are secret bytes.
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
    /// The tag of each message.
    pub fn new(key: &Key, messages: impl Into<Messages>) -> Hmac {
        Hmac { key: key.clone(), messages: messages.into() }
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// What is hashed.
    pub fn messages(&self) -> &Messages {
        &self.messages
    }
}

impl Hkdf {
    /// Derives a key of `len` bytes for each of `infos`, which say what the keys are for.
    pub fn new(key: &Key, infos: impl Into<Messages>, len: usize) -> Hkdf {
        Hkdf { key: key.clone(), salt: None, infos: infos.into(), len }
    }

    /// With a salt: a value that need not be secret, at best random.
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

    /// What each key is for.
    pub fn infos(&self) -> &Messages {
        &self.infos
    }

    /// How long each key is.
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

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        self.messages.visit(visit);
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        self.messages.visit_mut(visit);
    }

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

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        self.messages.visit(visit);
        self.key.visit(visit);
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        self.messages.visit_mut(visit);
        self.key.visit_mut(visit);
    }

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

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        self.infos.visit(visit);
        self.key.visit(visit);
        self.salt.iter().for_each(|salt| visit(salt.into()));
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        self.infos.visit_mut(visit);
        self.key.visit_mut(visit);
        self.salt.iter_mut().for_each(|salt| visit(salt.into()));
    }

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
