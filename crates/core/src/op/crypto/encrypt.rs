//! Encrypt and Decrypt: block ciphers without authentication, for protocols that need them.

use super::algorithm::{CipherAlgorithm, CipherMode};
use super::key::{Key, Purpose};
use super::messages::Messages;
use super::nonces::expect_len;
use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::op::{BatchKey, CostClass, Describe};
use crate::part::{PartMut, PartRef, Parts};

/// Length of a block and of an initialisation vector in bytes.
const BLOCK_BYTES: usize = 16;
const MESSAGE_COST_BYTES: u64 = 512;

/// Encrypts messages with AES, each with an initialisation vector of sixteen bytes. Nothing is
/// authenticated: if you can choose, use [`Seal`](super::Seal).
///
/// In counter mode each block of a message uses the next counter. Messages of one op that share a
/// counter are refused, including a message that reaches another's first counter later, or whose
/// counter wraps around to zero: both would be encrypted with the same key stream. The caller must
/// keep the counters of different ops under a key apart. In CBC mode vectors must be unpredictable.
#[derive(Clone, Debug)]
pub struct Encrypt {
    cipher: Cipher,
}

/// Decrypts the output of [`Encrypt`]. Wrong padding is [`Error::Rejected`]. An attacker who can
/// submit altered texts and sees which are rejected can decrypt them (padding oracle): authenticate
/// before decrypting.
#[derive(Clone, Debug)]
pub struct Decrypt {
    cipher: Cipher,
    secret: bool,
}

/// The common fields of both.
#[derive(Clone, Debug)]
struct Cipher {
    key: Key,
    mode: CipherMode,
    vectors: Bytes,
    messages: Messages,
}

impl Encrypt {
    /// Encrypts each message with its initialisation vector; `vectors` has sixteen bytes for each,
    /// one after the other.
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

    /// The initialisation vectors.
    pub fn vectors(&self) -> &Bytes {
        &self.cipher.vectors
    }

    /// The messages to encrypt.
    pub fn messages(&self) -> &Messages {
        &self.cipher.messages
    }

    /// Length of the text of a message of `len` bytes.
    pub fn text_len(&self, len: usize) -> usize {
        match self.cipher.mode {
            CipherMode::Cbc => (len / BLOCK_BYTES + 1) * BLOCK_BYTES,
            CipherMode::CbcUnpadded | CipherMode::Ctr => len,
        }
    }
}

impl Decrypt {
    /// Decrypts each message with its initialisation vector; `vectors` has sixteen bytes for each,
    /// one after the other.
    pub fn new(key: &Key, mode: CipherMode, vectors: Bytes, messages: impl Into<Messages>) -> Decrypt {
        Decrypt { cipher: Cipher { key: key.clone(), mode, vectors, messages: messages.into() }, secret: false }
    }

    /// Marks the plaintext as secret: it lies in memory that is wiped with its last handle.
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

    /// The initialisation vectors.
    pub fn vectors(&self) -> &Bytes {
        &self.cipher.vectors
    }

    /// The texts to decrypt.
    pub fn messages(&self) -> &Messages {
        &self.cipher.messages
    }

    /// Whether the output lies in secret memory.
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

impl Parts for Cipher {
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
}

/// Refuses messages that share a counter. An empty message counts as one block, so that no two
/// messages begin with the same counter.
fn check_counters(vectors: &[u8], messages: &Messages) -> Result<()> {
    let starts = vectors.as_chunks::<BLOCK_BYTES>().0.iter().map(|vector| u128::from_be_bytes(*vector));
    let blocks = messages.lens().map(|len| len.div_ceil(BLOCK_BYTES).max(1) as u128);
    let ranges: Vec<(u128, u128)> = starts.zip(blocks).collect();
    // The distance from one counter to another, counting up.
    let is_clear = |before: (u128, u128), after: (u128, u128)| after.0.wrapping_sub(before.0) >= before.1;
    let meets_first = |first: (u128, u128), last: (u128, u128)| ranges.len() > 1 && !is_clear(last, first);
    // Ascending counters, such as those of a stream of messages, need no sorting.
    if ranges.windows(2).all(|pair| pair[0].0 < pair[1].0) {
        let found = ranges.windows(2).position(|pair| !is_clear(pair[0], pair[1])).map(|place| place + 1);
        let around = || match (ranges.first(), ranges.last()) {
            (Some(first), Some(last)) if meets_first(*first, *last) => Some(ranges.len() - 1),
            _ => None,
        };
        return found.or_else(around).map_or(Ok(()), |index| Err(Error::RepeatedNonce { index }));
    }
    let mut order: Vec<u32> = (0..ranges.len() as u32).collect();
    order.sort_unstable_by_key(|index| (ranges[*index as usize].0, *index));
    // The last range may wrap around and reach the first.
    let following = order.iter().cycle().skip(1);
    for (before, after) in order.iter().zip(following) {
        if before != after && !is_clear(ranges[*before as usize], ranges[*after as usize]) {
            return Err(Error::RepeatedNonce { index: *before.max(after) as usize });
        }
    }
    Ok(())
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
            CipherMode::Ctr => vectors.as_slice().map_or(Ok(()), |vectors| check_counters(vectors, messages)),
            CipherMode::Cbc => Ok(()),
        }
    }

    crate::parts!(cipher);

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

    crate::parts!(cipher);

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
