//! Sign and Verify.

use panoply_core::op::crypto::{Messages, Purpose, Sign, Verify};
use panoply_core::{Bytes, Result, Threads};

use super::{HASH_NS_PER_BYTE, State, TakeMemory, failure, finished, offsets_of};
use crate::keys::Expanded;
use crate::signature::PublicKey;
use crate::spread::{Run, Slots, spread_runs};

pub(super) fn sign(op: &Sign, state: &State, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Messages> {
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
    // Lanes keep the ends of messages in memory that is not wiped.
    let (wide, each_max) = (state.wide && !op.messages().is_secret(), algorithm.signature_bytes_max());
    let work = |run: Run<'_>| {
        let first = run.messages.start;
        let made = key.sign_many(&messages[run.messages], run.out, each_max, run.lens, wide);
        made.map_err(|(place, failure)| (first + place, failure))
    };
    let together = if wide { key.together() } else { 1 };
    spread_runs(threads, slots, together, &time, &work).map_err(failure("sign", 0))?;
    finished(op.messages(), out, offsets, &lens, None)
}

/// One byte for each signature: 1 where it is one of its message.
pub(super) fn verify(op: &Verify, state: &State, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Bytes> {
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
    // Lanes keep messages in memory that is not wiped.
    let wide = if state.wide && !op.messages().is_secret() { public_key(expanded) } else { None };
    if let Some(key) = wide {
        key.prepare(messages.len());
    }
    let work = |run: Run<'_>| {
        match wide {
            Some(key) => key.verify_many(&messages[run.messages.clone()], &signatures[run.messages], run.out),
            None => run.out.iter_mut().zip(run.messages).for_each(|(out, index)| *out = u8::from(verdict(index))),
        }
        Ok(())
    };
    let together = wide.map_or(1, PublicKey::together);
    spread_runs(threads, slots, together, &time, &work).map_err(failure("verify", 0))?;
    Ok(Bytes::from_host(out.freeze()))
}

fn public_key(expanded: &Expanded) -> Option<&PublicKey> {
    match expanded {
        Expanded::Public(key) => Some(key),
        _ => None,
    }
}
