//! Sign and Verify.

use std::ops::Range;

use panoply_core::op::crypto::{Messages, Purpose, Sign, Verify};
use panoply_core::{Bytes, Result, Threads};

use super::{HASH_NS_PER_BYTE, State, TakeMemory, failure, finished, offsets_of};
use crate::Failure;
use crate::keys::Expanded;
use crate::rsa::{RSA_GROUP, RSA_GROUP_COST, is_sooner_in_groups};
use crate::signature::{PrivateKey, PublicKey};
use crate::spread::{Run, Slots, spread_runs};

pub(super) fn sign(op: &Sign, state: &State, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Messages> {
    let expanded = Expanded::of(op.key())?;
    let (Expanded::Private(key), Purpose::Sign(algorithm)) = (expanded, op.key().purpose()) else {
        return Err(op.key().invalid());
    };
    let messages = op.messages().slices()?;
    let offsets = offsets_of(messages.iter().map(|_| algorithm.signature_bytes_max()))?;
    let mut out = take(offsets[messages.len()])?;
    let each = algorithm.sign_cost_bytes() as f64 * HASH_NS_PER_BYTE;
    let time = |index: usize| each + messages[index].len() as f64 * HASH_NS_PER_BYTE;
    if let PrivateKey::Rsa(key) = key
        && state.wide
        && is_sooner_in_groups(messages.len(), threads.count())
        && key.has_lanes()
    {
        let work = |group: Range<usize>, out: &mut [u8]| key.sign_group(&messages[group], out);
        in_groups(threads, out.bytes_mut(), algorithm.signature_bytes_max(), messages.len(), each, &work)
            .map_err(failure("sign", 0))?;
        return op.messages().like(Bytes::from_host(out.freeze()), offsets);
    }
    let mut lens = vec![0; messages.len()];
    let slots = Slots { out: out.bytes_mut(), offsets: &offsets, side: &mut [], side_each: 0, lens: &mut lens };
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
    let mut out = take(messages.len())?;
    if let Expanded::Public(key) = expanded
        && state.wide
        && is_sooner_in_groups(messages.len(), threads.count())
        && key.has_groups()
    {
        let work = |group: Range<usize>, out: &mut [u8]| {
            let verdicts = key.verify_group(&messages[group.clone()], &signatures[group]);
            out.iter_mut().zip(verdicts).for_each(|(out, verdict)| *out = u8::from(verdict));
            Ok(())
        };
        in_groups(threads, out.bytes_mut(), 1, messages.len(), each, &work).map_err(failure("verify", 0))?;
        return Ok(Bytes::from_host(out.freeze()));
    }
    let offsets: Vec<usize> = (0..=messages.len()).collect();
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

/// What is done with a group of messages, which has its part of the output: where some fail, it says which is the first in the group.
type WorkOnGroup<'a> = &'a (dyn Fn(Range<usize>, &mut [u8]) -> std::result::Result<(), (usize, Failure)> + Sync);

/// Calls `work` for each group of RSA, of messages that have `out_each` bytes of the output each and take so long one by one.
fn in_groups(
    threads: &dyn Threads,
    out: &mut [u8],
    out_each: usize,
    count: usize,
    each_ns: f64,
    work: WorkOnGroup<'_>,
) -> std::result::Result<(), (usize, Failure)> {
    let first = |group: usize| (group * RSA_GROUP).min(count);
    let groups = count.div_ceil(RSA_GROUP);
    let offsets: Vec<usize> = (0..=groups).map(|group| first(group) * out_each).collect();
    let mut lens = vec![0; groups];
    let slots = Slots { out, offsets: &offsets, side: &mut [], side_each: 0, lens: &mut lens };
    spread_runs(threads, slots, 1, &|_| each_ns * RSA_GROUP_COST as f64, &|run: Run<'_>| {
        let groups = run.messages.clone();
        for (group, out) in groups.zip(run.parts(&offsets)) {
            work(first(group)..first(group + 1), out).map_err(|(index, failure)| (first(group) + index, failure))?;
        }
        Ok(())
    })
}
