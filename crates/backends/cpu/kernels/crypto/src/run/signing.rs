//! Sign and Verify.

use std::ops::Range;

use panoply_core::op::crypto::{CryptoOp, Messages, Purpose, Sign, SignatureAlgorithm, Verify};
use panoply_core::{Bytes, Result, Threads};

use super::{HASH_NS_PER_BYTE, State, TakeMemory, failure, finished, offsets_of};
use crate::failure::Failure;
use crate::keys::ExpandedKey;
use crate::lanes::{detected_for_curves, detected_for_rsa, detected_for_rsa_integers};
use crate::rsa::{RSA_GROUP, RSA_GROUP_COST, is_sooner_in_groups};
use crate::signature::{PrivateKey, PublicKey};
use crate::signature_lanes::{ED25519_TABLE_MIN, P256_TABLE_MIN, SIGNED_MIN};
use crate::spread::{Run, Slots, spread_runs};

pub(super) fn sign(op: &Sign, state: &State, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Messages> {
    let expanded = ExpandedKey::of(op.key(), state.wide)?;
    let (ExpandedKey::Private(key), Purpose::Sign(algorithm)) = (expanded, op.key().purpose()) else {
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
    // Lanes copy the ends of messages to memory that is not wiped.
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

/// One byte for each signature: 1 if it is valid for its message.
pub(super) fn verify(op: &Verify, state: &State, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Bytes> {
    let expanded = ExpandedKey::of(op.key(), state.wide)?;
    let (messages, signatures) = (op.messages().slices()?, op.signatures().slices()?);
    let verdict = |index: usize| match expanded {
        ExpandedKey::Public(key) => key.verify(messages[index], signatures[index]),
        ExpandedKey::Hmac(key) => key.verify(messages[index], signatures[index]),
        _ => false,
    };
    let each = match (expanded, op.key().purpose()) {
        (ExpandedKey::Public(_), Purpose::Verify(algorithm)) => algorithm.verify_cost_bytes() as f64 * HASH_NS_PER_BYTE,
        (ExpandedKey::Hmac(_), _) => 300.0,
        _ => return Err(op.key().invalid()),
    };
    let mut out = take(messages.len())?;
    if let ExpandedKey::Public(key) = expanded
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
    // Lanes copy messages to memory that is not wiped.
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

/// Estimated time of an op that signs or verifies, on `threads` threads: one by one, or in lanes if
/// there are enough messages. `None` for other ops.
pub fn signing_ns(op: &CryptoOp, threads: usize) -> Option<f64> {
    let (cost, messages) = match op {
        CryptoOp::Sign(op) => match op.key().purpose() {
            Purpose::Sign(algorithm) => (Cost::of_signing(algorithm, LaneKinds::detected()), op.messages()),
            _ => return None,
        },
        CryptoOp::Verify(op) => match op.key().purpose() {
            Purpose::Verify(algorithm) => (Cost::of_verifying(algorithm, LaneKinds::detected()), op.messages()),
            _ => return None,
        },
        _ => return None,
    };
    let hashing = messages.total_bytes() as f64 * HASH_NS_PER_BYTE / threads.max(1) as f64;
    Some(cost.batch_ns(messages.count(), threads) + hashing)
}

/// The lanes that this CPU has.
#[derive(Clone, Copy)]
struct LaneKinds {
    curves: bool,
    rsa: bool,
    /// Whether the RSA lanes have IFMA, which makes the library faster too.
    rsa_integers: bool,
}

impl LaneKinds {
    fn detected() -> LaneKinds {
        let [curves, rsa, rsa_integers] = [detected_for_curves(), detected_for_rsa(), detected_for_rsa_integers()];
        LaneKinds { curves, rsa, rsa_integers }
    }
}

/// The cost of signatures under one key.
#[derive(Clone, Copy)]
struct Cost {
    one_ns: f64,
    lanes: Option<LaneCost>,
}

/// The cost of signatures in lanes: the minimal number, the speed-up, and the one-time cost for a
/// key.
#[derive(Clone, Copy)]
struct LaneCost {
    count_min: usize,
    gain: f64,
    first_ns: f64,
}

impl Cost {
    // The gains are those of 1,024 messages, from `docs/performance.md`.

    fn of_signing(algorithm: SignatureAlgorithm, kinds: LaneKinds) -> Cost {
        let one_ns = algorithm.sign_cost_bytes() as f64 * HASH_NS_PER_BYTE;
        match algorithm {
            SignatureAlgorithm::EcdsaP256(_) => {
                let lanes = LaneCost { count_min: SIGNED_MIN, gain: 4.4, first_ns: 0.0 };
                Cost { one_ns, lanes: kinds.curves.then_some(lanes) }
            }
            SignatureAlgorithm::Rsa { .. } if kinds.rsa => {
                // Without IFMA the library has a third of the speed.
                let (times, gain) = if kinds.rsa_integers { (1.0, 1.7) } else { (3.0, 2.1) };
                let lanes = LaneCost { count_min: RSA_GROUP_COST + 1, gain, first_ns: 0.0 };
                Cost { one_ns: times * one_ns, lanes: Some(lanes) }
            }
            _ => Cost { one_ns, lanes: None },
        }
    }

    fn of_verifying(algorithm: SignatureAlgorithm, kinds: LaneKinds) -> Cost {
        let one_ns = algorithm.verify_cost_bytes() as f64 * HASH_NS_PER_BYTE;
        let lanes = |count_min: usize, gain, firsts: usize| {
            Some(LaneCost { count_min, gain, first_ns: firsts as f64 * one_ns })
        };
        let lanes = match algorithm {
            SignatureAlgorithm::EcdsaP256(_) if kinds.curves => lanes(P256_TABLE_MIN, 8.5, P256_TABLE_MIN),
            SignatureAlgorithm::Ed25519 if kinds.curves => lanes(ED25519_TABLE_MIN, 6.2, ED25519_TABLE_MIN),
            SignatureAlgorithm::Rsa { .. } if kinds.rsa => lanes(RSA_GROUP_COST + 1, 2.4, 0),
            _ => None,
        };
        Cost { one_ns, lanes }
    }

    /// Time of a batch on `threads` threads.
    fn batch_ns(self, count: usize, threads: usize) -> f64 {
        let shared = |each_ns: f64, together: usize| {
            let groups = count.div_ceil(together).max(1);
            each_ns * (groups.div_ceil(threads.clamp(1, groups)) * together).min(count) as f64
        };
        let one_by_one = shared(self.one_ns, 1);
        match self.lanes {
            Some(lanes) if count >= lanes.count_min => {
                // A partial group takes as long as a full one.
                let in_lanes =
                    shared(self.one_ns / lanes.gain, RSA_GROUP).max(self.one_ns / lanes.gain * RSA_GROUP as f64);
                one_by_one.min(lanes.first_ns + in_lanes)
            }
            _ => one_by_one,
        }
    }
}

fn public_key(expanded: &ExpandedKey) -> Option<&PublicKey> {
    match expanded {
        ExpandedKey::Public(key) => Some(key),
        _ => None,
    }
}

/// Processes a group of messages with its part of the output. If some fail, it returns the group
/// index of the first.
type WorkOnGroup<'a> = &'a (dyn Fn(Range<usize>, &mut [u8]) -> std::result::Result<(), (usize, Failure)> + Sync);

/// Calls `work` for each RSA group, of messages that have `out_each` bytes of the output each and
/// take the given time one by one.
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

#[cfg(test)]
mod tests {
    use panoply_core::op::crypto::{EcdsaEncoding, RsaBits, RsaPadding};

    use super::*;

    const NONE: LaneKinds = LaneKinds { curves: false, rsa: false, rsa_integers: false };
    const ALL: LaneKinds = LaneKinds { curves: true, rsa: true, rsa_integers: false };
    const P256: SignatureAlgorithm = SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Fixed);
    const RSA: SignatureAlgorithm = SignatureAlgorithm::rsa(RsaBits::Bits2048, RsaPadding::Pkcs1);

    fn costs(kinds: LaneKinds) -> [(Cost, f64); 5] {
        [
            (Cost::of_verifying(P256, kinds), 8.5),
            (Cost::of_verifying(SignatureAlgorithm::Ed25519, kinds), 6.2),
            (Cost::of_signing(P256, kinds), 4.4),
            (Cost::of_verifying(RSA, kinds), 2.4),
            (Cost::of_signing(RSA, kinds), 2.1),
        ]
    }

    #[test]
    fn without_lanes_a_batch_is_as_dear_as_its_messages() {
        for (cost, _) in costs(NONE) {
            for count in [1, 64, 1024, 100_000] {
                let (one, two) = (cost.batch_ns(count, 1), cost.batch_ns(count, 2));
                assert_eq!(one, cost.one_ns * count as f64);
                assert_eq!(two, if count == 1 { one } else { one / 2.0 });
            }
        }
    }

    #[test]
    fn in_lanes_each_message_of_a_large_batch_costs_as_little_as_was_measured() {
        for (cost, gain) in costs(ALL) {
            assert_eq!(cost.batch_ns(1, 4), cost.one_ns);
            let each = |count: usize| cost.batch_ns(count, 1) / count as f64;
            assert!(each(64) < cost.one_ns / 2.0 && each(64) >= each(1024) && each(1024) >= each(100_000));
            for (count, near) in [(1024, 1.15), (100_000, 1.01)] {
                assert!(
                    cost.one_ns / each(count) <= gain * 1.001 && cost.one_ns / each(count) * near >= gain,
                    "{count} {gain}"
                );
            }
            // No batch takes longer than one by one; and from the lanes' minimum on, none takes
            // longer than a larger one.
            let times: Vec<f64> = (1..200).map(|count| cost.batch_ns(count, 1)).collect();
            assert!(times.iter().zip(1..).all(|(time, count)| *time <= cost.one_ns * f64::from(count)));
            assert!(times[RSA_GROUP..].windows(2).all(|pair| pair[0] <= pair[1]));
        }
    }

    #[test]
    fn what_has_no_lanes_has_none() {
        for cost in [
            Cost::of_signing(SignatureAlgorithm::Ed25519, ALL),
            Cost::of_verifying(SignatureAlgorithm::EcdsaP384(EcdsaEncoding::Der), ALL),
        ] {
            assert_eq!(cost.batch_ns(1000, 1), 1000.0 * cost.one_ns);
        }
    }
}
