//! The crypto domain: ciphers, hashes and compression, message by message, implemented from the
//! standards' own descriptions.
//!
//! Signatures and zstd are not implemented here. They are checked with published vectors
//! (`crate::vectors`).

use panoply_core::op::crypto::*;
use panoply_core::{Bytes, Describe, Error, Result, Value};

mod aes;
mod chacha;
mod sha2;
mod unpack;

pub use sha2::sha256;

use aes::Aes;
use unpack::Refusal;

/// The answer to an op of the domain.
pub(super) fn run(op: &CryptoOp) -> Result<Value> {
    match op {
        CryptoOp::Seal(op) => seal(op)?.into_value(),
        CryptoOp::Open(op) => open(op)?.into_value(),
        CryptoOp::Encrypt(op) => encrypt(op)?.into_value(),
        CryptoOp::Decrypt(op) => decrypt(op)?.into_value(),
        CryptoOp::Hash(op) => each(&op.messages, |_, message| Ok(sha2::digest(op.algorithm, message)))?.into_value(),
        CryptoOp::Hmac(op) => each(op.messages(), |_, message| tag(op.key(), message))?.into_value(),
        CryptoOp::Hkdf(op) => hkdf(op)?.into_value(),
        CryptoOp::Verify(op) => verify(op).map(Value::Bytes),
        CryptoOp::Compress(op) => each(&op.messages, |_, message| {
            unpack::store(op.format, message).ok_or_else(|| unsupported("compress", "zstd"))
        })?
        .into_value(),
        CryptoOp::Decompress(op) => decompress(op)?.into_value(),
        CryptoOp::Sign(op) => Err(unsupported(op.name(), "signatures")),
    }
}

/// Decompresses all of `data`. `None` if the data is malformed, or if the format is zstd.
pub(crate) fn decompressed(format: Format, data: &[u8]) -> Option<Vec<u8>> {
    unpack::decompress(format, data, usize::MAX)?.ok()
}

/// Stores the message without compression. Any format but zstd.
pub(crate) fn stored(format: Format, message: &[u8]) -> Vec<u8> {
    unpack::store(format, message).unwrap_or_default()
}

/// Decrypts a single block.
pub(crate) fn decrypt_block(key: &Key, block: &[u8]) -> Vec<u8> {
    let material = key.material().as_slice().unwrap_or_default();
    Aes::new(material).decrypt_chained([0; 16], block)
}

/// The tag of a message.
pub(crate) fn tag_of(key: &Key, message: &[u8]) -> Vec<u8> {
    tag(key, message).unwrap_or_default()
}

fn unsupported(op: &'static str, what: &str) -> Error {
    Error::Unsupported { op, reason: format!("{what}: not in the reference") }
}

/// Applies `make` to each message. The result has the form of the messages.
fn each(messages: &Messages, mut make: impl FnMut(usize, &[u8]) -> Result<Vec<u8>>) -> Result<Messages> {
    let (mut all, mut offsets) = (Vec::new(), vec![0]);
    for (index, message) in messages.slices()?.into_iter().enumerate() {
        all.extend(make(index, message)?);
        offsets.push(all.len());
    }
    messages.like(Bytes::from_vec(all), offsets)
}

/// The associated data of a message: its own, or that of all messages.
fn associated(data: Option<&Messages>, index: usize) -> Result<Vec<u8>> {
    let bytes = match data {
        None => return Ok(Vec::new()),
        Some(Messages::One(bytes)) => bytes.clone(),
        Some(list) => list.get(index)?,
    };
    Ok(bytes.as_slice()?.to_vec())
}

fn seal(op: &Seal) -> Result<SealedMessages> {
    let key = op.key().material().as_slice()?;
    let mut tags = Vec::new();
    let text = each(op.messages(), |index, message| {
        let (nonce, data) = (op.nonces().get(index)?, associated(op.associated_data(), index)?);
        let (mut text, tag) = match op.algorithm() {
            Some(AeadAlgorithm::ChaCha20Poly1305) => chacha::seal(key, &nonce, &data, message),
            _ => Aes::new(key).seal(&nonce, &data, message),
        };
        if op.is_detached() {
            tags.extend(tag)
        } else {
            text.extend(tag)
        }
        Ok(text)
    })?;
    Ok(SealedMessages { text, tags: op.is_detached().then(|| Bytes::from_vec(tags)) })
}

fn open(op: &Open) -> Result<Messages> {
    let key = op.key().material().as_slice()?;
    each(op.messages(), |index, message| {
        let (nonce, data) = (op.nonces().get(index)?, associated(op.associated_data(), index)?);
        let (text, tag) = match op.detached_tags() {
            Some(tags) => (message, &tags.as_slice()?[index * TAG_BYTES..(index + 1) * TAG_BYTES]),
            None => message.split_at(message.len() - TAG_BYTES),
        };
        let opened = match op.algorithm() {
            Some(AeadAlgorithm::ChaCha20Poly1305) => chacha::open(key, &nonce, &data, text, tag),
            _ => Aes::new(key).open(&nonce, &data, text, tag),
        };
        opened.ok_or(Error::Rejected { op: "open", index })
    })
}

fn vector(vectors: &Bytes, index: usize) -> Result<[u8; 16]> {
    let vectors = vectors.as_slice()?;
    Ok(std::array::from_fn(|byte| vectors[16 * index + byte]))
}

fn encrypt(op: &Encrypt) -> Result<Messages> {
    let aes = Aes::new(op.key().material().as_slice()?);
    each(op.messages(), |index, message| {
        let start = vector(op.vectors(), index)?;
        let padding = match op.mode() {
            CipherMode::Ctr => return Ok(aes.counted(start, 128, message)),
            CipherMode::Cbc => 16 - message.len() % 16,
            CipherMode::CbcUnpadded => 0,
        };
        Ok(aes.encrypt_chained(start, &[message, &vec![padding as u8; padding]].concat()))
    })
}

fn decrypt(op: &Decrypt) -> Result<Messages> {
    let aes = Aes::new(op.key().material().as_slice()?);
    each(op.messages(), |index, text| {
        let start = vector(op.vectors(), index)?;
        if op.mode() == CipherMode::Ctr {
            return Ok(aes.counted(start, 128, text));
        }
        let mut message = aes.decrypt_chained(start, text);
        if op.mode() == CipherMode::Cbc {
            let padding = usize::from(message.last().copied().unwrap_or(0));
            let padded = (1..=16).contains(&padding)
                && message.iter().rev().take(padding).all(|byte| usize::from(*byte) == padding);
            if !padded {
                return Err(Error::Rejected { op: "decrypt", index });
            }
            message.truncate(message.len() - padding);
        }
        Ok(message)
    })
}

fn tag(key: &Key, message: &[u8]) -> Result<Vec<u8>> {
    match key.purpose() {
        Purpose::Hmac(hash) => Ok(sha2::hmac(hash, key.material().as_slice()?, message)),
        _ => Err(unsupported("hmac", "signatures")),
    }
}

fn hkdf(op: &Hkdf) -> Result<Messages> {
    let Purpose::Hkdf(hash) = op.key().purpose() else { return Err(op.key().invalid()) };
    let salt = op.salt_bytes().map(Bytes::as_slice).transpose()?.unwrap_or_default();
    let secret = op.key().material().as_slice()?;
    each(op.infos(), |_, info| Ok(sha2::hkdf(hash, salt, secret, info, op.key_len())))
}

fn verify(op: &Verify) -> Result<Bytes> {
    let pairs = op.messages().slices()?.into_iter().zip(op.signatures().slices()?);
    let verdicts = pairs.map(|(message, given)| Ok(u8::from(tag(op.key(), message)? == given)));
    Ok(Bytes::from_vec(verdicts.collect::<Result<_>>()?))
}

fn decompress(op: &Decompress) -> Result<Messages> {
    let (limit, mut left) = (op.limit_bytes.min(op.total_bytes_max()), op.total_bytes_max());
    each(&op.messages, |index, data| {
        let made = unpack::decompress(op.format, data, limit).ok_or_else(|| unsupported("decompress", "zstd"))?;
        let made = made.map_err(|refusal| match refusal {
            Refusal::Rejected => Error::Rejected { op: "decompress", index },
            Refusal::Limit => Error::OutputLimit { op: "decompress", index, limit },
        })?;
        let over = Error::OutputLimit { op: "decompress", index, limit: op.total_bytes_max() };
        left = left.checked_sub(made.len()).ok_or(over)?;
        Ok(made)
    })
}
