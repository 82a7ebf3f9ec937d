//! Encrypt and Decrypt: block ciphers without authentication, for protocols that need them.

use super::algorithm::{CipherAlgorithm, CipherMode};
use super::key::{Key, Purpose};
use super::messages::Messages;
use super::nonces::{distinct, expect_len};
use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::op::{BatchKey, CostClass, Describe};
use crate::part::{PartMut, PartRef};

/// How long a block, and an initial vector, is.
const BLOCK_BYTES: usize = 16;
const MESSAGE_COST_BYTES: u64 = 512;

/// Encrypts messages with AES, each with an initial vector of sixteen bytes. Nothing is authenticated: where the choice is yours,
/// [`Seal`](super::Seal).
///
/// In counter mode two equal initial vectors in one op are refused. Vectors whose counters meet further on are the caller's to avoid; for
/// chained blocks they must not be foreseeable.
#[derive(Clone, Debug)]
pub struct Encrypt {
    cipher: Cipher,
}

/// Decrypts what [`Encrypt`] made. Wrong padding is [`Error::Rejected`]. Whoever can have altered texts decrypted, and sees which are
/// rejected, can read them: authenticate before decrypting.
#[derive(Clone, Debug)]
pub struct Decrypt {
    cipher: Cipher,
    secret: bool,
}

/// What both have.
#[derive(Clone, Debug)]
struct Cipher {
    key: Key,
    mode: CipherMode,
    vectors: Bytes,
    messages: Messages,
}

impl Encrypt {
    /// Encrypts each message with its initial vector; `vectors` are sixteen bytes for each, one after the other.
    pub fn new(key: &Key, mode: CipherMode, vectors: Bytes, messages: impl Into<Messages>) -> Encrypt {
        Encrypt { cipher: Cipher { key: key.clone(), mode, vectors, messages: messages.into() } }
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.cipher.key
    }

    /// The mode.
    pub fn mode(&self) -> CipherMode {
        self.cipher.mode
    }

    /// The initial vectors.
    pub fn vectors(&self) -> &Bytes {
        &self.cipher.vectors
    }

    /// What is encrypted.
    pub fn messages(&self) -> &Messages {
        &self.cipher.messages
    }

    /// How long the text of a message of so many bytes is.
    pub fn text_len(&self, len: usize) -> usize {
        match self.cipher.mode {
            CipherMode::Cbc => (len / BLOCK_BYTES + 1) * BLOCK_BYTES,
            CipherMode::CbcUnpadded | CipherMode::Ctr => len,
        }
    }
}

impl Decrypt {
    /// Decrypts each message with its initial vector; `vectors` are sixteen bytes for each, one after the other.
    pub fn new(key: &Key, mode: CipherMode, vectors: Bytes, messages: impl Into<Messages>) -> Decrypt {
        Decrypt { cipher: Cipher { key: key.clone(), mode, vectors, messages: messages.into() }, secret: false }
    }

    /// What is decrypted is secret: it lies in memory that is wiped with its last handle.
    pub fn secret(mut self) -> Decrypt {
        self.secret = true;
        self
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.cipher.key
    }

    /// The mode.
    pub fn mode(&self) -> CipherMode {
        self.cipher.mode
    }

    /// The initial vectors.
    pub fn vectors(&self) -> &Bytes {
        &self.cipher.vectors
    }

    /// What is decrypted.
    pub fn messages(&self) -> &Messages {
        &self.cipher.messages
    }

    /// Whether the answer lies in secret memory.
    pub fn is_secret(&self) -> bool {
        self.secret
    }
}

impl Cipher {
    fn algorithm(&self) -> Result<CipherAlgorithm> {
        match self.key.purpose() {
            Purpose::Encrypt(algorithm) => Ok(algorithm),
            _ => Err(self.key.wrong_purpose("encrypt or decrypt: key", "a key made by Key::encrypt")),
        }
    }

    fn check(&self) -> Result<()> {
        self.algorithm()?;
        self.messages.check_lens("bytes of a message", 1 << 40)?;
        expect_len("initial vectors", BLOCK_BYTES, self.messages.count(), self.vectors.len())
    }

    fn visit(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        self.messages.visit(visit);
        self.key.visit(visit);
        visit((&self.vectors).into());
    }

    fn visit_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        self.messages.visit_mut(visit);
        self.key.visit_mut(visit);
        visit((&mut self.vectors).into());
    }

    fn work(&self) -> u64 {
        (self.messages.total_bytes() as u64).saturating_add(self.messages.count() as u64 * MESSAGE_COST_BYTES)
    }

    fn cost_class(&self) -> CostClass {
        match self.key.purpose() {
            Purpose::Encrypt(algorithm) => CostClass::labelled(algorithm.name_in(self.mode)),
            other => CostClass::labelled(other.algorithm()),
        }
    }
}

impl Describe for Encrypt {
    fn name(&self) -> &'static str {
        "encrypt"
    }

    fn validate(&self) -> Result<()> {
        let Cipher { mode, vectors, messages, .. } = &self.cipher;
        self.cipher.check()?;
        match mode {
            CipherMode::CbcUnpadded => match messages.lens().find(|len| len % BLOCK_BYTES != 0) {
                Some(got) => Err(Error::invalid("encrypt: bytes of a message", "whole blocks of 16", got)),
                None => Ok(()),
            },
            CipherMode::Ctr => vectors.as_slice().map_or(Ok(()), distinct::<BLOCK_BYTES>),
            CipherMode::Cbc => Ok(()),
        }
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        self.cipher.visit(visit);
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        self.cipher.visit_mut(visit);
    }

    fn work(&self) -> u64 {
        self.cipher.work()
    }

    fn cost_class(&self) -> CostClass {
        self.cipher.cost_class()
    }

    fn batch_key(&self) -> Option<BatchKey> {
        Some(BatchKey::of(("encrypt", self.cipher.key.number(), self.cipher.mode)))
    }
}

impl Describe for Decrypt {
    fn name(&self) -> &'static str {
        "decrypt"
    }

    fn validate(&self) -> Result<()> {
        self.cipher.check()?;
        let whole = |len: usize| match self.cipher.mode {
            CipherMode::Cbc => len >= BLOCK_BYTES && len.is_multiple_of(BLOCK_BYTES),
            CipherMode::CbcUnpadded => len.is_multiple_of(BLOCK_BYTES),
            CipherMode::Ctr => true,
        };
        match self.cipher.messages.lens().position(|len| !whole(len)) {
            Some(index) => Err(Error::Rejected { op: "decrypt", index }),
            None => Ok(()),
        }
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        self.cipher.visit(visit);
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        self.cipher.visit_mut(visit);
    }

    fn work(&self) -> u64 {
        self.cipher.work()
    }

    fn cost_class(&self) -> CostClass {
        self.cipher.cost_class()
    }

    fn batch_key(&self) -> Option<BatchKey> {
        Some(BatchKey::of(("decrypt", self.cipher.key.number(), self.cipher.mode, self.secret)))
    }
}
