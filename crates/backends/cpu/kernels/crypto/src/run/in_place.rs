//! Seal and Open in the memory of their messages.

use std::ops::Range;

use panoply_core::op::crypto::{CryptoOp, Messages, Open, Seal, SealedMessages, TAG_BYTES};
use panoply_core::{Bytes, Result, Threads, Value};

use super::sealing::{AssociatedData, NonceList, UnreleasedPlaintext, prepared};
use super::{MESSAGE_NS, SEAL_NS_PER_BYTE, State, TakeMemory, described, failure};
use crate::aead::PreparedKey;
use crate::keys::ExpandedKey;
use crate::spread::{MessageOutput, Slots, spread_prepared};

/// Whether an op permits its output to overwrite its messages.
pub fn is_in_place(op: &CryptoOp) -> bool {
    match op {
        CryptoOp::Seal(op) => op.is_in_place(),
        CryptoOp::Open(op) => op.is_in_place(),
        _ => false,
    }
}

/// Runs an op in the memory of its messages. `None` if it does not permit that, or if others hold
/// that memory too: then nothing has changed. Afterwards the op's messages have their old length,
/// but their content is gone, and a `Seal` is refused: it would use its nonces again.
pub fn run_in_place(
    op: &mut CryptoOp,
    state: &State,
    threads: &dyn Threads,
    take: TakeMemory<'_>,
) -> Option<Result<Value>> {
    if !is_in_place(op) {
        return None;
    }
    if let Err(error) = described(op).validate() {
        return Some(Err(error));
    }
    // The op is read while its messages are written.
    match op {
        CryptoOp::Seal(op) => {
            let sealed = op.overwrite(|op, messages| seal(op, messages, state, threads, take))?;
            Some(sealed.and_then(SealedMessages::into_value))
        }
        CryptoOp::Open(op) => {
            let mut messages = taken(op.messages_mut()?)?;
            let opened = open(op, &mut messages, state, threads);
            put_back(op.messages_mut(), messages);
            Some(opened.and_then(Messages::into_value))
        }
        _ => None,
    }
}

/// Takes messages that have no other owner.
fn taken(messages: &mut Messages) -> Option<Messages> {
    messages.get_mut()?;
    Some(std::mem::replace(messages, Messages::One(Bytes::from_vec(Vec::new()))))
}

fn put_back(place: Option<&mut Messages>, messages: Messages) {
    if let Some(place) = place {
        *place = messages;
    }
}

fn seal(
    op: &Seal,
    messages: &mut Messages,
    state: &State,
    threads: &dyn Threads,
    take: TakeMemory<'_>,
) -> Result<SealedMessages> {
    let ExpandedKey::Aead(key) = ExpandedKey::of(op.key(), state.wide)? else { return Err(op.key().invalid()) };
    let (nonces, associated) = (NonceList::new(op.nonces()), AssociatedData::new(op.associated_data())?);
    let mut tags = take(messages.count() * TAG_BYTES)?;
    if let Messages::One(bytes) = messages {
        // A single message: no lists and no threads.
        let Some(message) = bytes.get_mut() else { return Err(op.key().invalid()) };
        let (nonce, tag) = (&mut [0; 12], &mut tags.bytes_mut()[..TAG_BYTES]);
        let sealed = nonces.get(0, nonce).and_then(|nonce| key.seal_in_place(nonce, associated.get(0), message, tag));
        sealed.map_err(|error| failure("seal", 0)((0, error)))?;
        return Ok(SealedMessages { text: messages.clone(), tags: Some(Bytes::from_host(tags.freeze())) });
    }
    let Some((out, offsets)) = messages.get_mut() else { return Err(op.key().invalid()) };
    let mut lens = vec![0; offsets.len() - 1];
    let slots = Slots { out, offsets: &offsets, side: tags.bytes_mut(), side_each: TAG_BYTES, lens: &mut lens };
    let time = |index: usize| MESSAGE_NS + (offsets[index + 1] - offsets[index]) as f64 * SEAL_NS_PER_BYTE;
    let len_of = |index: usize| offsets[index + 1] - offsets[index];
    let prepare = |group: Range<usize>| prepared(key, &nonces, len_of, group, true);
    let work = |key: &PreparedKey<'_>, place: usize, index: usize, slot: MessageOutput<'_>| {
        let (nonce, own) = (&mut [0; 12], associated.get(index));
        key.seal_in_place(place, nonces.get(index, nonce)?, own, slot.out, slot.side)?;
        Ok(slot.out.len())
    };
    let together = key.together(offsets.len() - 1, offsets[offsets.len() - 1] - offsets[0], true);
    spread_prepared(threads, slots, together, &time, &prepare, &work).map_err(failure("seal", 0))?;
    Ok(SealedMessages { text: messages.clone(), tags: Some(Bytes::from_host(tags.freeze())) })
}

fn open(op: &Open, messages: &mut Messages, state: &State, threads: &dyn Threads) -> Result<Messages> {
    let ExpandedKey::Aead(key) = ExpandedKey::of(op.key(), state.wide)? else { return Err(op.key().invalid()) };
    let (nonces, associated) = (NonceList::new(op.nonces()), AssociatedData::new(op.associated_data())?);
    let Some((out, offsets)) = messages.get_mut() else { return Err(op.key().invalid()) };
    let mut lens = vec![0; offsets.len() - 1];
    let plaintext = UnreleasedPlaintext(out);
    let slots = Slots { out: &mut *plaintext.0, offsets: &offsets, side: &mut [], side_each: 0, lens: &mut lens };
    let time = |index: usize| MESSAGE_NS + (offsets[index + 1] - offsets[index]) as f64 * SEAL_NS_PER_BYTE;
    let len_of = |index: usize| offsets[index + 1] - offsets[index];
    let prepare = |group: Range<usize>| prepared(key, &nonces, len_of, group, true);
    let work = |key: &PreparedKey<'_>, place: usize, index: usize, slot: MessageOutput<'_>| {
        key.open_in_place(place, nonces.get(index, &mut [0; 12])?, associated.get(index), slot.out)
    };
    let together = key.together(offsets.len() - 1, offsets[offsets.len() - 1] - offsets[0], true);
    spread_prepared(threads, slots, together, &time, &prepare, &work).map_err(failure("open", 0))?;
    // Packed messages follow each other.
    let (mut end, mut ends) = (offsets[0], vec![offsets[0]]);
    for (start, len) in offsets.iter().zip(&lens) {
        plaintext.0.copy_within(*start..start + len, end);
        end += len;
        ends.push(end);
    }
    plaintext.release();
    match &*messages {
        Messages::One(bytes) => Ok(Messages::One(bytes.slice(0, end)?)),
        Messages::Packed(packed) => Messages::packed(packed.bytes().clone(), ends),
        Messages::List(_) => Err(op.key().invalid()),
    }
}
