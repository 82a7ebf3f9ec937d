//! Verify with Ed25519: one thread for each signature, all under one key. Many signatures are worth
//! a large table.

use panoply_core::op::crypto::{HashAlgorithm, Key, Purpose, SignatureAlgorithm, Verify};
use panoply_core::{Result, Value};
use panoply_kernels::c::{ED25519, ED25519_TABLES, Kernel};

use super::signatures::{Signatures, thread_each, verdicts};
use super::{edwards, sha};
use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};
use crate::ops::messages::place_plain;

const KEY_BYTES: usize = 32;
/// The bytes before the key in a SubjectPublicKeyInfo.
const KEY_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// Sums of up to 15 times the base and up to 15 times the key.
const TABLE_ENTRIES: usize = 256;
const ENTRY_BYTES: usize = 4 * KEY_BYTES;
/// From this number of signatures on, a large table saves more than it costs: multiples of the base
/// and of the key, for windows of eight bits.
const MANY: usize = 4096;
const MANY_WINDOW: usize = 8;
/// Number of table entries that a thread computes.
const TABLE_RUN: usize = 16;

/// Whether this is an Ed25519 public key on the host, where it can be decoded.
pub(super) fn is_for(key: &Key) -> bool {
    key.purpose() == Purpose::Verify(SignatureAlgorithm::Ed25519) && key.material().as_slice().is_ok()
}

pub(super) fn verify(op: &Verify, context: &mut Context) -> Result<Value> {
    let encoded = encoded(op.key()).ok_or_else(|| op.key().invalid())?;
    let (x, y) = edwards::decoded(&encoded).ok_or_else(|| op.key().invalid())?;
    verdicts(op, context, |all, context| {
        let words: Vec<u8> = edwards::negated(&x).iter().chain(&y).flat_map(|word| word.to_le_bytes()).collect();
        let (point, key) = (place_plain(&words, context)?, place_plain(&encoded, context)?);
        launch_verify(all, point, key, context)
    })
}

/// Verifies under a key that is on the device: x and y of its negative, and its encoding.
pub(super) fn launch_verify(all: &Signatures, point: Address, key: Address, context: &mut Context) -> Result<()> {
    let first = place_plain(sha::first_state(HashAlgorithm::Sha512), context)?;
    let are_many = all.count() >= MANY;
    let table = if are_many { multiples(point, context)? } else { sums(point, context)? };
    let kernel = Kernel::new(ED25519, "ed25519_verify").flag("WIDE", true).flag("MANY", are_many);
    let arguments = all.arguments().address(table).address(key).address(first);
    context.launch(&kernel, thread_each(all.count()), &mut all.add_to(arguments))
}

/// The table of sums of small multiples of the base and of the key.
fn sums(point: Address, context: &mut Context) -> Result<Address> {
    let table = context.scratch(TABLE_ENTRIES * ENTRY_BYTES)?;
    let mut arguments = Arguments::new().address(table).address(point);
    context.launch(&tables("ed25519_table", MANY_WINDOW), Launch::new(1, TABLE_ENTRIES), &mut arguments)?;
    Ok(table)
}

/// The table of multiples of the base and of the key.
fn multiples(point: Address, context: &mut Context) -> Result<Address> {
    let table = context.scratch(multiples_bytes(MANY_WINDOW, 2))?;
    make_multiples(table, point, MANY_WINDOW, 2, context)?;
    Ok(table)
}

/// Bytes of a table of the multiples of `points` points.
pub(super) const fn multiples_bytes(window: usize, points: usize) -> usize {
    points * ((256 / window) << window) * ENTRY_BYTES
}

/// Computes the table for windows of `window` bits: of one point, the base, or of two, the base and
/// the key.
pub(super) fn make_multiples(
    table: Address,
    key: Address,
    window: usize,
    points: usize,
    context: &mut Context,
) -> Result<()> {
    let bases = context.scratch(points * (256 / window) * ENTRY_BYTES)?;
    let mut arguments = Arguments::new().address(bases).address(key).size(points);
    context.launch(&tables("ed25519_bases", window), Launch::new(1, 32), &mut arguments)?;
    let runs = multiples_bytes(window, points) / ENTRY_BYTES / TABLE_RUN;
    let mut arguments = Arguments::new().address(table).address(bases);
    context.launch(&tables("ed25519_multiples", window), thread_each(runs), &mut arguments)
}

fn tables(entry: &'static str, window: usize) -> Kernel {
    Kernel::new(ED25519_TABLES, entry).flag("WIDE", true).integer("WINDOW", window)
}

/// The encoded point, bare or in a SubjectPublicKeyInfo.
fn encoded(key: &Key) -> Option<[u8; KEY_BYTES]> {
    let bytes = key.material().as_slice().ok()?;
    let bytes = if bytes.len() == KEY_BYTES { bytes } else { bytes.strip_prefix(&KEY_PREFIX)? };
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use panoply_conformance::run_one;
    use panoply_core::op::crypto::Messages;
    use panoply_core::{Backend, Bytes, OpenOptions, Operation};

    use super::*;
    use crate::{EmulatedBackend, GpuBackend};

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
    }

    /// The second test of RFC 8032: a message of one byte.
    const KEY: &str = "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c";
    const SIGNATURE: &str = "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da\
        085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00";

    /// A message, its signature, and the verdict. The tests use few signatures, and enough for a
    /// large table: valid ones, of another message, altered, with a too large s, too short.
    type SignatureCase<'a> = (&'a [u8], &'a [u8], u8);

    #[test]
    fn few_and_many_signatures_are_verified() {
        let backend = match EmulatedBackend::new() {
            Ok(backend) => backend,
            Err(absence) => return println!("skipped: {absence}"),
        };
        let info = backend.discover().unwrap().remove(0);
        let mut engine = backend.open_engine(&info, &OpenOptions::default()).unwrap();
        let key = Key::verify(SignatureAlgorithm::Ed25519, &bytes(KEY)).unwrap();
        let signature = bytes(SIGNATURE);
        let (mut altered, mut too_large) = (signature.clone(), signature.clone());
        altered[5] ^= 1;
        // s plus the order.
        let order = bytes("edd3f55c1a631258d69cf7a2def9de1400000000000000000000000000000010");
        let mut carry = 0;
        for (byte, order) in too_large[32..].iter_mut().zip(order) {
            carry += u16::from(*byte) + u16::from(order);
            *byte = carry as u8;
            carry >>= 8;
        }
        let kinds = [
            (&[0x72][..], &signature[..], 1),
            (&[0x73], &signature, 0),
            (&[0x72], &altered, 0),
            (&[0x72], &too_large, 0),
            (&[0x72], &signature[..63], 0),
        ];
        for count in [6, MANY + 1] {
            let each = || kinds.iter().cycle().take(count);
            let list = |part: fn(&SignatureCase<'_>) -> Vec<u8>| {
                Messages::from(each().map(|kind| Bytes::from_vec(part(kind))).collect::<Vec<_>>())
            };
            let op = Verify::new(&key, list(|kind| kind.0.to_vec()), list(|kind| kind.1.to_vec()));
            let verdicts = run_one(&mut engine, op.into_op().unwrap()).unwrap().into_bytes().unwrap();
            let expected: Vec<u8> = each().map(|kind| kind.2).collect();
            assert_eq!(verdicts.as_slice().unwrap(), expected, "{count}");
        }
    }
}
