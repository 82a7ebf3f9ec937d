//! Hash, Hmac and Hkdf.

use panoply_core::op::crypto::{Hash, HashAlgorithm, Hkdf, Hmac, Messages, Purpose};
use panoply_core::{Bytes, HostBufferMut, Result, Threads};

use super::{HASH_NS_PER_BYTE, MESSAGE_NS, State, TakeMemory, failure, offsets_of};
use crate::failure::Failure;
use crate::hash::{Derivation, hash};
use crate::keys::ExpandedKey;
use crate::lanes::{HASHED_LANES, detected_for_hash, hash_alike};
use crate::spread::{MessageOutput, Run, Slots, spread, spread_runs};

pub(super) fn hash_all(op: &Hash, state: &State, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Messages> {
    let (messages, len) = (op.messages.slices()?, op.algorithm.digest_bytes());
    let mut out = take(messages.len() * len)?;
    let offsets = offsets_of(messages.iter().map(|_| len))?;
    let mut lens = vec![0; messages.len()];
    let slots = Slots { out: out.bytes_mut(), offsets: &offsets, side: &mut [], side_each: 0, lens: &mut lens };
    let time = |index: usize| 2.0 * MESSAGE_NS + messages[index].len() as f64 * HASH_NS_PER_BYTE;
    // Lanes copy the ends of messages to memory that is not wiped.
    let wide = state.wide && detected_for_hash() && !op.messages.is_secret();
    let work = |run: Run<'_>| {
        let (mut messages, mut out) = (&messages[run.messages], run.out);
        while let Some(first) = messages.first() {
            // SAFETY: the CPU's features were checked above.
            let alike = if wide { unsafe { hash_alike(op.algorithm, messages, out) } } else { 0 };
            if alike == 0 {
                hash(op.algorithm, first, &mut out[..len]);
            }
            let done = alike.max(1);
            (messages, out) = (&messages[done..], &mut out[done * len..]);
        }
        Ok(())
    };
    let lanes = if op.algorithm == HashAlgorithm::Sha256 { HASHED_LANES } else { HASHED_LANES / 2 };
    let together = if wide { lanes.max(1) } else { 1 };
    // Lanes take as long for one message as for all of them.
    let filled = LimitedThreads { threads, count_max: messages.len().div_ceil(together).max(1) };
    spread_runs(&filled, slots, together, &time, &work).map_err(failure("hash", 0))?;
    op.messages.like(Bytes::from_host(out.freeze()), offsets)
}

/// Limits the threads to as many as have enough work: another one would gain nothing, and takes a
/// CPU from others.
struct LimitedThreads<'a> {
    threads: &'a dyn Threads,
    count_max: usize,
}

impl Threads for LimitedThreads<'_> {
    fn count(&self) -> usize {
        self.threads.count().min(self.count_max)
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.threads.run(tasks, task);
    }
}

pub(super) fn hmac(op: &Hmac, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Messages> {
    let expanded = ExpandedKey::of(op.key(), false)?;
    let (ExpandedKey::Hmac(key), Purpose::Hmac(algorithm)) = (expanded, op.key().purpose()) else {
        return Err(op.key().invalid());
    };
    let out = take(op.messages().count() * algorithm.digest_bytes())?;
    each("hmac", op.messages(), out, algorithm.digest_bytes(), threads, &|message, out| key.tag(message, out))
}

pub(super) fn hkdf(op: &Hkdf, threads: &dyn Threads) -> Result<Messages> {
    let Purpose::Hkdf(algorithm) = op.key().purpose() else { return Err(op.key().invalid()) };
    let salt = op.salt_bytes().map(Bytes::as_slice).transpose()?.unwrap_or_default();
    let derivation = Derivation::new(algorithm, salt, op.key().material().as_slice()?);
    let out = HostBufferMut::secret(op.infos().count() * op.key_len())?;
    each("hkdf", op.infos(), out, op.key_len(), threads, &|info, out| derivation.derive(info, out))
}

/// Computes the output of one message.
type DigestFn<'a> = &'a (dyn Fn(&[u8], &mut [u8]) -> Result<(), Failure> + Sync);

/// Applies `make` to each message; all outputs have the same length.
fn each(
    name: &'static str,
    messages: &Messages,
    mut out: HostBufferMut,
    len: usize,
    threads: &dyn Threads,
    work: DigestFn<'_>,
) -> Result<Messages> {
    let slices = messages.slices()?;
    let offsets = offsets_of(slices.iter().map(|_| len))?;
    let mut lens = vec![0; slices.len()];
    let slots = Slots { out: out.bytes_mut(), offsets: &offsets, side: &mut [], side_each: 0, lens: &mut lens };
    let time = |index: usize| 2.0 * MESSAGE_NS + (slices[index].len() + len) as f64 * HASH_NS_PER_BYTE;
    let work = |index: usize, slot: MessageOutput<'_>| work(slices[index], slot.out).map(|()| len);
    spread(threads, slots, &time, &work).map_err(failure(name, 0))?;
    messages.like(Bytes::from_host(out.freeze()), offsets)
}
