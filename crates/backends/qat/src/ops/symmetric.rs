//! Seal, Open, Encrypt, Decrypt, Hash, Hmac, and Verify with HMAC tags.

use panoply_core::op::crypto::*;
use panoply_core::{Bytes, Error, HostBufferMut, Result, Value};
use panoply_cpu_crypto::cipher::unpadded_len;
use panoply_cpu_crypto::hash;
use zeroize::Zeroizing;

use super::{AnswerError, Continuation, MessageWork, Output, is_equal, succeeded, wrong};
use crate::instance::{Mode, Setup};
use crate::request::{RequestAnswer, RequestParameters, Symmetric};

const BLOCK_BYTES: usize = 16;
static PADDINGS: [[u8; BLOCK_BYTES]; BLOCK_BYTES + 1] = {
    let (mut paddings, mut len) = ([[0; BLOCK_BYTES]; BLOCK_BYTES + 1], 0);
    while len <= BLOCK_BYTES {
        paddings[len] = [len as u8; BLOCK_BYTES];
        len += 1;
    }
    paddings
};

/// Work with one request per message.
struct Requests {
    mode: Mode,
    /// The key, which hashes have none of.
    handle: Option<Key>,
    material: Zeroizing<Vec<u8>>,
    form: Messages,
    messages: Vec<Bytes>,
    /// The nonce or initial vector of each message. Empty for hashes.
    starts: Vec<[u8; BLOCK_BYTES]>,
    start_bytes: usize,
    associated: Vec<Bytes>,
    /// Whether the messages have PKCS#7 padding.
    is_padded: bool,
    tags: Tags,
    output: Output,
}

/// The location of the tags.
enum Tags {
    /// There are no tags.
    None,
    /// Behind each message.
    Attached,
    /// In a separate buffer, either written or read.
    Apart(HostBufferMut),
    /// Given tags to compare with. The verdicts go to the output.
    Compared(Vec<Bytes>),
}

impl Requests {
    /// Requests with this key.
    fn with_key(mode: Mode, key: &Key, messages: &Messages, output: Output) -> Result<Requests> {
        let material = Zeroizing::new(key.material().as_slice()?.to_vec());
        Ok(Requests { handle: Some(key.clone()), material, ..Requests::new(mode, messages, output)? })
    }

    fn with_hmac_key(algorithm: HashAlgorithm, key: &Key, messages: &Messages, output: Output) -> Result<Requests> {
        let work = Requests::new(Mode::Hmac(algorithm), messages, output)?;
        Ok(Requests { handle: Some(key.clone()), material: short_key(algorithm, key)?, ..work })
    }

    fn new(mode: Mode, messages: &Messages, output: Output) -> Result<Requests> {
        let list = messages.clone().into_list()?;
        Ok(Requests {
            mode,
            handle: None,
            material: Zeroizing::default(),
            form: messages.clone(),
            messages: list,
            starts: Vec::new(),
            start_bytes: 0,
            associated: Vec::new(),
            is_padded: false,
            tags: Tags::None,
            output,
        })
    }

    fn with_tags(mut self, tags: Tags) -> Requests {
        self.tags = tags;
        self
    }

    fn with_nonces(mut self, nonces: &Nonces, associated: Option<&Messages>) -> Result<Requests> {
        for nonce in nonces.list(self.messages.len())? {
            let mut start = [0; BLOCK_BYTES];
            start[..NONCE_BYTES].copy_from_slice(&nonce);
            self.starts.push(start);
        }
        self.start_bytes = NONCE_BYTES;
        self.associated = match associated {
            None => Vec::new(),
            Some(Messages::One(data)) => vec![data.clone(); self.messages.len()],
            Some(data) => data.clone().into_list()?,
        };
        Ok(self)
    }

    fn with_vectors(mut self, vectors: &Bytes) -> Result<Requests> {
        self.starts = vectors.as_slice()?.as_chunks().0.to_vec();
        self.start_bytes = BLOCK_BYTES;
        Ok(self)
    }

    /// The text of a message, without an attached tag.
    fn text(&self, index: usize) -> Result<&[u8]> {
        let bytes = self.messages[index].as_slice()?;
        match (self.mode, &self.tags) {
            (Mode::Open, Tags::Attached) => Ok(&bytes[..bytes.len().saturating_sub(TAG_BYTES)]),
            _ => Ok(bytes),
        }
    }

    /// The expected tag of a message.
    fn given_tag(&self, index: usize) -> Result<&[u8]> {
        Ok(match (self.mode, &self.tags) {
            (Mode::Open, Tags::Attached) => {
                let bytes = self.messages[index].as_slice()?;
                &bytes[bytes.len().saturating_sub(TAG_BYTES)..]
            }
            (Mode::Open, Tags::Apart(tags)) => &tags.bytes()[index * TAG_BYTES..(index + 1) * TAG_BYTES],
            _ => &[],
        })
    }

    fn padding(&self, len: usize) -> &'static [u8] {
        match self.is_padded && self.mode == Mode::CbcEncrypt {
            true => &PADDINGS[BLOCK_BYTES - len % BLOCK_BYTES][..BLOCK_BYTES - len % BLOCK_BYTES],
            false => &[],
        }
    }

    fn take_sealed(&mut self, index: usize, answer: &RequestAnswer<'_>) -> Result<(), AnswerError> {
        let tag = answer.digest.get(..TAG_BYTES).ok_or_else(|| wrong("a tag is missing"))?;
        let place = self.output.place(index);
        place[..answer.bytes.len()].copy_from_slice(answer.bytes);
        match &mut self.tags {
            Tags::Apart(tags) => tags.bytes_mut()[index * TAG_BYTES..(index + 1) * TAG_BYTES].copy_from_slice(tag),
            _ => place[answer.bytes.len()..].copy_from_slice(tag),
        }
        self.output.lens[index] = place_len(&self.output, index);
        Ok(())
    }

    fn take_digest(&mut self, index: usize, digest: &[u8]) -> Result<bool, AnswerError> {
        match &self.tags {
            Tags::Compared(tags) => {
                let verdict = is_equal(tags[index].as_slice()?, digest);
                Ok(self.output.write(index, &[u8::from(verdict)]))
            }
            _ => Ok(self.output.write(index, digest)),
        }
    }
}

fn place_len(output: &Output, index: usize) -> usize {
    output.offsets[index + 1] - output.offsets[index]
}

impl MessageWork for Requests {
    fn count(&self) -> usize {
        self.messages.len()
    }

    fn setup(&self) -> Setup<'_> {
        Setup::Symmetric(self.mode, &self.material)
    }

    fn key(&self) -> Option<&Key> {
        self.handle.as_ref()
    }

    fn ask(&self, index: usize) -> Result<Option<RequestParameters<'_>>> {
        let message = self.text(index)?;
        let padding = self.padding(message.len());
        // An empty message needs no cipher.
        let is_cipher = matches!(self.mode, Mode::Ctr | Mode::CbcEncrypt | Mode::CbcDecrypt);
        if is_cipher && message.is_empty() && padding.is_empty() {
            return Ok(None);
        }
        let iv = self.starts.get(index).map_or(&[][..], |start| &start[..self.start_bytes]);
        let aad = self.associated.get(index).map_or(Ok(&[][..]), Bytes::as_slice)?;
        let tag = self.given_tag(index)?;
        Ok(Some(RequestParameters::Symmetric(Symmetric { mode: self.mode, iv, aad, message, padding, tag })))
    }

    fn take(&mut self, index: usize, answer: &RequestAnswer<'_>) -> Result<Continuation, AnswerError> {
        succeeded("cpaCySymPerformOp", answer)?;
        let fits = match self.mode {
            Mode::Seal => self.take_sealed(index, answer).map(|()| true)?,
            Mode::Open if !answer.verdict => return Err(Error::Rejected { op: "open", index }.into()),
            Mode::Hash(hash) | Mode::Hmac(hash) => {
                let digest = answer.digest.get(..hash.digest_bytes()).ok_or_else(|| wrong("a digest is missing"))?;
                self.take_digest(index, digest)?
            }
            Mode::CbcDecrypt if self.is_padded => {
                let len = unpadded_len(answer.bytes).map_err(|_| Error::Rejected { op: "decrypt", index })?;
                self.output.write(index, &answer.bytes[..len])
            }
            Mode::Open | Mode::CbcEncrypt | Mode::CbcDecrypt | Mode::Ctr => self.output.write(index, answer.bytes),
        };
        if fits { Ok(Continuation::Done) } else { Err(wrong("an answer is longer than was asked for")) }
    }

    fn value(&mut self) -> Result<Value> {
        match std::mem::replace(&mut self.tags, Tags::None) {
            Tags::Apart(tags) if self.mode == Mode::Seal => {
                let tags = Some(Bytes::from_host(tags.freeze()));
                SealedMessages { text: self.output.finish(&self.form)?, tags }.into_value()
            }
            Tags::Compared(_) => Ok(Value::Bytes(self.output.verdicts()?)),
            _ => self.output.finish(&self.form)?.into_value(),
        }
    }
}

pub(super) fn seal(op: &Seal) -> Result<Box<dyn MessageWork>> {
    let behind = if op.is_detached() { 0 } else { TAG_BYTES };
    let output = Output::new(op.messages().lens().map(|len| len.saturating_add(behind)), false)?;
    let work = Requests::with_key(Mode::Seal, op.key(), op.messages(), output)?;
    let tags = match op.is_detached() {
        true => Tags::Apart(HostBufferMut::zeroed(op.messages().count() * TAG_BYTES)?),
        false => Tags::Attached,
    };
    Ok(Box::new(work.with_tags(tags).with_nonces(op.nonces(), op.associated_data())?))
}

pub(super) fn open(op: &Open) -> Result<Box<dyn MessageWork>> {
    let tags = match op.detached_tags() {
        Some(given) => {
            let mut tags = HostBufferMut::zeroed(given.len())?;
            tags.bytes_mut().copy_from_slice(given.as_slice()?);
            Tags::Apart(tags)
        }
        None => Tags::Attached,
    };
    let behind = if op.detached_tags().is_some() { 0 } else { TAG_BYTES };
    let output = Output::new(op.messages().lens().map(|len| len.saturating_sub(behind)), op.is_secret())?;
    let work = Requests::with_key(Mode::Open, op.key(), op.messages(), output)?;
    Ok(Box::new(work.with_tags(tags).with_nonces(op.nonces(), op.associated_data())?))
}

pub(super) fn encrypt(op: &Encrypt) -> Result<Box<dyn MessageWork>> {
    let mode = if op.mode() == CipherMode::Ctr { Mode::Ctr } else { Mode::CbcEncrypt };
    let output = Output::new(op.messages().lens().map(|len| op.text_len(len)), false)?;
    let mut work = Requests::with_key(mode, op.key(), op.messages(), output)?;
    work.is_padded = op.mode() == CipherMode::Cbc;
    Ok(Box::new(work.with_vectors(op.vectors())?))
}

pub(super) fn decrypt(op: &Decrypt) -> Result<Box<dyn MessageWork>> {
    let mode = if op.mode() == CipherMode::Ctr { Mode::Ctr } else { Mode::CbcDecrypt };
    let output = Output::new(op.messages().lens(), op.is_secret())?;
    let mut work = Requests::with_key(mode, op.key(), op.messages(), output)?;
    work.is_padded = op.mode() == CipherMode::Cbc;
    Ok(Box::new(work.with_vectors(op.vectors())?))
}

pub(super) fn hash(op: &Hash) -> Result<Box<dyn MessageWork>> {
    let output = Output::new(op.messages.lens().map(|_| op.algorithm.digest_bytes()), false)?;
    Ok(Box::new(Requests::new(Mode::Hash(op.algorithm), &op.messages, output)?))
}

pub(super) fn hmac(op: &Hmac) -> Result<Box<dyn MessageWork>> {
    let Purpose::Hmac(algorithm) = op.key().purpose() else { return Err(op.key().invalid()) };
    let output = Output::new(op.messages().lens().map(|_| algorithm.digest_bytes()), false)?;
    Ok(Box::new(Requests::with_hmac_key(algorithm, op.key(), op.messages(), output)?))
}

pub(super) fn verify(op: &Verify) -> Result<Box<dyn MessageWork>> {
    let Purpose::Hmac(algorithm) = op.key().purpose() else { return Err(op.key().invalid()) };
    let output = Output::new(op.messages().lens().map(|_| 1), false)?;
    let work = Requests::with_hmac_key(algorithm, op.key(), op.messages(), output)?;
    Ok(Box::new(work.with_tags(Tags::Compared(op.signatures().clone().into_list()?))))
}

/// The key of an HMAC. The device accepts keys up to the block size, so a longer key is replaced by
/// its digest, as RFC 2104 defines.
fn short_key(algorithm: HashAlgorithm, key: &Key) -> Result<Zeroizing<Vec<u8>>> {
    let material = key.material().as_slice()?;
    let block_bytes = if algorithm == HashAlgorithm::Sha256 { 64 } else { 128 };
    if material.len() <= block_bytes {
        return Ok(Zeroizing::new(material.to_vec()));
    }
    let mut digest = Zeroizing::new(vec![0; algorithm.digest_bytes()]);
    hash::hash(algorithm, material, &mut digest);
    Ok(digest)
}
