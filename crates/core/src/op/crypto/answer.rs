//! Checks whether an engine's output has the form that an op requires: one message for each input,
//! tags if requested, and the lengths that are known beforehand. The content of the bytes is not
//! checked here.

use super::{CipherMode, CryptoOp, Messages, Purpose, TAG_BYTES};
use crate::bytes::Bytes;
use crate::part::{Part, Value};
use crate::tensor::Tensor;

/// Whether the value has the form of a result of the op.
pub(in crate::op) fn fits(op: &CryptoOp, value: &Value) -> bool {
    let any = |_: usize| None;
    match op {
        CryptoOp::Seal(op) if op.is_detached() => with_tags(op.messages(), value),
        CryptoOp::Seal(op) => is_like(op.messages(), value, |len| len.checked_add(TAG_BYTES)),
        CryptoOp::Open(op) => {
            let tag = if op.detached_tags().is_some() { 0 } else { TAG_BYTES };
            is_like(op.messages(), value, |len| len.checked_sub(tag))
        }
        CryptoOp::Encrypt(op) => is_like(op.messages(), value, |len| Some(op.text_len(len))),
        CryptoOp::Decrypt(op) if op.mode() != CipherMode::Cbc => is_like(op.messages(), value, Some),
        CryptoOp::Decrypt(op) => is_like(op.messages(), value, any),
        CryptoOp::Hash(op) => is_like(&op.messages, value, |_| Some(op.algorithm.digest_bytes())),
        CryptoOp::Hmac(op) => match op.key().purpose() {
            Purpose::Hmac(hash) => is_like(op.messages(), value, |_| Some(hash.digest_bytes())),
            _ => false,
        },
        CryptoOp::Hkdf(op) => is_like(op.infos(), value, |_| Some(op.key_len())),
        CryptoOp::Sign(op) => is_like(op.messages(), value, any),
        CryptoOp::Verify(op) => matches!(value, Value::Bytes(verdicts) if verdicts.len() == op.messages().count()),
        CryptoOp::Compress(op) => is_like(&op.messages, value, any),
        CryptoOp::Decompress(op) => is_like(&op.messages, value, any),
    }
}

/// Whether there is one message for each input, in the same form; `len_of` gives the output length
/// for an input length, if it is known.
fn is_like(messages: &Messages, value: &Value, len_of: impl Fn(usize) -> Option<usize>) -> bool {
    let has = |asked: usize, made: usize| len_of(asked).is_none_or(|len| len == made);
    match (messages, value) {
        (Messages::One(asked), Value::Bytes(made)) => has(asked.len(), made.len()),
        (Messages::List(list), Value::List(parts)) => {
            let pair = |(asked, part): (_, &Part)| matches!(part, Part::Bytes(made) if has(asked, made.len()));
            parts.len() == list.len() && list.iter().map(|asked| asked.len()).zip(parts).all(pair)
        }
        (Messages::Packed(_), Value::Pair(made, offsets)) => is_packed(messages, made, offsets, has),
        _ => false,
    }
}

/// Whether the value is tags followed by texts as long as their messages.
fn with_tags(messages: &Messages, value: &Value) -> bool {
    let Value::List(parts) = value else { return false };
    let Some((Part::Tensor(tags), texts)) = parts.split_first() else { return false };
    let same = |(asked, part): (usize, &Part)| matches!(part, Part::Bytes(made) if made.len() == asked);
    tags.len_bytes() == TAG_BYTES * messages.count()
        && match (messages, texts) {
            (Messages::One(asked), [Part::Tensor(made)]) => made.len_bytes() == asked.len(),
            (Messages::Packed(_), [Part::Tensor(made), Part::Tensor(offsets)]) => {
                is_packed(messages, made, offsets, |asked, made| asked == made)
            }
            (Messages::List(list), texts) => {
                texts.len() == list.len() && list.iter().map(|asked| asked.len()).zip(texts).all(same)
            }
            _ => false,
        }
}

/// Whether `offsets` describe one message for each input: within the bytes, ascending, and of the
/// expected lengths. Offsets on a device are not checked before they are read.
fn is_packed(messages: &Messages, made: &Tensor, offsets: &Tensor, has: impl Fn(usize, usize) -> bool) -> bool {
    if offsets.len_bytes() != 8 * (messages.count() + 1) {
        return false;
    }
    let Ok(bytes) = Bytes::from_tensor(offsets) else { return false };
    let Ok(words) = bytes.as_slice() else { return true };
    let limit = made.len_bytes() as u64;
    let (ends, _) = words.as_chunks();
    let pairs = ends.windows(2).map(|pair| (u64::from_le_bytes(pair[0]), u64::from_le_bytes(pair[1])));
    messages
        .lens()
        .zip(pairs)
        .all(|(asked, (start, end))| end <= limit && end.checked_sub(start).is_some_and(|len| has(asked, len as usize)))
}
