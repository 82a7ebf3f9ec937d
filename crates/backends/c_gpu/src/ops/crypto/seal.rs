//! Seal and Open: a cipher's key stream, and tags of the text.

use panoply_core::op::crypto::{AeadAlgorithm, Key, Messages, Open, Seal, SealedMessages, TAG_BYTES};
use panoply_core::{Error, Result, Value};

use super::answer::{KernelOutput, OutputPlace};
use super::chacha::ChaCha;
use super::gcm::Gcm;
use super::{aes, chacha};
use crate::context::Context;
use crate::driver::Address;
use crate::ops::messages::{Batch, DeviceMessages, Terms, place, place_nonces};

/// Wanted number of hashing threads, and bounds of the number of blocks that each hashes.
const THREADS_WANTED: usize = 1 << 16;
const LOG_CHUNK_MIN: u32 = 4;
const LOG_CHUNK_MAX: u32 = 7;

pub(super) fn seal(op: &Seal, context: &mut Context) -> Result<Value> {
    op.check_unaltered()?;
    let (messages, data) = gathered(op.messages(), op.associated_data(), context)?;
    let behind = if op.is_detached() { 0 } else { TAG_BYTES };
    let answer_len = |len: usize| len.saturating_add(behind);
    let unit_bytes = unit_bytes(op.algorithm());
    let terms = Terms { behind: 0, unit_bytes, answer_len: &answer_len, data: data.as_ref() };
    let batch = Batch::new(&messages, &terms, context)?;
    let place = OutputPlace::of(messages.is_resident);
    let text = KernelOutput::new(batch.answer_bytes(), place, context)?;
    let tags = KernelOutput::new(if op.is_detached() { batch.count() * TAG_BYTES } else { 0 }, place, context)?;
    if batch.count() > 0 {
        let nonces = place_nonces(op.nonces(), batch.count(), context)?;
        let aead = Aead::new(op.key(), op.algorithm(), &batch, nonces, context)?;
        aead.apply(text.address, messages.address, None, context)?;
        let texts = Texts { address: text.address, is_target: true, data: address_of(data.as_ref()) };
        let sums = aead.hash(&texts, context)?;
        let to = if op.is_detached() { tags.address } else { text.address };
        aead.tags(sums, &Tags { address: to, is_apart: op.is_detached(), verdict: None }, context)?;
    }
    let offsets = batch.into_offsets();
    if !op.is_detached() {
        return text.into_value(op.messages(), offsets, context);
    }
    let tags = tags.into_bytes(context)?;
    let text = op.messages().like(text.into_bytes(context)?, offsets)?;
    SealedMessages { text, tags: Some(tags) }.into_value()
}

pub(super) fn open(op: &Open, context: &mut Context) -> Result<Value> {
    let (messages, data) = gathered(op.messages(), op.associated_data(), context)?;
    let behind = if op.detached_tags().is_some() { 0 } else { TAG_BYTES };
    if let Some(index) = messages.lens().position(|len| len < behind) {
        return Err(Error::Rejected { op: "open", index });
    }
    let unit_bytes = unit_bytes(op.algorithm());
    let terms = Terms { behind, unit_bytes, answer_len: &|len| len, data: data.as_ref() };
    let batch = Batch::new(&messages, &terms, context)?;
    let to = if op.is_secret() { OutputPlace::Secret } else { OutputPlace::of(messages.is_resident) };
    let plain = KernelOutput::new(batch.answer_bytes(), to, context)?;
    if batch.count() > 0 {
        let nonces = place_nonces(op.nonces(), batch.count(), context)?;
        let aead = Aead::new(op.key(), op.algorithm(), &batch, nonces, context)?;
        let texts = Texts { address: messages.address, is_target: false, data: address_of(data.as_ref()) };
        let sums = aead.hash(&texts, context)?;
        let given = match op.detached_tags() {
            Some(tags) => place(tags, context)?.0,
            None => messages.address,
        };
        // The index of the first message with a wrong tag, and the number of right ones. Nothing is
        // decrypted unless all tags are right, and nothing is handed out unless the decrypting
        // kernel confirms that it saw this.
        let verdict = context.scratch(8)?;
        context.fill(verdict, 0xff, 4)?;
        context.fill(verdict + 4, 0, 4)?;
        let complaint = context.approval(rejected, 0)?;
        let tags = Tags { address: given, is_apart: op.detached_tags().is_some(), verdict: Some(verdict) };
        aead.tags(sums, &tags, context)?;
        aead.apply(plain.address, messages.address, Some(Verdict { word: verdict, complaint }), context)?;
    }
    plain.into_value(op.messages(), batch.into_offsets(), context)
}

/// Checked first by a decrypting kernel: whether all messages passed, and the word for its
/// confirmation.
#[derive(Clone, Copy)]
pub(super) struct Verdict {
    pub(super) word: Address,
    pub(super) complaint: Address,
}

/// Texts to hash, with their associated data.
pub(super) struct Texts {
    pub(super) address: Address,
    /// Whether they are at the output's offsets rather than the input's.
    pub(super) is_target: bool,
    pub(super) data: Address,
}

/// The place where tags are written or, with a verdict, read.
pub(super) struct Tags {
    pub(super) address: Address,
    pub(super) is_apart: bool,
    pub(super) verdict: Option<Address>,
}

/// The levels of hashing: chunks of blocks, then chunks of the sums, until each message has one
/// sum.
#[derive(Clone, Copy)]
pub(super) struct Levels {
    pub(super) count: u32,
    pub(super) log_chunk: u32,
}

impl Levels {
    fn of(batch: &Batch) -> Levels {
        let wanted = (batch.blocks / THREADS_WANTED).max(1).ilog2();
        let log_chunk = wanted.clamp(LOG_CHUNK_MIN, LOG_CHUNK_MAX);
        let mut count = 1;
        while batch.blocks_max.div_ceil(1 << (log_chunk * count)) > 1 {
            count += 1;
        }
        Levels { count, log_chunk }
    }

    /// Number of sums of a level.
    pub(super) fn elements(self, level: u32, batch: &Batch) -> usize {
        (batch.blocks >> (self.log_chunk * level)) + batch.count()
    }
}

/// An algorithm with the data shared by all messages of an op.
enum Aead<'a> {
    Gcm(Gcm<'a>),
    ChaCha(ChaCha<'a>),
}

impl<'a> Aead<'a> {
    fn new(
        key: &Key,
        algorithm: Option<AeadAlgorithm>,
        batch: &'a Batch,
        nonces: Address,
        context: &mut Context,
    ) -> Result<Aead<'a>> {
        let levels = Levels::of(batch);
        Ok(match algorithm {
            Some(AeadAlgorithm::ChaCha20Poly1305) => Aead::ChaCha(ChaCha::new(key, batch, nonces, levels, context)?),
            _ => Aead::Gcm(Gcm::new(key, batch, nonces, levels, context)?),
        })
    }

    fn apply(&self, to: Address, from: Address, verdict: Option<Verdict>, context: &mut Context) -> Result<()> {
        match self {
            Aead::Gcm(gcm) => gcm.apply(to, from, verdict, context),
            Aead::ChaCha(chacha) => chacha.apply(to, from, verdict, context),
        }
    }

    /// Hashes texts, level by level; returns the address of the sums.
    fn hash(&self, texts: &Texts, context: &mut Context) -> Result<Address> {
        match self {
            Aead::Gcm(gcm) => gcm.hash(texts, context),
            Aead::ChaCha(chacha) => chacha.hash(texts, context),
        }
    }

    fn tags(&self, sums: Address, tags: &Tags, context: &mut Context) -> Result<()> {
        match self {
            Aead::Gcm(gcm) => gcm.tags(sums, tags, context),
            Aead::ChaCha(chacha) => chacha.tags(sums, tags, context),
        }
    }
}

fn unit_bytes(algorithm: Option<AeadAlgorithm>) -> usize {
    match algorithm {
        Some(AeadAlgorithm::ChaCha20Poly1305) => chacha::UNIT_BYTES,
        _ => aes::UNIT_BYTES,
    }
}

fn rejected(word: u64, _: u64) -> Error {
    Error::Rejected { op: "open", index: word.saturating_sub(1) as usize }
}

fn gathered(
    messages: &Messages,
    data: Option<&Messages>,
    context: &mut Context,
) -> Result<(DeviceMessages, Option<DeviceMessages>)> {
    let messages = DeviceMessages::new(messages, context)?;
    let data = data.map(|data| DeviceMessages::new(data, context)).transpose()?;
    Ok((messages, data))
}

fn address_of(data: Option<&DeviceMessages>) -> Address {
    data.map_or(Address::NULL, |data| data.address)
}
