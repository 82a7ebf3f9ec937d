//! Sign and Verify.

use panoply_core::op::crypto::{Messages, Purpose, Sign, Verify};
use panoply_core::{Bytes, Result, Threads};

use super::{HASH_NS_PER_BYTE, TakeMemory, failure, finished, offsets_of};
use crate::keys::Expanded;
use crate::spread::{Slot, Slots, spread};

pub(super) fn sign(op: &Sign, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Messages> {
    let expanded = Expanded::of(op.key())?;
    let (Expanded::Private(key), Purpose::Sign(algorithm)) = (expanded, op.key().purpose()) else {
        return Err(op.key().invalid());
    };
    let messages = op.messages().slices()?;
    let offsets = offsets_of(messages.iter().map(|_| algorithm.signature_bytes_max()))?;
    let mut out = take(offsets[messages.len()])?;
    let mut lens = vec![0; messages.len()];
    let slots = Slots { out: out.bytes_mut(), offsets: &offsets, side: &mut [], side_each: 0, lens: &mut lens };
    let each = algorithm.sign_cost_bytes() as f64 * HASH_NS_PER_BYTE;
    let time = |index: usize| each + messages[index].len() as f64 * HASH_NS_PER_BYTE;
    let work = |index: usize, slot: Slot<'_>| key.sign(messages[index], slot.out);
    spread(threads, slots, &time, &work).map_err(failure("sign", 0))?;
    finished(op.messages(), out, offsets, &lens, None)
}

/// One byte for each signature: 1 where it is one of its message.
pub(super) fn verify(op: &Verify, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Bytes> {
    let expanded = Expanded::of(op.key())?;
    let (messages, signatures) = (op.messages().slices()?, op.signatures().slices()?);
    let verdict = |index: usize| match expanded {
        Expanded::Public(key) => key.verify(messages[index], signatures[index]),
        Expanded::Hmac(key) => key.verify(messages[index], signatures[index]),
        _ => false,
    };
    let each = match (expanded, op.key().purpose()) {
        (Expanded::Public(_), Purpose::Verify(algorithm)) => algorithm.verify_cost_bytes() as f64 * HASH_NS_PER_BYTE,
        (Expanded::Hmac(_), _) => 300.0,
        _ => return Err(op.key().invalid()),
    };
    let offsets: Vec<usize> = (0..=messages.len()).collect();
    let mut out = take(messages.len())?;
    let mut lens = vec![0; messages.len()];
    let slots = Slots { out: out.bytes_mut(), offsets: &offsets, side: &mut [], side_each: 0, lens: &mut lens };
    let time = |index: usize| each + messages[index].len() as f64 * HASH_NS_PER_BYTE;
    let work = |index: usize, slot: Slot<'_>| {
        slot.out[0] = u8::from(verdict(index));
        Ok(1)
    };
    spread(threads, slots, &time, &work).map_err(failure("verify", 0))?;
    Ok(Bytes::from_host(out.freeze()))
}
