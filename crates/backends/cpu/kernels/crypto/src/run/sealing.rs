//! Seal, Open, Encrypt and Decrypt.

use std::ops::Range;

use panoply_core::op::crypto::{
    CipherMode, Decrypt, Encrypt, Messages, NonceBytes, Nonces, Open, Seal, SealedMessages, TAG_BYTES,
};
use panoply_core::{Bytes, HostBufferMut, Result, Threads};
use zeroize::Zeroize;

use super::{
    CIPHER_NS_PER_BYTE, MESSAGE_NS, SEAL_NS_PER_BYTE, State, TakeMemory, failure, finished, offsets_of, out_of_memory,
};
use crate::aead::{AeadKey, PREPARED_MAX, PreparedKey};
use crate::cipher::{self, AesBlock, BLOCK_BYTES, CipherKey};
use crate::failure::Failure;
use crate::keys::ExpandedKey;
use crate::lanes::CHAINED_LANES_WIDE;
use crate::spread::{MessageOutput, Run, Slots, spread, spread_prepared, spread_runs};

/// A longer message in counter mode is processed by several threads.
const COUNTED_PIECE_BYTES: usize = 256 << 10;

pub(super) fn seal(op: &Seal, state: &State, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<SealedMessages> {
    let expanded = ExpandedKey::of(op.key(), state.wide)?;
    let ExpandedKey::Aead(key) = expanded else { return Err(op.key().invalid()) };
    if let Messages::One(message) = op.messages() {
        return seal_one(op, key, message.as_slice()?, state, take);
    }
    let (messages, detached) = (op.messages().slices()?, op.is_detached());
    let (nonces, associated) = (NonceList::new(op.nonces()), AssociatedData::new(op.associated_data())?);
    let behind = if detached { 0 } else { TAG_BYTES };
    let offsets = offsets_of(messages.iter().map(|message| message.len() + behind))?;
    let mut out = take(offsets[messages.len()])?;
    let mut tags = if detached { take(messages.len() * TAG_BYTES)? } else { HostBufferMut::zeroed(0)? };
    let mut lens = vec![0; messages.len()];
    let slots = Slots {
        out: out.bytes_mut(),
        offsets: &offsets,
        side: tags.bytes_mut(),
        side_each: TAG_BYTES - behind,
        lens: &mut lens,
    };
    let time = |index: usize| MESSAGE_NS + messages[index].len() as f64 * SEAL_NS_PER_BYTE;
    let prepare = |group: Range<usize>| prepared(key, &nonces, |index| messages[index].len(), group, state.wide_seal);
    let work = |key: &PreparedKey<'_>, place: usize, index: usize, slot: MessageOutput<'_>| {
        let (text, tag) = slot.out.split_at_mut(messages[index].len());
        let tag = if detached { slot.side } else { tag };
        key.seal(place, nonces.get(index, &mut [0; 12])?, associated.get(index), messages[index], text, tag)?;
        Ok(slot.out.len())
    };
    let together = key.together(messages.len(), offsets[messages.len()], state.wide_seal);
    spread_prepared(threads, slots, together, &time, &prepare, &work).map_err(failure("seal", 0))?;
    let tags = detached.then(|| Bytes::from_host(tags.freeze()));
    Ok(SealedMessages { text: op.messages().like(Bytes::from_host(out.freeze()), offsets)?, tags })
}

/// Seals a single message: no lists and no threads.
fn seal_one(op: &Seal, key: &AeadKey, message: &[u8], state: &State, take: TakeMemory<'_>) -> Result<SealedMessages> {
    let (nonces, associated) = (NonceList::new(op.nonces()), AssociatedData::new(op.associated_data())?);
    let behind = if op.is_detached() { 0 } else { TAG_BYTES };
    let len = message.len().checked_add(behind).ok_or_else(|| out_of_memory(usize::MAX))?;
    let mut out = take(len)?;
    let mut tags = op.is_detached().then(|| take(TAG_BYTES)).transpose()?;
    let (text, tag) = out.bytes_mut()[..len].split_at_mut(message.len());
    let tag = tags.as_mut().map_or(tag, |tags| &mut tags.bytes_mut()[..TAG_BYTES]);
    let sealed = nonces
        .get(0, &mut [0; 12])
        .and_then(|nonce| key.seal(nonce, associated.get(0), message, text, tag, state.wide_seal));
    sealed.map_err(|error| failure("seal", 0)((0, error)))?;
    let tags = tags.map(|tags| Bytes::from_host(tags.freeze()));
    Ok(SealedMessages { text: Messages::One(Bytes::from_host(out.freeze())), tags })
}

pub(super) fn open(op: &Open, state: &State, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Messages> {
    let expanded = ExpandedKey::of(op.key(), state.wide)?;
    let ExpandedKey::Aead(key) = expanded else { return Err(op.key().invalid()) };
    if let Messages::One(text) = op.messages() {
        return open_one(op, key, text.as_slice()?, state, take);
    }
    let messages = op.messages().slices()?;
    let (nonces, associated) = (NonceList::new(op.nonces()), AssociatedData::new(op.associated_data())?);
    let tags = op.detached_tags().map(Bytes::as_slice).transpose()?;
    let behind = if tags.is_some() { 0 } else { TAG_BYTES };
    let offsets = offsets_of(messages.iter().map(|message| message.len().saturating_sub(behind)))?;
    let mut out = output(offsets[messages.len()], op.is_secret(), take)?;
    let mut lens = vec![0; messages.len()];
    let plaintext = UnreleasedPlaintext(out.bytes_mut());
    let slots = plain_slots(plaintext.0, &offsets, &mut lens);
    let time = |index: usize| MESSAGE_NS + messages[index].len() as f64 * SEAL_NS_PER_BYTE;
    let prepare = |group: Range<usize>| prepared(key, &nonces, |index| messages[index].len(), group, state.wide_seal);
    let work = |key: &PreparedKey<'_>, place: usize, index: usize, slot: MessageOutput<'_>| {
        let (text, behind) = messages[index].split_at_checked(slot.out.len()).ok_or(Failure::Rejected)?;
        let tag = tags.map_or(behind, |tags| &tags[index * TAG_BYTES..(index + 1) * TAG_BYTES]);
        key.open(place, nonces.get(index, &mut [0; 12])?, associated.get(index), text, tag, slot.out)?;
        Ok(slot.out.len())
    };
    let together = key.together(messages.len(), offsets[messages.len()], state.wide_seal);
    spread_prepared(threads, slots, together, &time, &prepare, &work).map_err(failure("open", 0))?;
    plaintext.release();
    op.messages().like(Bytes::from_host(out.freeze()), offsets)
}

/// Opens a single text: no lists and no threads.
fn open_one(op: &Open, key: &AeadKey, text: &[u8], state: &State, take: TakeMemory<'_>) -> Result<Messages> {
    let (nonces, associated) = (NonceList::new(op.nonces()), AssociatedData::new(op.associated_data())?);
    let rejected = |error| failure("open", 0)((0, error));
    let (text, tag) = match op.detached_tags() {
        Some(tags) => (text, tags.as_slice()?),
        None => {
            let parts = text.split_last_chunk::<TAG_BYTES>().ok_or(Failure::Rejected);
            parts.map(|(text, tag)| (text, tag.as_slice())).map_err(rejected)?
        }
    };
    let mut out = output(text.len(), op.is_secret(), take)?;
    let plaintext = UnreleasedPlaintext(&mut out.bytes_mut()[..text.len()]);
    let opened = nonces
        .get(0, &mut [0; 12])
        .and_then(|nonce| key.open(nonce, associated.get(0), text, tag, plaintext.0, state.wide_seal));
    opened.map_err(rejected)?;
    plaintext.release();
    Ok(Messages::One(Bytes::from_host(out.freeze())))
}

pub(super) fn encrypt(op: &Encrypt, state: &State, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Messages> {
    let expanded = ExpandedKey::of(op.key(), state.wide)?;
    let ExpandedKey::Cipher(key) = expanded else { return Err(op.key().invalid()) };
    let (messages, vectors) = (op.messages().slices()?, vectors(op.vectors())?);
    let offsets = offsets_of(messages.iter().map(|message| op.text_len(message.len())))?;
    let mut out = take(offsets[messages.len()])?;
    match op.mode() {
        CipherMode::Ctr => counted(key, state.wide, &messages, vectors, (out.bytes_mut(), &offsets), threads),
        CipherMode::Cbc | CipherMode::CbcUnpadded => {
            let mut lens = vec![0; messages.len()];
            let time = |index: usize| MESSAGE_NS + messages[index].len() as f64 * 2.0 * CIPHER_NS_PER_BYTE;
            let work = |run: Run<'_>| {
                let first = run.messages.start;
                let (messages, vectors) = (&messages[run.messages.clone()], &vectors[run.messages.clone()]);
                let encrypted = key.encrypt_all_chained(vectors, messages, &mut run.parts(&offsets), state.wide);
                encrypted.map_err(|failure| (first, failure))
            };
            spread_runs(threads, plain_slots(out.bytes_mut(), &offsets, &mut lens), CHAINED_LANES_WIDE, &time, &work)
        }
    }
    .map_err(failure("encrypt", 0))?;
    op.messages().like(Bytes::from_host(out.freeze()), offsets)
}

pub(super) fn decrypt(op: &Decrypt, state: &State, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Messages> {
    let expanded = ExpandedKey::of(op.key(), state.wide)?;
    let ExpandedKey::Cipher(key) = expanded else { return Err(op.key().invalid()) };
    let (messages, vectors) = (op.messages().slices()?, vectors(op.vectors())?);
    let offsets = offsets_of(messages.iter().map(|message| message.len()))?;
    let mut out = output(offsets[messages.len()], op.is_secret(), take)?;
    let plaintext = UnreleasedPlaintext(out.bytes_mut());
    if op.mode() == CipherMode::Ctr {
        counted(key, state.wide, &messages, vectors, (plaintext.0, &offsets), threads)
            .map_err(failure("decrypt", 0))?;
        plaintext.release();
        return op.messages().like(Bytes::from_host(out.freeze()), offsets);
    }
    let mut lens = vec![0; messages.len()];
    let time = |index: usize| MESSAGE_NS + messages[index].len() as f64 * CIPHER_NS_PER_BYTE;
    let work = |index: usize, slot: MessageOutput<'_>| {
        key.decrypt_chained(&vectors[index], messages[index], slot.out, state.wide)?;
        match op.mode() {
            CipherMode::Cbc => {
                let len = cipher::unpadded_len(slot.out)?;
                slot.out[len..].zeroize();
                Ok(len)
            }
            _ => Ok(slot.out.len()),
        }
    };
    let slots = plain_slots(plaintext.0, &offsets, &mut lens);
    spread(threads, slots, &time, &work).map_err(failure("decrypt", 0))?;
    plaintext.release();
    finished(op.messages(), out, offsets, &lens, None)
}

/// The precomputed values for a group of messages.
pub(super) fn prepared<'a>(
    key: &'a AeadKey,
    nonces: &NonceList<'_>,
    len_of: impl Fn(usize) -> usize,
    group: Range<usize>,
    wide: bool,
) -> Result<PreparedKey<'a>, (usize, Failure)> {
    if !key.is_prepared_for_messages(wide) {
        return Ok(key.prepare(std::iter::empty(), wide));
    }
    let mut of_group = [([0; 12], 0); PREPARED_MAX];
    let len = group.len().min(PREPARED_MAX);
    for (place, index) in of_group.iter_mut().zip(group) {
        place.1 = len_of(index);
        place.0 = *nonces.get(index, &mut [0; 12]).map_err(|failure| (index, failure))?;
    }
    Ok(key.prepare(of_group.into_iter().take(len), wide))
}

/// Counter mode. Its blocks are independent, so long messages are cut into pieces.
fn counted(
    key: &CipherKey,
    wide: bool,
    messages: &[&[u8]],
    vectors: &[AesBlock],
    (out, offsets): (&mut [u8], &[usize]),
    threads: &dyn Threads,
) -> Result<(), (usize, Failure)> {
    let mut lens = vec![0; messages.len()];
    if messages.iter().all(|message| message.len() <= COUNTED_PIECE_BYTES) {
        let slots = plain_slots(out, offsets, &mut lens);
        let time = |index: usize| MESSAGE_NS + messages[index].len() as f64 * CIPHER_NS_PER_BYTE;
        return spread(threads, slots, &time, &|index: usize, slot: MessageOutput<'_>| {
            key.apply_counted(&vectors[index], 0, messages[index], slot.out, wide)?;
            Ok(slot.out.len())
        });
    }
    // The index of each piece's message, the piece's offset in it, and its bytes.
    let mut pieces: Vec<(usize, usize, &[u8])> = Vec::with_capacity(messages.len());
    for (message, bytes) in messages.iter().enumerate() {
        let cut = bytes.chunks(COUNTED_PIECE_BYTES).enumerate();
        pieces.extend(cut.map(|(piece, bytes)| (message, piece * COUNTED_PIECE_BYTES, bytes)));
    }
    let mut offsets = Vec::with_capacity(pieces.len() + 1);
    offsets.push(0);
    offsets.extend(pieces.iter().scan(0, |end, (_, _, bytes)| {
        *end += bytes.len();
        Some(*end)
    }));
    lens.resize(pieces.len(), 0);
    let slots = Slots { out, offsets: &offsets, side: &mut [], side_each: 0, lens: &mut lens };
    let time = |piece: usize| MESSAGE_NS + pieces[piece].2.len() as f64 * CIPHER_NS_PER_BYTE;
    let work = |piece: usize, slot: MessageOutput<'_>| {
        let (message, begin, bytes) = pieces[piece];
        key.apply_counted(&vectors[message], (begin / BLOCK_BYTES) as u64, bytes, slot.out, wide)?;
        Ok(slot.out.len())
    };
    spread(threads, slots, &time, &work).map_err(|(piece, failure)| (pieces[piece].0, failure))
}

/// The associated data of each message.
pub(super) struct AssociatedData<'a> {
    one_for_all: bool,
    data: Vec<&'a [u8]>,
}

impl<'a> AssociatedData<'a> {
    pub(super) fn new(data: Option<&'a Messages>) -> Result<AssociatedData<'a>> {
        let one_for_all = matches!(data, None | Some(Messages::One(_)));
        Ok(AssociatedData { one_for_all, data: data.map(Messages::slices).transpose()?.unwrap_or_default() })
    }

    pub(super) fn get(&self, index: usize) -> &'a [u8] {
        self.data.get(if self.one_for_all { 0 } else { index }).copied().unwrap_or_default()
    }
}

/// The nonce of each message. A given list is used in place.
pub(super) struct NonceList<'a> {
    given: Option<&'a [NonceBytes]>,
    nonces: &'a Nonces,
}

impl<'a> NonceList<'a> {
    pub(super) fn new(nonces: &'a Nonces) -> NonceList<'a> {
        let given = match nonces {
            Nonces::Given(bytes) => bytes.as_slice().ok().map(|bytes| bytes.as_chunks().0),
            Nonces::Counted { .. } => None,
        };
        NonceList { given, nonces }
    }

    /// Returns a message's nonce; one that is not in a list is written to `place`. A message
    /// without a nonce fails.
    #[inline]
    pub(super) fn get<'b>(&'b self, index: usize, place: &'b mut NonceBytes) -> Result<&'b NonceBytes, Failure> {
        match (self.given, self.nonces) {
            (Some(list), _) => return list.get(index).ok_or(Failure::Rejected),
            (None, Nonces::Counted { prefix, first }) if (index as u64) < u64::MAX - first => {
                let number = u128::from((first + index as u64).swap_bytes()) << 32;
                let whole = (number | u128::from(u32::from_le_bytes(*prefix))).to_le_bytes();
                *place = *whole.first_chunk().ok_or(Failure::Rejected)?;
            }
            _ => *place = self.nonces.get(index).map_err(|_| Failure::Rejected)?,
        }
        Ok(place)
    }
}

fn vectors(vectors: &Bytes) -> Result<&[AesBlock]> {
    Ok(vectors.as_slice()?.as_chunks().0)
}

fn output(bytes: usize, secret: bool, take: TakeMemory<'_>) -> Result<HostBufferMut> {
    if secret { HostBufferMut::secret(bytes) } else { take(bytes) }
}

fn plain_slots<'a>(out: &'a mut [u8], offsets: &'a [usize], lens: &'a mut [usize]) -> Slots<'a> {
    Slots { out, offsets, side: &mut [], side_each: 0, lens }
}

/// Plaintext that is wiped unless it is released: if a message is rejected, or a thread panics, no
/// plaintext of the others stays in memory either.
pub(super) struct UnreleasedPlaintext<'a>(pub(super) &'a mut [u8]);

impl UnreleasedPlaintext<'_> {
    pub(super) fn release(mut self) {
        self.0 = &mut [];
    }
}

impl Drop for UnreleasedPlaintext<'_> {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}
