//! Converts an op to its requests: one for each message, for some messages more than one.

use panoply_core::op::Describe;
use panoply_core::op::crypto::{
    AeadAlgorithm, CipherMode, Compress, CryptoOp, Decompress, Format, Key, Messages, Purpose, SignatureAlgorithm,
};
use panoply_core::{Bytes, Error, HostBufferMut, Op, Result, Support, Value};
use zeroize::Zeroize;

use crate::instance::{Does, Setup};
use crate::library::QatError;
use crate::request::{RequestAnswer, RequestParameters};
use crate::zip;

mod packing;
mod signing;
mod symmetric;

/// Maximum size of a message in one request.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Maximum size of a message's associated data, a limit of the library.
const AAD_BYTES_MAX: usize = 240;

/// The processing of an op's messages.
pub(crate) trait MessageWork {
    /// Number of messages.
    fn count(&self) -> usize;

    /// The configuration that all requests share.
    fn setup(&self) -> Setup<'_>;

    /// The key of the session; `None` if it has none.
    fn key(&self) -> Option<&Key> {
        None
    }

    /// The next request of a message. `None` if no device is needed. Returns the same request until
    /// an answer was taken.
    fn ask(&self, index: usize) -> Result<Option<RequestParameters<'_>>>;

    /// Takes the answer to a message's request.
    fn take(&mut self, index: usize, answer: &RequestAnswer<'_>) -> Result<Continuation, AnswerError>;

    /// The op's result. Call after every message is done.
    fn value(&mut self) -> Result<Value>;
}

/// The continuation after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Continuation {
    /// The message is done.
    Done,
    /// The message needs another request.
    Again,
}

/// Why an answer cannot be used.
pub(crate) enum AnswerError {
    /// An error of the message or the op.
    Op(Error),
    /// An error of the device.
    Device(QatError),
}

impl From<Error> for AnswerError {
    fn from(error: Error) -> AnswerError {
        AnswerError::Op(error)
    }
}

/// Checks that the device reports success.
fn succeeded(call: &'static str, answer: &RequestAnswer<'_>) -> Result<(), AnswerError> {
    crate::library::checked(call, answer.status).map_err(AnswerError::Device)
}

/// Whether a device with these abilities runs the op.
pub(crate) fn support(does: &Does, op: &Op) -> Support {
    let Op::Crypto(op) = op else { return Support::unknown(op) };
    match refusal(does, op) {
        None => Support::Yes,
        Some(reason) => Support::No(reason),
    }
}

/// Why a device with these abilities does not run the op. `None` if it does.
fn refusal(does: &Does, op: &CryptoOp) -> Option<String> {
    let lacks = |has: bool, what: &str| (!has).then(|| format!("the device has no {what}"));
    let sealed = |purpose: Purpose, associated: Option<&Messages>| match purpose {
        Purpose::Seal(AeadAlgorithm::ChaCha20Poly1305) => Some("no ChaCha20-Poly1305 on QAT".to_owned()),
        _ => lacks(does.gcm, "AES-GCM").or_else(|| associated.and_then(aad_too_long)),
    };
    let cipher = |mode: CipherMode| match mode {
        CipherMode::Ctr => lacks(does.ctr, "AES-CTR"),
        CipherMode::Cbc | CipherMode::CbcUnpadded => lacks(does.cbc, "AES-CBC"),
    };
    let hmac = |purpose: Purpose, messages: &Messages| match purpose {
        Purpose::Hmac(hash) => lacks(does.hash(hash), hash.name()).or_else(|| has_empty(messages)),
        _ => Some("no such key on QAT".to_owned()),
    };
    let signature = |purpose: Purpose| match purpose {
        Purpose::Sign(SignatureAlgorithm::Ed25519) | Purpose::Verify(SignatureAlgorithm::Ed25519) => {
            Some("no Ed25519 on QAT".to_owned())
        }
        Purpose::Sign(SignatureAlgorithm::Rsa { .. }) | Purpose::Verify(SignatureAlgorithm::Rsa { .. }) => {
            lacks(does.rsa, "RSA")
        }
        _ => lacks(does.ecdsa, "ECDSA"),
    };
    let is_deflate = |format: Format| matches!(format, Format::Deflate | Format::Zlib | Format::Gzip);
    match op {
        CryptoOp::Seal(op) => sealed(op.key().purpose(), op.associated_data()).or_else(|| too_long(op.messages())),
        CryptoOp::Open(op) => sealed(op.key().purpose(), op.associated_data()).or_else(|| too_long(op.messages())),
        CryptoOp::Encrypt(op) => cipher(op.mode()).or_else(|| too_long(op.messages())),
        CryptoOp::Decrypt(op) => cipher(op.mode()).or_else(|| too_long(op.messages())),
        CryptoOp::Hash(op) => lacks(does.hash(op.algorithm), op.algorithm.name()).or_else(|| too_long(&op.messages)),
        CryptoOp::Hmac(op) => hmac(op.key().purpose(), op.messages()).or_else(|| too_long(op.messages())),
        CryptoOp::Hkdf(_) => Some("no HKDF on QAT".to_owned()),
        CryptoOp::Sign(op) => signature(op.key().purpose()),
        CryptoOp::Verify(op) => match op.key().purpose() {
            purpose @ Purpose::Hmac(_) => hmac(purpose, op.messages()).or_else(|| too_long(op.messages())),
            purpose => signature(purpose),
        },
        CryptoOp::Compress(op) if op.level == 0 => Some("QAT compresses at levels from 1".to_owned()),
        CryptoOp::Compress(Compress { format, .. }) | CryptoOp::Decompress(Decompress { format, .. })
            if !is_deflate(*format) =>
        {
            Some(format!("no {} on QAT", format.name()))
        }
        CryptoOp::Compress(op) if does.zip && !does.deflate => {
            too_short(&op.messages).or_else(|| too_long(&op.messages))
        }
        CryptoOp::Decompress(_) if does.zip && !does.deflate => Some("QATzip is used to compress alone".to_owned()),
        CryptoOp::Compress(op) => lacks(does.deflate, "DEFLATE").or_else(|| too_long(&op.messages)),
        CryptoOp::Decompress(op) => lacks(does.deflate, "DEFLATE").or_else(|| too_long(&op.messages)),
    }
}

fn too_short(messages: &Messages) -> Option<String> {
    let short = messages.lens().find(|len| (1..zip::MESSAGE_BYTES_MIN).contains(len))?;
    Some(format!("a message of {short} bytes, which QATzip would compress in software"))
}

fn too_long(messages: &Messages) -> Option<String> {
    let longest = messages.lens().max().unwrap_or(0);
    (longest > MESSAGE_BYTES_MAX)
        .then(|| format!("a message of {longest} bytes; a request has at most {MESSAGE_BYTES_MAX}"))
}

fn aad_too_long(data: &Messages) -> Option<String> {
    let longest = data.lens().max().unwrap_or(0);
    (longest > AAD_BYTES_MAX).then(|| format!("associated data of {longest} bytes; QAT takes at most {AAD_BYTES_MAX}"))
}

fn has_empty(messages: &Messages) -> Option<String> {
    messages.lens().any(|len| len == 0).then(|| "no HMAC of an empty message on QAT".to_owned())
}

/// Creates the work of an op. The op is validated again, because its nonces may have been on a
/// device at its first validation.
pub(crate) fn work(does: &Does, op: &Op) -> Result<Box<dyn MessageWork>> {
    let Op::Crypto(crypto) = op else { return Err(Support::unknown(op).refusal(op)) };
    if let Some(reason) = refusal(does, crypto) {
        return Err(Support::No(reason).refusal(op));
    }
    op.validate()?;
    match crypto {
        CryptoOp::Seal(op) => symmetric::seal(op),
        CryptoOp::Open(op) => symmetric::open(op),
        CryptoOp::Encrypt(op) => symmetric::encrypt(op),
        CryptoOp::Decrypt(op) => symmetric::decrypt(op),
        CryptoOp::Hash(op) => symmetric::hash(op),
        CryptoOp::Hmac(op) => symmetric::hmac(op),
        CryptoOp::Verify(op) if matches!(op.key().purpose(), Purpose::Hmac(_)) => symmetric::verify(op),
        CryptoOp::Sign(op) => signing::sign(op),
        CryptoOp::Verify(op) => signing::verify(op),
        CryptoOp::Compress(op) => packing::compress(op),
        CryptoOp::Decompress(op) => packing::decompress(op),
        CryptoOp::Hkdf(_) => Err(Support::No("no HKDF on QAT".to_owned()).refusal(op)),
    }
}

/// The output of an op's messages. Each message has its own part of the buffer, and may use less.
/// Wiped if the op fails.
struct Output {
    buffer: Option<HostBufferMut>,
    offsets: Vec<usize>,
    lens: Vec<usize>,
}

impl Output {
    /// Creates parts of these sizes.
    fn new(lens: impl Iterator<Item = usize>, secret: bool) -> Result<Output> {
        let mut offsets = vec![0_usize];
        for len in lens {
            let end = offsets[offsets.len() - 1].checked_add(len);
            offsets.push(end.ok_or_else(|| out_of_memory(usize::MAX))?);
        }
        let total = offsets[offsets.len() - 1];
        let buffer = if secret { HostBufferMut::secret(total)? } else { HostBufferMut::zeroed(total)? };
        let lens = vec![0; offsets.len() - 1];
        Ok(Output { buffer: Some(buffer), offsets, lens })
    }

    /// The part of a message.
    fn place(&mut self, index: usize) -> &mut [u8] {
        let (start, end) = (self.offsets[index], self.offsets[index + 1]);
        self.buffer.as_mut().map_or(&mut [], |buffer| &mut buffer.bytes_mut()[start..end])
    }

    /// Writes a message's output at the start of its part. Returns false if it does not fit.
    fn write(&mut self, index: usize, bytes: &[u8]) -> bool {
        let place = self.place(index);
        let fits = bytes.len() <= place.len();
        if fits {
            place[..bytes.len()].copy_from_slice(bytes);
            self.lens[index] = bytes.len();
        }
        fits
    }

    /// One byte per message, all of which were written.
    fn verdicts(&mut self) -> Result<Bytes> {
        let buffer = self.buffer.take().ok_or_else(|| out_of_memory(0))?;
        Ok(Bytes::from_host(buffer.freeze()))
    }

    /// All outputs without gaps, in the same form as the op's messages.
    fn finish(&mut self, like: &Messages) -> Result<Messages> {
        let Some(mut buffer) = self.buffer.take() else { return Err(out_of_memory(0)) };
        let (bytes, mut end, mut ends) = (buffer.bytes_mut(), 0, vec![0]);
        for (start, len) in self.offsets.iter().zip(&self.lens) {
            bytes.copy_within(*start..start + len, end);
            end += len;
            ends.push(end);
        }
        bytes[end..].zeroize();
        like.like(Bytes::from_host(buffer.freeze()).slice(0, end)?, ends)
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if let Some(buffer) = &mut self.buffer {
            buffer.bytes_mut().zeroize();
        }
    }
}

fn out_of_memory(asked: usize) -> Error {
    Error::OutOfMemory { place: "the host".to_owned(), asked: asked as u64, free: 0, largest: 0 }
}

/// An error for an answer that does not match its request.
fn wrong(what: &'static str) -> AnswerError {
    AnswerError::Device(QatError::Broken { what: what.to_owned() })
}

/// Compares in constant time: the time depends only on the lengths.
fn is_equal(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && std::hint::black_box(a.iter().zip(b).fold(0, |sum, (a, b)| sum | (a ^ b))) == 0
}
